"""Which of vLLM's values an answer has, whether vLLM is asked or its source is followed.

It imports nothing, as `query_script` loads it into the Python that has vLLM.
"""

VALUES = {
    "attention_config": ("backend", "backend_per_kind", "flash_attn_version"),
    "cache_config": (
        "block_size",
        "cache_dtype",
        "enable_prefix_caching",
        "kv_cache_layout",
        "mamba_block_size",
    ),
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
SECOND_RUNNER = "use_v2_model_runner"
"""The name of the answer, and of the configuration's attribute, that says which runner runs."""
TENSOR_PARALLEL = "tensor_parallel_size"
SELECTORS = ("vllm.v1.attention.selector", "vllm.attention.selector")
"""The module in which layers ask for a backend, and where it is up to 0.13."""
SELECT = "_cached_get_attn_backend"
"""Its function that each layer calls, and that asks the platform what it was not asked before."""
QUESTION = ("backend", "attn_selector_config", "num_heads")
"""The arguments of that function; until 0.11 the second one is its fields."""
_V1, _V2 = "vllm.v1.spec_decode", "vllm.v1.worker.gpu.spec_decode"
DRAFTERS = {
    False: {
        "uses_draft_model": f"{_V1}.draft_model.DraftModelProposer",
        "use_gemma4_mtp": f"{_V1}.gemma4.Gemma4Proposer",
        "use_step3p5_mtp": f"{_V1}.step3p5.Step3p5MTPProposer",
        "use_dflash": f"{_V1}.dflash.DFlashProposer",
        "use_eagle": f"{_V1}.eagle.EagleProposer",
    },
    True: {
        "uses_draft_model": f"{_V2}.standalone_ar.speculator.StandaloneARSpeculator",
        "use_gemma4_mtp": f"{_V2}.gemma4.speculator.Gemma4Speculator",
        "use_dflash": f"{_V2}.dflash.speculator.DFlashSpeculator",
        "use_eagle": f"{_V2}.eagle.speculator.EagleSpeculator",
    },
}
"""The classes that load a draft's model, by whether the second model runner runs, and by the method
of the speculative configuration that is true for them; a release may lack some."""
LOADERS = ("load_draft_model", "load_model")
"""The methods that load it; the first one that a class has, with no model of the target."""
