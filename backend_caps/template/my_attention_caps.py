"""What `my_attention` declares. Data only: importing this loads no torch.

It is a module of its own: inside the package, it would run what loads torch.
Whatever is left out counts as its worst value. Say no more than the tests hold to be true.
"""

from __future__ import annotations

from backend_caps import (
    ANY,
    AttentionArch,
    AttentionType,
    Capabilities,
    Declaration,
    GraphMetadata,
    HostSeqLens,
    KVLayout,
    Role,
    SharedReadsEnd,
)

# What the tests compare with the reference. FP8 caches are left out: their scales are not applied.
_DTYPES = frozenset({"bfloat16", "float16", "float32"})

DECLARATION = Declaration(
    capabilities=Capabilities(
        # Slices every context by `seq_lens_cpu`. In an overlapped speculative step these lengths
        # cost a copy to the host, and a wait for it.
        host_seq_lens=HostSeqLens.EXACT,
        # The slices are host values: a graph would keep those of its capture.
        graph_replay=frozenset(),
        graph_metadata=GraphMetadata.HOST,
        # Preparing a forward asks the device for nothing: the lengths are in host memory already.
        sync_free_prepare=True,
        # Without a replay there is no earlier point to name than the end of the forward.
        shared_reads_end=SharedReadsEnd.UNKNOWN,
        # The only state is one forward's metadata, and each half batch has an object of its own.
        two_batch_overlap=True,
        # Nothing is added up in an order that differs from run to run.
        deterministic=True,
        # Each request is computed by itself, in the same shapes whatever is batched with it.
        batch_invariant=True,
        # Nothing is sized by the longest context.
        max_context_len_known=False,
        # A draft step is a decode; verify brings several causal tokens a request.
        roles=frozenset(Role),
        # Each token sees all before it: a chain of drafts. A tree of them is refused.
        max_speculative_topk=1,
        # The page table names the slot of every single token, so pages are never seen.
        page_sizes=ANY,
        # From here on what `scaled_dot_product_attention` takes.
        head_sizes=ANY,
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
        # No cache is quantized by head, and no output is joined with another rank's.
        per_head_kv_scales=False,
        decode_context_parallel=False,
        prefill_context_parallel=False,
        # A buffer for each layer, with a row for each token's heads, and no blocks in it.
        kv_layouts={KVLayout.NHD},
        kernel_block_sizes=ANY,
        # It is slow: where a flag says `auto`, whatever else fits goes before it.
        auto_priority=0,
    ),
    implementation="my_attention.backend:MyAttentionBackend",
)
