"""What SGLang 0.5.23's `sglang/srt` says of its attention backends, written by reading it."""

from __future__ import annotations

from tests.upstream.tables.rows import UNDECLARED, Class, Needs

RULES: tuple[str, ...] = ("two-batch-overlap", "ngram")
"""What forces a CPU mirror in `decide_needs_cpu_seq_lens`, `srt/managers/overlap_utils.py:26`."""

CHOICES: frozenset[str] = frozenset(
    {
        "triton",
        "torch_native",
        "flex_attention",
        "dsa",
        "nsa",
        "qsa",
        "dsv4",
        "compressed",
        "fa3",
        "fa4",
        "flashinfer",
        "llada2_cfg_flashinfer",
        "flashmla",
        "trtllm_mla",
        "cutedsl_mla",
        "tokenspeed_mla",
        "trtllm_mha",
        "hpc_ops",
        "minicpm_flashattn",
        "minicpm_flashinfer",
        "aiter",
        "wave",
        "intel_amx",
        "ascend",
        "intel_xpu",
    }
)
"""`ATTENTION_BACKEND_CHOICES`, `srt/arg_groups/choices.py:69`."""

REGISTERED: frozenset[str] = frozenset(
    {
        "flashinfer",
        "llada2_cfg_flashinfer",
        "trtllm_mla",
        "cutedsl_mla",
        "aiter",
        "wave",
        "ascend",
        "dsa",
        "qsa",
        "nsa",
        "dsv4",
        "triton",
        "torch_native",
        "flex_attention",
        "flashmla",
        "fa3",
        "fa4",
        "trtllm_mha",
        "hpc_ops",
        "intel_amx",
        "minicpm_flashattn",
        "minicpm_flashinfer",
        "intel_xpu",
    }
)
"""All in `srt/layers/attention/attention_registry.py`; no other file registers a name."""

_ATTN = "sglang/srt/layers/attention"
_MUSA = "sglang/srt/hardware_backend/musa/attention"
_NPU = "sglang/srt/hardware_backend/npu/attention"
_XPU = "sglang/srt/hardware_backend/xpu/attention"


def _declared(at: str, *, value: bool) -> Needs:
    return Needs(said="declared", value=value, at=at)


def _inherited(base: str, at: str, *, value: bool | None) -> Needs:
    return Needs(said="inherited", base=base, value=value, at=at)


def _conditional(condition: str, at: str, *, value: bool) -> Needs:
    return Needs(said="conditional", cases=((value, condition),), at=at)


def _every_phase(answer: str) -> dict[str, str]:
    return {"prefill": answer, "decode": answer, "verify": answer}


