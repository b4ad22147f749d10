# ruff: noqa: INP001 - a module of its own: inside the package it would run its `__init__`
"""What the backend declares. Data only: importing this loads neither torch nor FlashInfer."""

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

# FP8 caches are left out: their scales are not applied. FlashInfer's prefill has no float32.
_DTYPES = frozenset({"bfloat16", "float16"})

FLASHINFER = Declaration(
    capabilities=Capabilities(
        # `plan()` cuts contexts into chunks by host lengths. The decode kernel subtracts a chunk's
        # start from the true length without a sign (attention/decode.cuh, FlashInfer 0.7.2.post1),
        # so a chunk that begins behind a context's end would have billions of tokens: a bound that
        # is too long by a chunk is no bound that it takes.
        host_seq_lens=HostSeqLens.EXACT,
        # Tokens of FlashInfer's are a request's each. The padding of a captured mixed batch is
        # nobody's: it would need a request of its own there, which no device has tried.
        graph_replay=frozenset({BatchKind.SINGLE_TOKEN_DECODE, BatchKind.UNIFORM_BATCH}),
        # `plan()` is host code, and runs before each replay.
        graph_metadata=GraphMetadata.HOST,
        # `plan()` packs into one pinned buffer and copies from it without waiting, so the next one
        # waits until that copy is done; and of a tree mask it reads the packed size back.
        sync_free_prepare=False,
        # The page table is gathered before the replay, and lengths come from the host.
        shared_reads_end=SharedReadsEnd.PRE_REPLAY,
        # Each half batch has an object of its own, with its own workspace.
        two_batch_overlap=True,
        # No device was asked yet.
        deterministic=False,
        # `plan()` cuts contexts into chunks by the whole batch.
        batch_invariant=False,
        # The row length of `req_to_token`, by which the buffers of graphs are sized.
        max_context_len_known=True,
        # A draft step and a verify are a custom mask over a uniform batch, or causal without one.
        roles=frozenset(Role),
        # The widest that the tests hold to the oracle. A custom mask itself has no width.
        max_speculative_topk=64,
        # `req_to_token` names the slot of every single token: FlashInfer sees pages of one.
        page_sizes=ANY,
        # Its kernels swizzle rows of 64 elements; decode's share a row among 8, 16 or 32 threads.
        head_sizes=OneOf({64, 128, 256}),
        devices={"cuda"},
        # FlashInfer starts at 7.5, where its prefill refuses bfloat16 (attention/prefill.cuh).
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
        # Behind backends for CUDA that come with all they need: `auto` goes by declarations, and
        # does not see whether this one's extra is installed.
        auto_priority=25,
    ),
    implementation="backend_caps_flashinfer.backend:FlashInfer",
)
"""Attention by FlashInfer's paged decode and prefill, planned on the host for every batch."""
