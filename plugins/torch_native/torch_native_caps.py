# ruff: noqa: INP001 - a module of its own: inside the package it would run its `__init__`
"""What the two backends declare. Data only: importing this loads no torch."""

from __future__ import annotations

from backend_caps import (
    ANY,
    AttentionArch,
    AttentionType,
    BatchKind,
    Capabilities,
    Declaration,
    GraphMetadata,
    HostSeqLens,
    KVLayout,
    Role,
    SharedReadsEnd,
)

# What the tests hold to a float64 oracle. FP8 caches are left out: their scales are not applied.
_DTYPES = frozenset({"bfloat16", "float16", "float32"})

TORCH_NATIVE = Declaration(
    capabilities=Capabilities(
        # Slices every request's context by `seq_lens_cpu`.
        host_seq_lens=HostSeqLens.EXACT,
        # The slices are host values: a graph would keep those of its capture.
        graph_replay=frozenset(),
        graph_metadata=GraphMetadata.HOST,
        # The mirror is host memory already, and the page table is gathered on the device.
        sync_free_prepare=True,
        # Without a replay there is no earlier point to name than the end of the forward.
        shared_reads_end=SharedReadsEnd.UNKNOWN,
        # The only state is one forward's metadata, and each half batch has an object of its own.
        two_batch_overlap=True,
        # Forward, `scaled_dot_product_attention` adds up in one order.
        deterministic=True,
        # Each request is a product of its own, in the same shapes whoever is beside it.
        batch_invariant=True,
        # Nothing is sized by the longest context.
        max_context_len_known=False,
        # A draft step is a decode; draft-extend is several causal tokens a request, like verify.
        roles=frozenset(Role),
        # Causal within a request: a chain of drafts. A tree mask is refused.
        max_speculative_topk=1,
        # `req_to_token` names the slot of every single token, so pages are never seen.
        page_sizes=ANY,
        # `scaled_dot_product_attention` takes every head size, and values of another size.
        head_sizes=ANY,
        # Torch's own operators alone, so whatever device torch serves.
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
        # Behind whatever was made for a machine: it runs everywhere, a request after the other.
        auto_priority=20,
    ),
    implementation="backend_caps_torch_native.native:TorchNative",
)
"""Attention that slices each request by its host length: exact work, and a host wait for it."""

TORCH_PADDED = Declaration(
    capabilities=Capabilities(
        # Lengths become masks on the device.
        host_seq_lens=HostSeqLens.NONE,
        # Every shape follows from the number of requests and tokens, whatever the lengths are.
        graph_replay=frozenset(BatchKind),
        # `init_forward_metadata_in_graph` is device work on the batch's own tensors.
        graph_metadata=GraphMetadata.IN_GRAPH,
        sync_free_prepare=True,
        # The graph reads lengths and page table itself.
        shared_reads_end=SharedReadsEnd.POST_REPLAY,
        # As above: no state but one forward's metadata.
        two_batch_overlap=True,
        # As above, and all rows are one product, whose kernel a device may choose by their number.
        deterministic=True,
        batch_invariant=False,
        # The row length of `req_to_token`, to which contexts are padded.
        max_context_len_known=True,
        # A draft step and a verify are a tree mask over a uniform batch, or causal without one.
        roles=frozenset(Role),
        # The widest that the tests hold to the oracle. The mask itself has no width: it costs an
        # entry for each token and each position, whatever the tree.
        max_speculative_topk=64,
        # From here on as above, for the same reasons.
        page_sizes=ANY,
        head_sizes=ANY,
        devices=ANY,
        compute_capability=ANY,
        dtypes=_DTYPES,
        kv_cache_dtypes=_DTYPES,
        attention_arch={AttentionArch.MHA},
        attention_types={AttentionType.DECODER},
        sliding_window=False,
        attention_sinks=False,
        logit_soft_cap=False,
        non_causal=False,
        multimodal_prefix=False,
        per_head_kv_scales=False,
        decode_context_parallel=False,
        prefill_context_parallel=False,
        kv_layouts={KVLayout.NHD},
        kernel_block_sizes=ANY,
        # Behind `torch_native`: a short context costs as much as the longest.
        auto_priority=10,
    ),
    implementation="backend_caps_torch_native.padded:TorchPadded",
    adapters={"sglang": "torch_native_sglang:torch_padded"},
)
"""Attention over padded contexts, masked on the device: more work, and never a host value."""