CLASSES: tuple[Class, ...] = (
    Class(
        name="MusaFlashAttentionBackend",
        at=f"{_MUSA}/flashattention_backend.py:214",
        needs=_inherited(
            "FlashAttentionBackend", f"{_ATTN}/flashattention_backend.py:221", value=None
        ),
        registered_as=("fa3",),
        draft_extend_of=("fa3", "fa4", "hybrid_linear_attn"),
        max_context_len="yes",
    ),
    Class(
        name="MusaFlashAttentionMultiStepBackend",
        at=f"{_MUSA}/flashattention_backend.py:929",
        needs=_inherited(
            "FlashAttentionMultiStepBackend", f"{_ATTN}/flashattention_backend.py:3480", value=False
        ),
        draft_decode_of=("fa3", "fa4", "hybrid_linear_attn"),
    ),
    Class(
        name="AscendAttnBackend",
        at=f"{_NPU}/ascend_backend.py:313",
        needs=_conditional(
            "not envs.SGLANG_NPU_ATTN_BACKEND_NEEDS_CPU_SEQ_LENS.get() and not self.use_fia",
            f"{_NPU}/ascend_backend.py:428",
            value=False,
        ),
        registered_as=("ascend",),
        draft_extend_of=("ascend",),
        max_context_len="yes",
    ),
    Class(
        name="AscendAttnMultiStepDraftBackend",
        at=f"{_NPU}/ascend_backend.py:3544",
        needs=_conditional(
            "any(b.needs_cpu_seq_lens for b in self.attn_backends)",
            f"{_NPU}/ascend_backend.py:3564",
            value=True,
        ),
        draft_decode_of=("ascend",),
    ),
    Class(
        name="DeepseekV4AscendAttnBackend",
        at=f"{_NPU}/ascend_dsv4_backend.py:914",
        needs=_inherited("AscendAttnBackend", f"{_NPU}/ascend_backend.py:428", value=None),
        registered_as=("dsv4",),
        # Through `ATTENTION_BACKENDS["dsv4"]`.
        draft_extend_of=("dsv4",),
        max_context_len="yes",
    ),
    Class(
        name="DeepseekV4AscendMultiStepDraftBackend",
        at=f"{_NPU}/ascend_dsv4_backend.py:2371",
        needs=UNDECLARED,
        draft_decode_of=("dsv4",),
    ),
    Class(
        name="AscendGDNAttnBackend",
        at=f"{_NPU}/ascend_gdn_backend.py:24",
        needs=UNDECLARED,
    ),
    Class(
        name="AscendMambaAttnBackendBase",
        at=f"{_NPU}/ascend_hybrid_linear_attn_backend.py:26",
        needs=UNDECLARED,
    ),
    Class(
        name="AscendMamba2AttnBackend",
        at=f"{_NPU}/ascend_hybrid_linear_attn_backend.py:216",
        needs=UNDECLARED,
    ),
    Class(
        name="AscendHybridLinearAttnBackend",
        at=f"{_NPU}/ascend_hybrid_linear_attn_backend.py:220",
        needs=_inherited(
            "HybridLinearAttnBackend", f"{_ATTN}/hybrid_linear_attn_backend.py:1201", value=None
        ),
        max_context_len="maybe",
    ),
    Class(
        name="AscendKDAAttnBackend",
        at=f"{_NPU}/ascend_kda_backend.py:91",
        needs=_inherited("KDAAttnBackend", f"{_ATTN}/linear/kda_backend.py:481", value=False),
    ),
    # Inside `AscendKDAHybridLinearAttnBackend.__new__`; that class itself has no base.
    Class(
        name="_AscendKDAHybrid",
        at=f"{_NPU}/ascend_kda_backend.py:487",
        needs=_inherited(
            "HybridLinearAttnBackend", f"{_ATTN}/hybrid_linear_attn_backend.py:1201", value=None
        ),
        max_context_len="maybe",
    ),
    Class(
        name="XpuGDNAttnBackend",
        at=f"{_XPU}/xpu_gdn_backend.py:9",
        needs=_inherited("GDNAttnBackend", f"{_ATTN}/linear/gdn_backend.py:518", value=False),
    ),
    Class(
        name="AiterAttnBackend",
        at=f"{_ATTN}/aiter_backend.py:343",
        needs=UNDECLARED,
        registered_as=("aiter",),
        draft_extend_of=("aiter",),
        max_context_len="yes",
        flags={"extend_dummy_seqs_capped_by_req_pool": True},
    ),
    Class(
        name="AiterMultiStepDraftBackend",
        at=f"{_ATTN}/aiter_backend.py:5083",
        needs=UNDECLARED,
        draft_decode_of=("aiter",),
        max_context_len="yes",
    ),
    Class(
        name="CuteDslMLABackend",
        at=f"{_ATTN}/cutedsl_mla_backend.py:59",
        needs=_inherited("TRTLLMMLABackend", f"{_ATTN}/trtllm_mla_backend.py:255", value=None),
        registered_as=("cutedsl_mla",),
        max_context_len="yes",
    ),
    Class(
        name="CuteDslMLAMultiStepDraftBackend",
        at=f"{_ATTN}/cutedsl_mla_backend.py:290",
        needs=_inherited(
            "TRTLLMMLAMultiStepDraftBackend", f"{_ATTN}/trtllm_mla_backend.py:1773", value=False
        ),
        draft_decode_of=("cutedsl_mla",),
        max_context_len="yes",
    ),
    Class(
        name="CuteDslMLAPrefillBackend",
        at=f"{_ATTN}/cutedsl_mla_backend.py:308",
        needs=_inherited("TRTLLMMLABackend", f"{_ATTN}/trtllm_mla_backend.py:255", value=None),
        registered_as=("trtllm_mla",),
        max_context_len="yes",
    ),
    Class(
        name="DeepseekV4AttnBackend",
        at=f"{_ATTN}/deepseek_v4_backend.py:1207",
        needs=_conditional(
            "not spec_alg.is_dspark() and (not _is_cuda or self.online_c128_mtp.enabled())",
            f"{_ATTN}/deepseek_v4_backend.py:1363",
            value=True,
        ),
        registered_as=("dsv4",),
        draft_extend_of=("dsv4",),
        max_context_len="yes",
        shared_reads_end={"prefill": "unknown", "decode": "in_replay", "verify": "depends"},
        flags={
            "use_captured_forward_metadata_for_breakable_cuda_graph": True,
            "supports_prefill_cuda_graph_max_context_size": True,
            "supports_ragged_verify_graph": True,
            "folds_encoder_swa_replay": True,
        },
    ),
    Class(
        name="DeepseekV4MultiStepBackend",
        at=f"{_ATTN}/deepseek_v4_backend.py:4966",
        needs=_inherited(
            "DeepseekV4AttnBackend", f"{_ATTN}/deepseek_v4_backend.py:1363", value=None
        ),
        draft_decode_of=("dsv4",),
        max_context_len="yes",
    ),
    Class(
        name="DeepseekV4HipRadixBackend",
        at=f"{_ATTN}/deepseek_v4_backend_hip_radix.py:874",
        needs=_conditional(
            "envs.SGLANG_OPT_USE_ONLINE_COMPRESS.get()",
            f"{_ATTN}/deepseek_v4_backend_hip_radix.py:1006",
            value=True,
        ),
        registered_as=("dsv4",),
        draft_extend_of=("dsv4",),
        max_context_len="yes",
        flags={
            "tbo_supports_cuda_graph": False,
            "supports_prefill_cuda_graph_max_context_size": True,
            "supports_ragged_verify_graph": True,
            "use_captured_forward_metadata_for_breakable_cuda_graph": True,
            "prefer_eager_mixed_prefill_under_dp_attention": True,
        },
    ),
    Class(
        name="DeepseekV4MultiStepBackend",
        at=f"{_ATTN}/deepseek_v4_backend_hip_radix.py:3667",
        needs=_inherited(
            "DeepseekV4HipRadixBackend",
            f"{_ATTN}/deepseek_v4_backend_hip_radix.py:1006",
            value=None,
        ),
        draft_decode_of=("dsv4",),
        max_context_len="yes",
    ),
    Class(
        name="DeepseekV4MegaAttnBackend",
        at=f"{_ATTN}/deepseek_v4_mega_backend.py:43",
        needs=_inherited(
            "DeepseekV4AttnBackend", f"{_ATTN}/deepseek_v4_backend.py:1363", value=None
        ),
        registered_as=("dsv4",),
        draft_extend_of=("dsv4",),
        max_context_len="yes",
    ),
    Class(
        name="DeepseekV4TrtllmAttnBackend",
        at=f"{_ATTN}/deepseek_v4_trtllm_backend.py:142",
        needs=_inherited(
            "DeepseekV4AttnBackend", f"{_ATTN}/deepseek_v4_backend.py:1363", value=None
        ),
        registered_as=("dsv4",),
        draft_extend_of=("dsv4",),
        max_context_len="yes",
    ),
    Class(
        name="DeepseekV4TrtllmMultiStepBackend",
        at=f"{_ATTN}/deepseek_v4_trtllm_backend.py:521",
        needs=_inherited(
            "DeepseekV4AttnBackend", f"{_ATTN}/deepseek_v4_backend.py:1363", value=None
        ),
        draft_decode_of=("dsv4",),
        max_context_len="yes",
    ),
    Class(
        name="DotsSWAMLAAttnBackend",
        at=f"{_ATTN}/dots_hybrid_backend.py:135",
        needs=_declared(f"{_ATTN}/dots_hybrid_backend.py:144", value=True),
        shared_reads_end={"prefill": "unknown", "decode": "depends", "verify": "depends"},
    ),
    Class(
        name="DotsHybridAttnBackend",
        at=f"{_ATTN}/dots_hybrid_backend.py:400",
        needs=_declared(f"{_ATTN}/dots_hybrid_backend.py:414", value=True),
    ),
    Class(
        name="DeepseekSparseAttnBackend",
        at=f"{_ATTN}/dsa_backend.py:492",
        needs=_declared(f"{_ATTN}/dsa_backend.py:505", value=False),
        registered_as=("dsa", "nsa"),
        draft_extend_of=("dsa", "nsa"),
        max_context_len="yes",
        flags={"extend_dummy_seqs_capped_by_req_pool": True},
    ),
    Class(
        name="DeepseekSparseAttnMultiStepBackend",
        at=f"{_ATTN}/dsa_backend.py:4170",
        needs=_declared(f"{_ATTN}/dsa_backend.py:4173", value=False),
        draft_decode_of=("dsa", "nsa"),
    ),
    Class(
        name="FlashAttentionBackend",
        at=f"{_ATTN}/flashattention_backend.py:132",
        needs=_conditional(
            "self._kv_shard_pool is not None", f"{_ATTN}/flashattention_backend.py:221", value=True
        ),
        registered_as=("fa3", "fa4"),
        draft_extend_of=("fa3", "fa4", "hybrid_linear_attn"),
        max_context_len="yes",
        flags={
            "supports_ragged_verify_graph": True,
            "supports_full_cuda_graph_chunked_prefix": True,
        },
    ),
    Class(
        name="FlashAttentionMultiStepBackend",
        at=f"{_ATTN}/flashattention_backend.py:3477",
        needs=_declared(f"{_ATTN}/flashattention_backend.py:3480", value=False),
        draft_decode_of=("fa3", "fa4", "hybrid_linear_attn"),
    ),
    Class(
        name="FlashInferAttnBackend",
        at=f"{_ATTN}/flashinfer_backend.py:319",
        needs=UNDECLARED,
        registered_as=("flashinfer",),
        draft_extend_of=("flashinfer",),
        max_context_len="yes",
        flags={"extend_dummy_seqs_capped_by_req_pool": True},
    ),
    Class(
        name="FlashInferMultiStepDraftBackend",
        at=f"{_ATTN}/flashinfer_backend.py:2442",
        needs=UNDECLARED,
        draft_decode_of=("flashinfer",),
        max_context_len="yes",
    ),
    Class(
        name="FlashInferMLAAttnBackend",
        at=f"{_ATTN}/flashinfer_mla_backend.py:212",
        needs=UNDECLARED,
        registered_as=("flashinfer",),
        draft_extend_of=("flashinfer",),
        max_context_len="yes",
        flags={
            "extend_dummy_seqs_capped_by_req_pool": True,
            "supports_ragged_verify_graph": True,
        },
    ),
    Class(
        name="FlashInferMLAMultiStepDraftBackend",
        at=f"{_ATTN}/flashinfer_mla_backend.py:1184",
        needs=UNDECLARED,
        draft_decode_of=("flashinfer",),
        max_context_len="yes",
    ),
    Class(
        name="FlashMLABackend",
        at=f"{_ATTN}/flashmla_backend.py:64",
        needs=_declared(f"{_ATTN}/flashmla_backend.py:69", value=False),
        registered_as=("flashmla",),
        draft_extend_of=("flashmla",),
        max_context_len="yes",
    ),
    Class(
        name="FlashMLAMultiStepDraftBackend",
        at=f"{_ATTN}/flashmla_backend.py:598",
        needs=_declared(f"{_ATTN}/flashmla_backend.py:600", value=False),
        draft_decode_of=("flashmla",),
    ),
    Class(
        name="HPCOpsAttnBackend",
        at=f"{_ATTN}/hpc_ops_backend.py:122",
        needs=_declared(f"{_ATTN}/hpc_ops_backend.py:127", value=False),
        registered_as=("hpc_ops",),
        max_context_len="yes",
    ),
    Class(
        name="HybridAttnBackend",
        at=f"{_ATTN}/hybrid_attn_backend.py:25",
        needs=_conditional(
            "decode_backend.needs_cpu_seq_lens"
            " or (self.spec_attn_is_prefill and prefill_backend.needs_cpu_seq_lens)",
            f"{_ATTN}/hybrid_attn_backend.py:47",
            value=True,
        ),
        max_context_len="yes",
        shared_reads_end=_every_phase("depends"),
    ),
    Class(
        name="MambaAttnBackendBase",
        at=f"{_ATTN}/hybrid_linear_attn_backend.py:59",
        needs=UNDECLARED,
    ),
    Class(
        name="Mamba2AttnBackend",
        at=f"{_ATTN}/hybrid_linear_attn_backend.py:1066",
        needs=_declared(f"{_ATTN}/hybrid_linear_attn_backend.py:1069", value=False),
    ),
    Class(
        name="HybridLinearAttnBackend",
        at=f"{_ATTN}/hybrid_linear_attn_backend.py:1184",
        needs=_conditional(
            "full_attn_backend.needs_cpu_seq_lens or linear_attn_backend.needs_cpu_seq_lens",
            f"{_ATTN}/hybrid_linear_attn_backend.py:1201",
            value=True,
        ),
        max_context_len="maybe",
        shared_reads_end=_every_phase("depends"),
    ),
    Class(
        name="ShortConvHybridAttnBackend",
        at=f"{_ATTN}/hybrid_linear_attn_backend.py:1716",
        needs=_inherited(
            "HybridLinearAttnBackend", f"{_ATTN}/hybrid_linear_attn_backend.py:1201", value=None
        ),
        max_context_len="maybe",
    ),
    Class(
        name="IntelAMXAttnBackend",
        at=f"{_ATTN}/intel_amx_backend.py:19",
        needs=UNDECLARED,
        registered_as=("intel_amx",),
        draft_extend_of=("hybrid_linear_attn", "intel_amx"),
        max_context_len="yes",
        flags={"support_triton": False},
    ),
    Class(
        name="IntelAMXMultiStepDraftBackend",
        at=f"{_ATTN}/intel_amx_backend.py:426",
        needs=UNDECLARED,
        draft_decode_of=("hybrid_linear_attn", "intel_amx"),
    ),
    Class(
        name="GDNAttnBackend",
        at=f"{_ATTN}/linear/gdn_backend.py:515",
        needs=_declared(f"{_ATTN}/linear/gdn_backend.py:518", value=False),
    ),
    Class(
        name="InklingShortConvAttnBackend",
        at=f"{_ATTN}/linear/inkling_sconv_backend.py:97",
        needs=_inherited(
            "ShortConvAttnBackend", f"{_ATTN}/linear/short_conv_backend.py:86", value=False
        ),
    ),
    Class(
        name="InklingShortConvHybridAttnBackend",
        at=f"{_ATTN}/linear/inkling_sconv_backend.py:599",
        needs=_inherited(
            "HybridLinearAttnBackend", f"{_ATTN}/hybrid_linear_attn_backend.py:1201", value=None
        ),
        max_context_len="maybe",
    ),
    Class(
        name="KDAAttnBackend",
        at=f"{_ATTN}/linear/kda_backend.py:472",
        needs=_declared(f"{_ATTN}/linear/kda_backend.py:481", value=False),
        flags={"supports_ragged_verify_graph": True},
    ),
    Class(
        name="LightningAttentionBackend",
        at=f"{_ATTN}/linear/lightning_backend.py:66",
        needs=UNDECLARED,
        max_context_len="yes",
    ),
    Class(
        name="ShortConvAttnBackend",
        at=f"{_ATTN}/linear/short_conv_backend.py:80",
        needs=_declared(f"{_ATTN}/linear/short_conv_backend.py:86", value=False),
    ),
    Class(
        name="LLaDA2CFGFlashInferAttnBackend",
        at=f"{_ATTN}/llada2_cfg_flashinfer_backend.py:40",
        needs=UNDECLARED,
        registered_as=("llada2_cfg_flashinfer",),
        max_context_len="yes",
    ),
    Class(
        name="MiniCPMSparseBackend",
        at=f"{_ATTN}/minicpm/backend.py:123",
        needs=UNDECLARED,
        registered_as=("minicpm_flashattn", "minicpm_flashinfer"),
        max_context_len="yes",
    ),
    Class(
        name="MiniMaxSparseAttnBackend",
        at=f"{_ATTN}/minimax_sparse_backend.py:115",
        needs=UNDECLARED,
        max_context_len="yes",
    ),
    Class(
        name="MiniMaxHybridAttnBackend",
        at=f"{_ATTN}/minimax_sparse_backend.py:1859",
        needs=UNDECLARED,
        shared_reads_end=_every_phase("depends"),
    ),
    Class(
        name="MiniMaxSparseNvfp4AttnBackend",
        at=f"{_ATTN}/minimax_sparse_nvfp4_backend.py:28",
        needs=_declared(f"{_ATTN}/minimax_sparse_nvfp4_backend.py:31", value=False),
        max_context_len="yes",
        shared_reads_end=_every_phase("pre_replay"),
        flags={"skips_prefill_metadata_on_idle_dp_rank": True},
    ),
    Class(
        name="QwenSparseAttnBackend",
        at=f"{_ATTN}/qwen_sparse_attn_backend.py:218",
        needs=_declared(f"{_ATTN}/qwen_sparse_attn_backend.py:223", value=False),
        registered_as=("qsa",),
        draft_extend_of=("qsa",),
        # By `int(getattr(..., 0))`: it can be 0, never None.
        max_context_len="yes",
    ),
    Class(
        name="QwenSparseMultiStepDraftBackend",
        at=f"{_ATTN}/qwen_sparse_attn_backend.py:2029",
        needs=_declared(f"{_ATTN}/qwen_sparse_attn_backend.py:2032", value=False),
        draft_decode_of=("qsa",),
    ),
    # Its `__getattr__` finds `max_context_len` on the primary, but no statement sets it here.
    Class(
        name="TboAttnBackend",
        at=f"{_ATTN}/tbo_backend.py:17",
        needs=UNDECLARED,
        shared_reads_end=_every_phase("depends"),
    ),
    Class(
        name="TorchFlexAttnBackend",
        at=f"{_ATTN}/torch_flex_backend.py:17",
        needs=UNDECLARED,
        registered_as=("flex_attention",),
        flags={"support_triton": False},
    ),
    Class(
        name="TorchNativeAttnBackend",
        at=f"{_ATTN}/torch_native_backend.py:19",
        needs=UNDECLARED,
        registered_as=("torch_native",),
        flags={"support_triton": False},
    ),
    Class(
        name="TritonAttnBackend",
        at=f"{_ATTN}/triton_backend.py:150",
        needs=_declared(f"{_ATTN}/triton_backend.py:153", value=False),
        registered_as=("fa4", "triton"),
        draft_extend_of=("hybrid_linear_attn", "triton"),
        max_context_len="yes",
        flags={"extend_dummy_seqs_capped_by_req_pool": True},
    ),
    Class(
        name="TritonMultiStepDraftBackend",
        at=f"{_ATTN}/triton_backend.py:2504",
        needs=_declared(f"{_ATTN}/triton_backend.py:2510", value=False),
        draft_decode_of=("hybrid_linear_attn", "triton"),
        max_context_len="yes",
    ),
    Class(
        name="TRTLLMHAAttnBackend",
        at=f"{_ATTN}/trtllm_mha_backend.py:176",
        needs=_declared(f"{_ATTN}/trtllm_mha_backend.py:182", value=False),
        registered_as=("trtllm_mha",),
        draft_extend_of=("trtllm_mha",),
        max_context_len="yes",
        shared_reads_end={"prefill": "pre_replay", "decode": "in_replay", "verify": "in_replay"},
        flags={"supports_ragged_verify_graph": True},
    ),
    Class(
        name="TRTLLMHAAttnMultiStepDraftBackend",
        at=f"{_ATTN}/trtllm_mha_backend.py:2038",
        needs=_declared(f"{_ATTN}/trtllm_mha_backend.py:2043", value=False),
        draft_decode_of=("trtllm_mha",),
        max_context_len="yes",
    ),
    Class(
        name="TRTLLMMLABackend",
        at=f"{_ATTN}/trtllm_mla_backend.py:199",
        needs=_conditional(
            "self._kv_shard_pool is not None", f"{_ATTN}/trtllm_mla_backend.py:255", value=True
        ),
        registered_as=("trtllm_mla",),
        draft_extend_of=("cutedsl_mla", "trtllm_mla"),
        max_context_len="yes",
        flags={"supports_ragged_verify_graph": True},
    ),
    Class(
        name="TRTLLMMLAMultiStepDraftBackend",
        at=f"{_ATTN}/trtllm_mla_backend.py:1768",
        needs=_declared(f"{_ATTN}/trtllm_mla_backend.py:1773", value=False),
        draft_decode_of=("trtllm_mla",),
        max_context_len="yes",
    ),
    Class(
        name="WaveAttnBackend",
        at=f"{_ATTN}/wave_backend.py:44",
        needs=UNDECLARED,
        registered_as=("wave",),
        max_context_len="yes",
        flags={"extend_dummy_seqs_capped_by_req_pool": True},
    ),
    Class(
        name="XPUAttentionBackend",
        at=f"{_ATTN}/xpu_backend.py:128",
        needs=UNDECLARED,
        registered_as=("intel_xpu",),
        draft_extend_of=("intel_xpu",),
        max_context_len="yes",
    ),
    Class(
        name="XPUMultiStepDraftBackend",
        at=f"{_ATTN}/xpu_backend.py:1999",
        needs=_declared(f"{_ATTN}/xpu_backend.py:2002", value=False),
        draft_decode_of=("intel_xpu",),
        max_context_len="yes",
    ),
)
