# ruff: noqa: INP001 - a module of its own: inside the package it would run its `__init__`
"""What the backend declares. Data only: importing this loads no torch."""

from __future__ import annotations

from backend_caps import (
    ANY,
    AttentionArch,
    AttentionType,
    BatchKind,
    Capabilities,
    Declaration,
    Given,
    GraphMetadata,
    HostSeqLens,
    KVLayout,
    Role,
    SharedReadsEnd,
    When,
)

# What the tests hold to a float64 oracle. FP8 caches are left out: their scales are not applied.
_DTYPES = frozenset({"bfloat16", "float16", "float32"})

FLEX_ATTENTION = Declaration(
    capabilities=Capabilities(
        # An eager forward gathers contexts up to the largest bound. What each token sees is
        # masked by device lengths, so a loose bound costs work and changes no bit.
        host_seq_lens=HostSeqLens.UPPER_BOUND,
        # A captured forward reads no bound: it gathers whole rows of the page table, and its
        # shapes follow from the number of requests and tokens alone.
        graph_replay=frozenset(BatchKind),
        # `init_forward_metadata_in_graph` is device work on the batch's own tensors.
        graph_metadata=GraphMetadata.IN_GRAPH,
        # Bounds are host memory, and block tables are counted on the device.
        sync_free_prepare=True,
        # The graph reads lengths and page table itself.
        shared_reads_end=SharedReadsEnd.POST_REPLAY,
        # The only state is one forward's metadata, and each half batch has an object of its own.
        two_batch_overlap=True,
        # Forward, a kernel adds up in one order.
        deterministic=True,
        # Contexts are gathered up to the largest bound, so how they are cut follows the batch.
        batch_invariant=False,
        # The row length of `req_to_token`, which a captured forward gathers.
        max_context_len_known=True,
        # A draft step and a verify are a tree mask over a uniform batch, or causal without one.
        roles=frozenset(Role),
        # The widest that the tests hold to the oracle. The kernel reads the tree mask as it is.
        max_speculative_topk=64,
        # Contexts are gathered token by token, so pages are never seen.
        page_sizes=ANY,
        # The eager path takes what a kernel refuses, as Triton's does heads of less than 16.
        head_sizes=ANY,
        # Compiled for CPUs and CUDA, eager elsewhere: torch's own operators.
        devices=ANY,
        compute_capability=ANY,
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
        # Before plain PyTorch: on one busy CPU core it took 0.03 of the time of `torch_padded` for
        # a prefill of 4 by 256 tokens, 0.1 for a decode of 16 contexts up to 1,000 tokens where
        # 8,192 are allowed, and as long where 1,024 are. Behind kernels that copy no contexts.
        auto_priority=40,
    ),
    conditions=(
        When(
            # Between `torch_native`, which starts at once and whose wait costs a CPU nothing, and
            # `torch_padded`.
            given=Given(device={"cpu"}),
            capabilities=Capabilities(auto_priority=15),
            reason="its kernels are compiled for seconds before the first token, by a C++ compiler",
        ),
    ),
    implementation="backend_caps_flex_attention.flex:FlexAttention",
)
"""Attention by `flex_attention` over contexts that are gathered up to their upper bounds."""
