"""What `acme_flash` declares. Data only: importing this loads no torch."""

from __future__ import annotations

from backend_caps import (
    ANY,
    AttentionArch,
    BatchKind,
    Capabilities,
    Declaration,
    GraphMetadata,
    Role,
    SharedReadsEnd,
)

ACME_FLASH = Declaration(
    capabilities=Capabilities(
        needs_cpu_seq_lens=False,
        max_context_len_known=True,  # the width of `req_to_token`
        graph_replay={BatchKind.SINGLE_TOKEN_DECODE, BatchKind.UNIFORM_BATCH},
        graph_metadata=GraphMetadata.IN_GRAPH,
        sync_free_prepare=True,
        shared_reads_end=SharedReadsEnd.POST_REPLAY,
        two_batch_overlap=True,
        roles=set(Role),
        max_speculative_topk=1,
        page_sizes=ANY,
        head_sizes=ANY,
        devices=ANY,
        compute_capability=ANY,
        dtypes={"float32"},
        kv_cache_dtypes={"float32"},
        attention_arch={AttentionArch.MHA},
    ),
    implementation="acme_flash.backend:AcmeFlash",
)
