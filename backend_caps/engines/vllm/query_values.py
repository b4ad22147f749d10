"""Which of vLLM's values an answer has, whether vLLM is asked or its source is followed.

It imports nothing, as `query_script` loads it into the Python that has vLLM.
"""

VALUES = {
    "attention_config": ("backend", "backend_per_kind", "flash_attn_version"),
    "cache_config": ("block_size", "cache_dtype", "enable_prefix_caching", "mamba_block_size"),
    "compilation_config": ("mode", "cudagraph_mode", "splitting_ops", "cudagraph_capture_sizes"),
    "model_config": ("dtype", "max_model_len", "enforce_eager", "quantization"),
    "parallel_config": (
        "tensor_parallel_size",
        "pipeline_parallel_size",
        "data_parallel_size",
        "decode_context_parallel_size",
        "prefill_context_parallel_size",
        "enable_expert_parallel",
        "all2all_backend",
        "enable_dbo",
    ),
    "scheduler_config": (
        "async_scheduling",
        "max_num_seqs",
        "max_num_batched_tokens",
        "enable_chunked_prefill",
        "disable_chunked_mm_input",
    ),
    "speculative_config": ("method", "num_speculative_tokens", "attention_backend"),
}
"""By the configuration that holds them; a release may lack some."""
SIZES = ("block_size", "head_size", "dtype", "sliding_window", "num_kv_heads")
"""Those of a layer's part of the KV cache."""
