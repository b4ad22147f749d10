# ruff: noqa: INP001 - a module of its own: inside the package it would run its `__init__`
"""What the backend declares. Data only: importing this loads neither torch nor Triton."""

from __future__ import annotations

from backend_caps import (
    ANY,
    AttentionArch,
    AttentionType,
    BatchKind,
    Capabilities,
    ComputeRange,
    Declaration,
    GraphMetadata,
    HostSeqLens,
    KVLayout,
    OneOf,
    Role,
    SharedReadsEnd,
)

# What the tests hold to a float64 oracle. FP8 caches are left out: their scales are not applied.
_DTYPES = frozenset({"bfloat16", "float16", "float32"})

TRITON = Declaration(
    capabilities=Capabilities(
        # A kernel cuts each forward into items of work by the device's lengths.
        host_seq_lens=HostSeqLens.NONE,
        # Grids follow from the numbers of requests and tokens. Those of a mixed batch would do so
        # too; it is prompts, whose kernels are long enough for the host to keep ahead of.
        graph_replay=frozenset({BatchKind.SINGLE_TOKEN_DECODE, BatchKind.UNIFORM_BATCH}),
        # That kernel runs in front of the replay, and writes to tables made beforehand.
        graph_metadata=GraphMetadata.DEVICE,
        sync_free_prepare=True,
        # It copies lengths and page table too: the graph reads nothing that the scheduler writes.
        shared_reads_end=SharedReadsEnd.PRE_REPLAY,
        # The only state is one forward's tables, and each half batch has an object of its own.
        two_batch_overlap=True,
        # Parts of a context are added up in their own order, by no atomic.
        deterministic=True,
        # Contexts are cut into chunks by the work of the whole batch.
        batch_invariant=False,
        # The row length of `req_to_token`, which the copy of it has too.
        max_context_len_known=True,
        # A draft step and a verify are a tree mask over a uniform batch, or causal without one.
        roles=frozenset(Role),
        # The widest that the tests hold to the oracle; the mask itself has no width.
        max_speculative_topk=64,
        # `req_to_token` names the slot of every single token, so pages are never seen.
        page_sizes=ANY,
        # Rounded up to a power of two in registers; a wider head than 256 does not fit into them.
        head_sizes=OneOf({8, 16, 32, 64, 80, 96, 112, 128, 192, 256}),
        # What Triton compiles for. On a CPU the simulator runs its kernels, and that is for tests.
        devices={"cuda"},
        # Triton's own minimum for NVIDIA: https://github.com/triton-lang/triton#compatibility
        compute_capability=(ComputeRange((8, 0)),),
        dtypes=_DTYPES,
        kv_cache_dtypes=_DTYPES,
        attention_arch={AttentionArch.MHA},
        # A layer hands over neither window, cap nor sinks, and a token sees its own past alone.
        attention_types={AttentionType.DECODER},
        sliding_window=False,
        attention_sinks=False,
        logit_soft_cap=False,
        non_causal=False,
        multimodal_prefix=False,
        # A quantized cache is not taken, and no output is joined with another rank's.
        per_head_kv_scales=False,
        decode_context_parallel=False,
        prefill_context_parallel=False,
        # The pools have a buffer for each layer, and a row for each token's heads.
        kv_layouts={KVLayout.NHD},
        kernel_block_sizes=ANY,
        # Written for the devices that it takes, and tuned for none of them.
        auto_priority=50,
    ),
    implementation="backend_caps_triton.backend:TritonAttention",
)
"""Attention by kernels that are planned on the device: in graphs, and never a host value."""
