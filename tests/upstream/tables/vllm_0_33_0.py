"""What a person finds in the source of vLLM 0.33.0's backend registry; written by reading it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class Graph:
    """What the source says of CUDA-graph support for one metadata builder."""

    said: Literal["declared", "inherited", "conditional", "undeclared"]
    level: str | None = None
    """Member of `AttentionCGSupport`; None where it is conditional or undeclared."""
    at: str | None = None
    """`file:line` of the statement that decides, or of the `def`; None where undeclared."""
    base: str | None = None
    """The builder it is inherited from."""
    cases: tuple[tuple[str, str], ...] = ()
    """Of a conditional one: each level and its condition, in the order of the source.

    The first that holds decides; "otherwise" is what is left. A nested return has the tests it
    stands under, joined by `and`. Empty where a return calls another function.
    """


UNDECLARED = Graph(said="undeclared")


@dataclass(frozen=True, kw_only=True)
class Row:
    """One member of one of vLLM's registries of attention backends."""

    name: str
    registry: Literal["attention", "mamba"]
    path: str | None
    """The dotted class path; None where the member's value is None or empty."""
    at: str | None = None
    """`file:line` of the `class` statement; None where there is no such class."""
    builder: str | None = None
    graph: Graph = UNDECLARED
    dtypes: tuple[str, ...] | None = None
    """None here and in the next four: only the root's default."""
    kv_cache_dtypes: tuple[str, ...] | None = None
    head_sizes: tuple[int, ...] | str | None = None
    block_sizes: tuple[int | str, ...] | str | None = None
    compute_capability: str | None = None
    is_mla: bool | Literal["depends"] = False
    is_sparse: bool | Literal["depends"] = False
    is_ssm: bool | Literal["depends"] = False
    inherits: tuple[str, ...] = ()
    """Of the five: those that a parent other than the root states, not the class itself."""


ROWS: tuple[Row, ...] = (
    Row(
        name="FLASH_ATTN",
        registry="attention",
        path="vllm.v1.attention.backends.flash_attn.FlashAttentionBackend",
        at="vllm/v1/attention/backends/flash_attn.py:286",
        builder="FlashAttentionMetadataBuilder",
        graph=Graph(
            said="conditional",
            at="vllm/v1/attention/backends/flash_attn.py:619",
            cases=(
                ("ALWAYS", "get_flash_attn_version() in (3, 4) or current_platform.is_xpu()"),
                ("UNIFORM_BATCH", "otherwise"),
            ),
        ),
        dtypes=("float16", "bfloat16"),
        kv_cache_dtypes=("auto", "float16", "bfloat16", "fp8", "fp8_e4m3"),
        head_sizes="depends",
        block_sizes="depends",
        compute_capability="capability >= DeviceCapability(8, 0)",
    ),
    Row(
        name="FLASH_ATTN_DIFFKV",
        registry="attention",
        path="vllm.v1.attention.backends.flash_attn_diffkv.FlashAttentionDiffKVBackend",
        at="vllm/v1/attention/backends/flash_attn_diffkv.py:34",
        builder="FlashAttentionMetadataBuilder",
        graph=Graph(
            said="conditional",
            at="vllm/v1/attention/backends/flash_attn.py:619",
            cases=(
                ("ALWAYS", "get_flash_attn_version() in (3, 4) or current_platform.is_xpu()"),
                ("UNIFORM_BATCH", "otherwise"),
            ),
        ),
        dtypes=("float16", "bfloat16"),
        kv_cache_dtypes=("auto", "float16", "bfloat16", "fp8", "fp8_e4m3"),
        head_sizes="depends",
        block_sizes="depends",
        compute_capability="capability >= DeviceCapability(8, 0)",
        inherits=("dtypes", "kv_cache_dtypes", "head_sizes", "block_sizes", "compute_capability"),
    ),
    Row(
        name="TRITON_ATTN",
        registry="attention",
        path="vllm.v1.attention.backends.triton_attn.TritonAttentionBackend",
        at="vllm/v1/attention/backends/triton_attn.py:306",
        builder="TritonAttentionMetadataBuilder",
        graph=Graph(
            said="declared",
            level="ALWAYS",
            at="vllm/v1/attention/backends/triton_attn.py:97",
        ),
        dtypes=("float16", "bfloat16", "float32"),
        kv_cache_dtypes=(
            "auto",
            "float16",
            "bfloat16",
            "fp8",
            "fp8_e4m3",
            "fp8_e5m2",
            "int4_per_token_head",
            "int8_per_token_head",
            "fp8_per_token_head",
        ),
        head_sizes="depends",
        block_sizes=("multiple of 16",),
        compute_capability="True",
    ),
    Row(
        name="TRITON_ATTN_DIFFKV",
        registry="attention",
        path="vllm.v1.attention.backends.triton_attn_diffkv.TritonAttentionDiffKVBackend",
        at="vllm/v1/attention/backends/triton_attn_diffkv.py:68",
        builder="TritonAttentionDiffKVMetadataBuilder",
        graph=Graph(
            said="inherited",
            level="ALWAYS",
            at="vllm/v1/attention/backends/triton_attn.py:97",
            base="TritonAttentionMetadataBuilder",
        ),
        dtypes=("float16", "bfloat16", "float32"),
        kv_cache_dtypes=("auto", "bfloat16", "fp8", "fp8_e4m3"),
        head_sizes="depends",
        block_sizes=("multiple of 16",),
        compute_capability="True",
        inherits=("dtypes", "block_sizes", "compute_capability"),
    ),
    # The path is a name bound to a call of `create_composite_attention_backend`; `at` is the
    # `class` statement inside that function, whose `supported_dtypes` are the root's (it
    # overrides `supports_dtype` and `supports_kv_cache_dtype` instead).
    Row(
        name="TRITON_FLASH_ATTN",
        registry="attention",
        path="vllm.v1.attention.backends.triton_flash_attn.TritonFlashAttentionBackend",
        at="vllm/v1/attention/backends/composite.py:360",
        builder="CompositeAttentionMetadataBuilder",
        graph=Graph(said="conditional", at="vllm/v1/attention/backends/composite.py:301"),
        head_sizes="depends",
        block_sizes="depends",
        compute_capability=(
            "(device_major is None or capability.major == device_major)"
            " and all(backend.supports_compute_capability(capability)"
            " for backend in (general_backend, causal_backend))"
        ),
    ),
    Row(
        name="ROCM_ATTN",
        registry="attention",
        path="vllm.v1.attention.backends.rocm_attn.RocmAttentionBackend",
        at="vllm/v1/attention/backends/rocm_attn.py:137",
        builder="RocmAttentionMetadataBuilder",
        graph=Graph(
            said="declared",
            level="ALWAYS",
            at="vllm/v1/attention/backends/rocm_attn.py:74",
        ),
        dtypes=("float16", "bfloat16", "float32"),
        kv_cache_dtypes=("auto", "float16", "bfloat16", "fp8", "fp8_e4m3", "fp8_e5m2"),
        head_sizes=(32, 64, 80, 96, 128, 160, 192, 224, 256),
        block_sizes=("multiple of 16",),
    ),
    Row(
        name="ROCM_SEGMENTED_ATTN",
        registry="attention",
        path="vllm.v1.attention.backends.rocm_segmented_attn.RocmSegmentedAttentionBackend",
        at="vllm/v1/attention/backends/rocm_segmented_attn.py:66",
        builder="RocmSegmentedAttentionMetadataBuilder",
        graph=Graph(
            said="inherited",
            level="ALWAYS",
            at="vllm/v1/attention/backends/rocm_attn.py:74",
            base="RocmAttentionMetadataBuilder",
        ),
        dtypes=("float16", "bfloat16"),
        kv_cache_dtypes=("auto", "float16", "bfloat16", "fp8", "fp8_e4m3"),
        head_sizes=(64, 128, 256),
        block_sizes=("multiple of 16",),
        inherits=("block_sizes",),
    ),
    Row(
        name="ROCM_AITER_MLA",
        registry="attention",
        path="vllm.v1.attention.backends.mla.rocm_aiter_mla.AiterMLABackend",
        at="vllm/v1/attention/backends/mla/rocm_aiter_mla.py:498",
        builder="AiterMLAMetadataBuilder",
        graph=Graph(
            said="declared",
            level="UNIFORM_BATCH",
            at="vllm/v1/attention/backends/mla/rocm_aiter_mla.py:698",
        ),
        dtypes=("float16", "bfloat16"),
        kv_cache_dtypes=("auto", "float16", "bfloat16", "fp8", "fp8_e4m3", "fp8_e5m2"),
        head_sizes="any",
        block_sizes=("multiple of 1",),
        is_mla=True,
    ),
    Row(
        name="ROCM_AITER_TRITON_MLA",
        registry="attention",
        path="vllm.v1.attention.backends.mla.aiter_triton_mla.AiterTritonMLABackend",
        at="vllm/v1/attention/backends/mla/aiter_triton_mla.py:6",
        builder="AiterMLAMetadataBuilder",
        graph=Graph(
            said="declared",
            level="UNIFORM_BATCH",
            at="vllm/v1/attention/backends/mla/rocm_aiter_mla.py:698",
        ),
        dtypes=("float16", "bfloat16"),
        kv_cache_dtypes=("auto", "float16", "bfloat16", "fp8", "fp8_e4m3", "fp8_e5m2"),
        head_sizes="any",
        block_sizes=("multiple of 1",),
        is_mla=True,
        inherits=("dtypes", "kv_cache_dtypes", "head_sizes", "block_sizes"),
    ),
    Row(
        name="ROCM_AITER_FA",
        registry="attention",
        path="vllm.v1.attention.backends.rocm_aiter_fa.AiterFlashAttentionBackend",
        at="vllm/v1/attention/backends/rocm_aiter_fa.py:886",
        builder="AiterFlashAttentionMetadataBuilder",
        graph=Graph(
            said="declared",
            level="UNIFORM_BATCH",
            at="vllm/v1/attention/backends/rocm_aiter_fa.py:458",
        ),
        dtypes=("float16", "bfloat16"),
        kv_cache_dtypes=("auto", "float16", "bfloat16", "fp8", "fp8_e4m3", "fp8_e5m2"),
        head_sizes=(64, 128, 256),
        block_sizes=(16, 32),
        compute_capability="get_cdna_version() > 2",
    ),
    Row(
        name="ROCM_AITER_MLA_SPARSE",
        registry="attention",
        path="vllm.v1.attention.backends.mla.rocm_aiter_mla_sparse.ROCMAiterMLASparseBackend",
        at="vllm/v1/attention/backends/mla/rocm_aiter_mla_sparse.py:350",
        builder="ROCMAiterMLASparseMetadataBuilder",
        graph=Graph(
            said="declared",
            level="UNIFORM_BATCH",
            at="vllm/v1/attention/backends/mla/rocm_aiter_mla_sparse.py:441",
        ),
        dtypes=("float16", "bfloat16"),
        kv_cache_dtypes=("auto", "float16", "bfloat16", "fp8", "fp8_e4m3"),
        block_sizes=(1, "multiple of 16"),
        is_mla=True,
        is_sparse=True,
    ),
    Row(
        name="XPU_MLA_SPARSE",
        registry="attention",
        path="vllm.v1.attention.backends.mla.xpu_mla_sparse.XPUMLASparseBackend",
        at="vllm/v1/attention/backends/mla/xpu_mla_sparse.py:42",
        builder="XPUMLASparseMetadataBuilder",
        graph=Graph(
            said="declared",
            level="NEVER",
            at="vllm/v1/attention/backends/mla/xpu_mla_sparse.py:119",
        ),
        dtypes=("float16", "bfloat16"),
        kv_cache_dtypes=("auto", "float16", "bfloat16"),
        head_sizes=(576,),
        is_mla=True,
        is_sparse=True,
    ),
    Row(name="TORCH_SDPA", registry="attention", path=None),
    Row(
        name="FLASHINFER",
        registry="attention",
        path="vllm.v1.attention.backends.flashinfer.FlashInferBackend",
        at="vllm/v1/attention/backends/flashinfer.py:554",
        builder="FlashInferMetadataBuilder",
        graph=Graph(
            said="conditional",
            at="vllm/v1/attention/backends/flashinfer.py:1176",
            cases=(
                (
                    "UNIFORM_SINGLE_TOKEN_DECODE",
                    "vllm_config.parallel_config.decode_context_parallel_size > 1",
                ),
                (
                    "UNIFORM_BATCH",
                    (
                        "_use_fa2_native_decode()"
                        " and (kv_specs and not vllm_config.attention_config.use_non_causal)"
                    ),
                ),
                ("UNIFORM_SINGLE_TOKEN_DECODE", "_use_fa2_native_decode()"),
                (
                    "UNIFORM_BATCH",
                    "has_uniform_batch_support and (not use_non_causal or is_xqa_arch)",
                ),
                ("UNIFORM_SINGLE_TOKEN_DECODE", "otherwise"),
            ),
        ),
        dtypes=("float16", "bfloat16"),
        kv_cache_dtypes=(
            "auto",
            "float16",
            "bfloat16",
            "fp8",
            "fp8_e4m3",
            "fp8_e5m2",
            "nvfp4",
            "nvfp4_4over6",
        ),
        head_sizes=(64, 128, 256, 512),
        block_sizes="depends",
        compute_capability=(
            "capability >= DeviceCapability(8, 0) and capability <= DeviceCapability(12, 1)"
        ),
    ),
    # As TRITON_FLASH_ATTN.
    Row(
        name="TRITON_FLASHINFER",
        registry="attention",
        path="vllm.v1.attention.backends.triton_flashinfer.TritonFlashInferBackend",
        at="vllm/v1/attention/backends/composite.py:360",
        builder="CompositeAttentionMetadataBuilder",
        graph=Graph(said="conditional", at="vllm/v1/attention/backends/composite.py:301"),
        head_sizes="depends",
        block_sizes="depends",
        compute_capability=(
            "(device_major is None or capability.major == device_major)"
            " and all(backend.supports_compute_capability(capability)"
            " for backend in (general_backend, causal_backend))"
        ),
    ),
    Row(
        name="FLASHINFER_MLA",
        registry="attention",
        path="vllm.v1.attention.backends.mla.flashinfer_mla.FlashInferMLABackend",
        at="vllm/v1/attention/backends/mla/flashinfer_mla.py:193",
        builder="FlashInferMLAMetadataBuilder",
        graph=Graph(
            said="declared",
            level="ALWAYS",
            at="vllm/v1/attention/backends/mla/flashinfer_mla.py:140",
        ),
        dtypes=("float16", "bfloat16"),
        kv_cache_dtypes=("auto", "float16", "bfloat16", "fp8", "fp8_e4m3"),
        head_sizes=(320, 512, 576),
        block_sizes=(32, 64),
        compute_capability="capability.major == 10",
        is_mla=True,
        inherits=("head_sizes",),
    ),
    Row(
        name="TOKENSPEED_MLA",
        registry="attention",
        path="vllm.v1.attention.backends.mla.tokenspeed_mla.TokenspeedMLABackend",
        at="vllm/v1/attention/backends/mla/tokenspeed_mla.py:101",
        builder="TokenspeedMLAMetadataBuilder",
        graph=Graph(
            said="declared",
            level="UNIFORM_BATCH",
            at="vllm/v1/attention/backends/mla/tokenspeed_mla.py:77",
        ),
        dtypes=("float16", "bfloat16"),
        kv_cache_dtypes=("fp8", "fp8_e4m3"),
        head_sizes=(320, 512, 576),
        block_sizes=(32, 64),
        compute_capability="capability.major == 10",
        is_mla=True,
        inherits=("head_sizes",),
    ),
    Row(
        name="FLASHINFER_MLA_SPARSE",
        registry="attention",
        path=(
            "vllm.v1.attention.backends.mla.flashinfer_mla_sparse.FlashInferMLASparseTRTLLMBackend"
        ),
        at="vllm/v1/attention/backends/mla/flashinfer_mla_sparse.py:80",
        builder="FlashInferMLASparseTRTLLMMetadataBuilder",
        graph=Graph(
            said="declared",
            level="UNIFORM_BATCH",
            at="vllm/v1/attention/backends/mla/flashinfer_mla_sparse.py:281",
        ),
        dtypes=("float16", "bfloat16"),
        kv_cache_dtypes=("auto", "float16", "bfloat16", "fp8", "fp8_e4m3"),
        head_sizes=(512, 576),
        block_sizes=("multiple of 32",),
        compute_capability="capability.major == 10",
        is_mla=True,
        is_sparse=True,
        inherits=("head_sizes",),
    ),
    Row(
        name="FLASHINFER_MLA_SPARSE_SM120",
        registry="attention",
        path=(
            "vllm.v1.attention.backends.mla.flashinfer_mla_sparse.FlashInferMLASparseSM120Backend"
        ),
        at="vllm/v1/attention/backends/mla/flashinfer_mla_sparse.py:164",
        builder="FlashInferMLASparseMetadataBuilder",
        graph=Graph(
            said="declared",
            level="UNIFORM_BATCH",
            at="vllm/v1/attention/backends/mla/flashinfer_mla_sparse.py:254",
        ),
        dtypes=("bfloat16",),
        kv_cache_dtypes=("auto", "fp8", "fp8_e4m3", "fp8_ds_mla"),
        head_sizes=(512, 576),
        block_sizes=("multiple of 64",),
        compute_capability="capability.major == 12",
        is_mla=True,
        is_sparse=True,
        inherits=("head_sizes",),
    ),
    Row(
        name="FLASHINFER_MLA_SPARSE_SM90",
        registry="attention",
        path=(
            "vllm.v1.attention.backends.mla.flashinfer_mla_sparse_sm90."
            "FlashInferMLASparseSM90Backend"
        ),
        at="vllm/v1/attention/backends/mla/flashinfer_mla_sparse_sm90.py:146",
        builder="FlashInferMLASparseSM90Builder",
        graph=Graph(
            said="inherited",
            level="UNIFORM_BATCH",
            at="vllm/v1/attention/backends/mla/flashinfer_mla_sparse.py:254",
            base="FlashInferMLASparseMetadataBuilder",
        ),
        dtypes=("bfloat16",),
        kv_cache_dtypes=("auto", "bfloat16", "fp8", "fp8_e4m3"),
        head_sizes=(512, 576),
        block_sizes=("multiple of 64",),
        compute_capability="capability.major == 9",
        is_mla=True,
        is_sparse=True,
    ),
    Row(
        name="TRITON_MLA",
        registry="attention",
        path="vllm.v1.attention.backends.mla.triton_mla.TritonMLABackend",
        at="vllm/v1/attention/backends/mla/triton_mla.py:99",
        builder="TritonMLAMetadataBuilder",
        graph=Graph(
            said="declared",
            level="UNIFORM_BATCH",
            at="vllm/v1/attention/backends/mla/triton_mla.py:77",
        ),
        dtypes=("float16", "bfloat16"),
        kv_cache_dtypes=("auto", "float16", "bfloat16", "fp8", "fp8_e4m3"),
        head_sizes="any",
        block_sizes=("multiple of 16",),
        compute_capability="True",
        is_mla=True,
    ),
    Row(
        name="CUTLASS_MLA",
        registry="attention",
        path="vllm.v1.attention.backends.mla.cutlass_mla.CutlassMLABackend",
        at="vllm/v1/attention/backends/mla/cutlass_mla.py:38",
        builder="CutlassMLAMetadataBuilder",
        graph=Graph(
            said="declared",
            level="UNIFORM_SINGLE_TOKEN_DECODE",
            at="vllm/v1/attention/backends/mla/cutlass_mla.py:33",
        ),
        dtypes=("float16", "bfloat16"),
        kv_cache_dtypes=("auto", "float16", "bfloat16", "fp8", "fp8_e4m3"),
        head_sizes=(320, 512, 576),
        block_sizes=(128,),
        compute_capability="capability.major == 10",
        is_mla=True,
        inherits=("head_sizes",),
    ),
    Row(
        name="FLASHMLA",
        registry="attention",
        path="vllm.v1.attention.backends.mla.flashmla.FlashMLABackend",
        at="vllm/v1/attention/backends/mla/flashmla.py:46",
        builder="FlashMLAMetadataBuilder",
        graph=Graph(
            said="declared",
            level="UNIFORM_BATCH",
            at="vllm/v1/attention/backends/mla/flashmla.py:110",
        ),
        dtypes=("float16", "bfloat16"),
        kv_cache_dtypes=("auto", "float16", "bfloat16", "fp8", "fp8_e4m3"),
        head_sizes=(320, 512, 576),
        block_sizes=(64,),
        compute_capability="capability.major in [9, 10]",
        is_mla=True,
        inherits=("head_sizes",),
    ),
    Row(
        name="FLASHMLA_SPARSE",
        registry="attention",
        path="vllm.v1.attention.backends.mla.flashmla_sparse.FlashMLASparseBackend",
        at="vllm/v1/attention/backends/mla/flashmla_sparse.py:147",
        builder="FlashMLASparseMetadataBuilder",
        graph=Graph(
            said="declared",
            level="UNIFORM_BATCH",
            at="vllm/v1/attention/backends/mla/flashmla_sparse.py:350",
        ),
        dtypes=("bfloat16",),
        kv_cache_dtypes=("auto", "bfloat16", "fp8_ds_mla", "fp8", "nvfp4_ds_mla"),
        head_sizes=(576, 512),
        block_sizes="depends",
        compute_capability="capability.major in [9, 10]",
        is_mla=True,
        is_sparse=True,
    ),
    Row(
        name="FLASHMLA_SPARSE_DSV4",
        registry="attention",
        path="vllm.models.deepseek_v4.sparse_mla.DeepseekV4FlashMLABackend",
        at="vllm/models/deepseek_v4/sparse_mla.py:292",
        builder="DeepseekV4FlashMLAMetadataBuilder",
        graph=Graph(
            said="declared",
            level="ALWAYS",
            at="vllm/models/deepseek_v4/sparse_mla.py:289",
        ),
        dtypes=("bfloat16",),
        kv_cache_dtypes=("auto", "fp8_ds_mla", "fp8"),
        head_sizes=(512,),
        block_sizes=(256,),
        compute_capability="capability.major in [9, 10]",
        is_mla=True,
        is_sparse=True,
        inherits=("dtypes", "kv_cache_dtypes", "head_sizes", "block_sizes", "compute_capability"),
    ),
    Row(
        name="FLASHINFER_MLA_SPARSE_DSV4",
        registry="attention",
        path=(
            "vllm.models.deepseek_v4.nvidia.flashinfer_sparse.DeepseekV4FlashInferMLASparseBackend"
        ),
        at="vllm/models/deepseek_v4/nvidia/flashinfer_sparse.py:104",
        builder="DeepseekV4FlashInferSparseMLAMetadataBuilder",
        graph=Graph(
            said="declared",
            level="ALWAYS",
            at="vllm/models/deepseek_v4/nvidia/flashinfer_sparse.py:186",
        ),
        dtypes=("bfloat16",),
        kv_cache_dtypes=("auto", "bfloat16", "fp8", "fp8_e4m3", "fp8_ds_mla"),
        head_sizes=(512,),
        block_sizes=(256,),
        compute_capability="capability.major in [10, 12]",
        is_mla=True,
        is_sparse=True,
    ),
    # ALWAYS under `spec_config is not None and spec_config.enable_adaptive_verification`; else it
    # calls `super().get_cudagraph_support`, which gives the parent builder's UNIFORM_BATCH.
    Row(
        name="ROCM_FLASHMLA_SPARSE_DSV4",
        registry="attention",
        path="vllm.models.deepseek_v4.amd.rocm.DeepseekV4ROCMAiterMLASparseBackend",
        at="vllm/models/deepseek_v4/amd/rocm.py:816",
        builder="DeepseekV4ROCMAiterMLASparseMetadataBuilder",
        graph=Graph(said="conditional", at="vllm/models/deepseek_v4/amd/rocm.py:635"),
        dtypes=("bfloat16",),
        kv_cache_dtypes=("auto", "fp8_ds_mla", "fp8"),
        head_sizes=(512,),
        block_sizes=(256,),
        compute_capability="capability.major in [9, 10]",
        is_mla=True,
        is_sparse=True,
        inherits=("dtypes", "kv_cache_dtypes", "head_sizes", "block_sizes", "compute_capability"),
    ),
    Row(
        name="FLASHMLA_SPARSE_DSV41",
        registry="attention",
        path="vllm.models.deepseek_v41.sparse_mla.DeepseekV4FlashMLABackend",
        at="vllm/models/deepseek_v41/sparse_mla.py:260",
        builder="DeepseekV4FlashMLAMetadataBuilder",
        graph=Graph(
            said="declared",
            level="ALWAYS",
            at="vllm/models/deepseek_v41/sparse_mla.py:257",
        ),
        dtypes=("bfloat16",),
        kv_cache_dtypes=("auto", "fp8_ds_mla", "fp8"),
        head_sizes=(512,),
        block_sizes="depends",
        compute_capability="capability.major in [9, 10]",
        is_mla=True,
        is_sparse=True,
        inherits=("dtypes", "kv_cache_dtypes", "head_sizes", "block_sizes", "compute_capability"),
    ),
    Row(
        name="FLASHINFER_MLA_SPARSE_DSV41",
        registry="attention",
        path=(
            "vllm.models.deepseek_v41.nvidia.flashinfer_sparse.DeepseekV4FlashInferMLASparseBackend"
        ),
        at="vllm/models/deepseek_v41/nvidia/flashinfer_sparse.py:101",
        builder="DeepseekV4FlashInferSparseMLAMetadataBuilder",
        graph=Graph(
            said="declared",
            level="ALWAYS",
            at="vllm/models/deepseek_v41/nvidia/flashinfer_sparse.py:183",
        ),
        dtypes=("bfloat16",),
        kv_cache_dtypes=("auto", "bfloat16", "fp8", "fp8_e4m3", "fp8_ds_mla"),
        head_sizes=(512,),
        block_sizes=(128,),
        compute_capability="capability.major in [10, 12]",
        is_mla=True,
        is_sparse=True,
    ),
    # As ROCM_FLASHMLA_SPARSE_DSV4.
    Row(
        name="ROCM_FLASHMLA_SPARSE_DSV41",
        registry="attention",
        path="vllm.models.deepseek_v41.amd.rocm.DeepseekV41ROCMAiterMLASparseBackend",
        at="vllm/models/deepseek_v41/amd/rocm.py:526",
        builder="DeepseekV41ROCMAiterMLASparseMetadataBuilder",
        graph=Graph(said="conditional", at="vllm/models/deepseek_v41/amd/rocm.py:324"),
        dtypes=("bfloat16",),
        kv_cache_dtypes=("auto", "fp8_ds_mla", "fp8"),
        head_sizes=(512,),
        block_sizes=(64, 128),
        compute_capability="capability.major in [9, 10]",
        is_mla=True,
        is_sparse=True,
        inherits=("dtypes", "kv_cache_dtypes", "head_sizes", "compute_capability"),
    ),
    Row(
        name="FLASHMLA_MEGA_ATTN_DSV41",
        registry="attention",
        path="vllm.models.deepseek_v41.sparse_mla.FlashMLAMegaAttnBackend",
        at="vllm/models/deepseek_v41/sparse_mla.py:274",
        builder="DeepseekV4FlashMLAMetadataBuilder",
        graph=Graph(
            said="declared",
            level="ALWAYS",
            at="vllm/models/deepseek_v41/sparse_mla.py:257",
        ),
        dtypes=("bfloat16",),
        kv_cache_dtypes=("auto", "fp8_ds_mla", "fp8", "nvfp4_ds_mla"),
        head_sizes=(512,),
        block_sizes=(128,),
        compute_capability="capability.major == 10",
        is_mla=True,
        is_sparse=True,
        inherits=("dtypes", "head_sizes"),
    ),
    # `kv_cache_dtypes` and `block_sizes` are `list(...)` of the module's constants (b12x.py:51-59).
    Row(
        name="B12X",
        registry="attention",
        path="vllm.v1.attention.backends.b12x.B12xPagedAttentionBackend",
        at="vllm/v1/attention/backends/b12x.py:152",
        builder="B12xPagedMetadataBuilder",
        graph=Graph(
            said="declared",
            level="UNIFORM_BATCH",
            at="vllm/v1/attention/backends/b12x.py:276",
        ),
        dtypes=("bfloat16",),
        kv_cache_dtypes=("auto", "bfloat16", "fp8", "fp8_e4m3"),
        head_sizes=(64, 128, 192, 256),
        block_sizes=(64, 128),
        compute_capability="(capability.major, capability.minor) in ((12, 0), (12, 1))",
    ),
    Row(
        name="FLASH_ATTN_MLA",
        registry="attention",
        path="vllm.v1.attention.backends.mla.flashattn_mla.FlashAttnMLABackend",
        at="vllm/v1/attention/backends/mla/flashattn_mla.py:40",
        builder="FlashAttnMLAMetadataBuilder",
        graph=Graph(
            said="declared",
            level="UNIFORM_BATCH",
            at="vllm/v1/attention/backends/mla/flashattn_mla.py:127",
        ),
        dtypes=("float16", "bfloat16"),
        kv_cache_dtypes=("auto", "float16", "bfloat16"),
        head_sizes=(320, 512, 576),
        block_sizes=("multiple of 16",),
        compute_capability="capability.major == 9",
        is_mla=True,
        inherits=("head_sizes",),
    ),
    Row(
        name="FLASH_ATTN_MLA_SPARSE",
        registry="attention",
        path="vllm.v1.attention.backends.mla.flashattn_mla_sparse.FlashAttnMLASparseBackend",
        at="vllm/v1/attention/backends/mla/flashattn_mla_sparse.py:41",
        builder="FlashAttnMLASparseMetadataBuilder",
        graph=Graph(
            said="declared",
            level="UNIFORM_BATCH",
            at="vllm/v1/attention/backends/mla/flashattn_mla_sparse.py:128",
        ),
        dtypes=("float16", "bfloat16"),
        kv_cache_dtypes=("auto", "float16", "bfloat16"),
        head_sizes="any",
        block_sizes=("multiple of 64",),
        compute_capability="capability.major == 9",
        is_mla=True,
        is_sparse=True,
    ),
    Row(
        name="FLASH_ATTN_MLA_SPARSE_FA4",
        registry="attention",
        path="vllm.v1.attention.backends.mla.flashattn_mla_sparse.FlashAttnMLASparseFA4Backend",
        at="vllm/v1/attention/backends/mla/flashattn_mla_sparse.py:275",
        builder="FlashAttnMLASparseFA4MetadataBuilder",
        graph=Graph(
            said="inherited",
            level="UNIFORM_BATCH",
            at="vllm/v1/attention/backends/mla/flashinfer_mla_sparse.py:281",
            base="FlashInferMLASparseTRTLLMMetadataBuilder",
        ),
        dtypes=("bfloat16",),
        kv_cache_dtypes=("auto", "bfloat16"),
        head_sizes=(576,),
        block_sizes=("multiple of 64",),
        compute_capability="capability.major == 10",
        is_mla=True,
        is_sparse=True,
        inherits=("compute_capability",),
    ),
    Row(
        name="MINIMAX_M3_SPARSE",
        registry="attention",
        path="vllm.models.minimax_m3.common.sparse_attention.MiniMaxM3SparseBackend",
        at="vllm/models/minimax_m3/common/sparse_attention.py:135",
        builder="MiniMaxM3SparseMetadataBuilder",
        graph=Graph(
            said="declared",
            level="UNIFORM_BATCH",
            at="vllm/models/minimax_m3/common/sparse_attention.py:244",
        ),
        dtypes=("bfloat16", "float16"),
        kv_cache_dtypes=("bfloat16", "fp8", "fp8_e4m3", "fp8_e5m2"),
        head_sizes=(128,),
        block_sizes=(128,),
        is_sparse=True,
    ),
    Row(
        name="CUTLASS_MSA",
        registry="attention",
        path="vllm.models.minimax_m3.nvidia.sparse_attention_msa.MiniMaxM3SparseCutlassBackend",
        at="vllm/models/minimax_m3/nvidia/sparse_attention_msa.py:100",
        builder="MiniMaxM3SparseMSAMetadataBuilder",
        graph=Graph(
            said="inherited",
            level="UNIFORM_BATCH",
            at="vllm/models/minimax_m3/common/sparse_attention.py:244",
            base="MiniMaxM3SparseMetadataBuilder",
        ),
        dtypes=("bfloat16", "float16"),
        kv_cache_dtypes=("bfloat16", "fp8", "fp8_e4m3", "fp8_e5m2"),
        head_sizes=(128,),
        block_sizes=(128,),
        is_sparse=True,
        inherits=("dtypes", "kv_cache_dtypes", "head_sizes", "block_sizes"),
    ),
    Row(
        name="TRITON_MSA",
        registry="attention",
        path="vllm.models.minimax_m3.nvidia.sparse_attention_msa.MiniMaxM3SparseTritonBackend",
        at="vllm/models/minimax_m3/nvidia/sparse_attention_msa.py:108",
        builder="MiniMaxM3SparseMSAMetadataBuilder",
        graph=Graph(
            said="inherited",
            level="UNIFORM_BATCH",
            at="vllm/models/minimax_m3/common/sparse_attention.py:244",
            base="MiniMaxM3SparseMetadataBuilder",
        ),
        dtypes=("bfloat16", "float16"),
        kv_cache_dtypes=("bfloat16", "fp8", "fp8_e4m3", "fp8_e5m2"),
        head_sizes=(128,),
        block_sizes=(128,),
        is_sparse=True,
        inherits=("dtypes", "kv_cache_dtypes", "head_sizes", "block_sizes"),
    ),
    # "otherwise" is `cls._cudagraph_support`, which the builder's own body sets.
    Row(
        name="STEP5_DSA",
        registry="attention",
        path="vllm.models.step5.nvidia.sparse_attention.Step5DSAAttentionBackend",
        at="vllm/models/step5/nvidia/sparse_attention.py:807",
        builder="Step5DSAMetadataBuilder",
        graph=Graph(
            said="conditional",
            at="vllm/models/step5/nvidia/sparse_attention.py:191",
            cases=(
                ("UNIFORM_BATCH", "vllm_config.speculative_config is not None"),
                ("UNIFORM_SINGLE_TOKEN_DECODE", "otherwise"),
            ),
        ),
        dtypes=("float16", "bfloat16"),
        kv_cache_dtypes=("auto", "bfloat16", "fp8", "fp8_e4m3"),
        head_sizes="depends",
        block_sizes="depends",
        compute_capability=(
            "capability in"
            " (DeviceCapability(9, 0), DeviceCapability(10, 0), DeviceCapability(10, 3))"
        ),
        is_sparse=True,
        inherits=("dtypes", "block_sizes"),
    ),
    # The wheel has no such module.
    Row(
        name="NO_ATTENTION",
        registry="attention",
        path="vllm.v1.attention.backends.no_attention.NoAttentionBackend",
    ),
    Row(
        name="FLEX_ATTENTION",
        registry="attention",
        path="vllm.v1.attention.backends.flex_attention.FlexAttentionBackend",
        at="vllm/v1/attention/backends/flex_attention.py:90",
        builder="FlexAttentionMetadataBuilder",
        graph=Graph(
            said="declared",
            level="ALWAYS",
            at="vllm/v1/attention/backends/flex_attention.py:836",
        ),
        dtypes=("float16", "bfloat16", "float32"),
        kv_cache_dtypes=("auto", "float16", "bfloat16"),
        head_sizes="any",
        block_sizes=("multiple of 16",),
    ),
    Row(
        name="HPC_ATTN",
        registry="attention",
        path="vllm.v1.attention.backends.hpc_attn.HpcAttentionBackend",
        at="vllm/v1/attention/backends/hpc_attn.py:270",
        builder="HpcAttnMetadataBuilder",
        graph=Graph(
            said="conditional",
            at="vllm/v1/attention/backends/hpc_attn.py:170",
            cases=(
                (
                    "UNIFORM_BATCH",
                    (
                        "spec_config is not None"
                        " and spec_config.num_speculative_tokens is not None"
                        " and spec_config.num_speculative_tokens > 0"
                    ),
                ),
                ("UNIFORM_SINGLE_TOKEN_DECODE", "otherwise"),
            ),
        ),
        dtypes=("float16", "bfloat16"),
        kv_cache_dtypes=("auto", "bfloat16", "fp8_e4m3"),
        head_sizes=(128,),
        block_sizes=(64,),
        compute_capability="capability == DeviceCapability(9, 0)",
    ),
    Row(
        name="ROCM_AITER_UNIFIED_ATTN",
        registry="attention",
        path=(
            "vllm.v1.attention.backends.rocm_aiter_unified_attn.RocmAiterUnifiedAttentionBackend"
        ),
        at="vllm/v1/attention/backends/rocm_aiter_unified_attn.py:61",
        builder="RocmAiterUnifiedAttentionMetadataBuilder",
        graph=Graph(
            said="inherited",
            level="ALWAYS",
            at="vllm/v1/attention/backends/rocm_attn.py:74",
            base="RocmAttentionMetadataBuilder",
        ),
        dtypes=("float16", "bfloat16"),
        kv_cache_dtypes=("auto", "float16", "bfloat16", "fp8", "fp8_e4m3", "fp8_e5m2"),
        head_sizes="depends",
        block_sizes=("multiple of 16",),
    ),
    Row(
        name="CPU_ATTN",
        registry="attention",
        path="vllm.v1.attention.backends.cpu_attn.CPUAttentionBackend",
        at="vllm/v1/attention/backends/cpu_attn.py:49",
        builder="CPUAttentionMetadataBuilder",
        dtypes=("float16", "bfloat16", "float32"),
        kv_cache_dtypes=("auto", "fp8", "fp8_e4m3", "fp8_e5m2"),
        head_sizes=(32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512),
        block_sizes=("multiple of 32",),
    ),
    Row(
        name="CPU_MLA",
        registry="attention",
        path="vllm.v1.attention.backends.mla.cpu_mla.CPUMLABackend",
        at="vllm/v1/attention/backends/mla/cpu_mla.py:50",
        builder="MLACommonMetadataBuilder",
        dtypes=("float16", "bfloat16", "float32"),
        kv_cache_dtypes=("auto",),
        head_sizes=(576,),
        block_sizes=(16,),
        is_mla=True,
    ),
    Row(
        name="AMX_MLA",
        registry="attention",
        path="vllm.v1.attention.backends.mla.amx_mla.AMXMLABackend",
        at="vllm/v1/attention/backends/mla/amx_mla.py:124",
        builder="AMXMLAMetadataBuilder",
        dtypes=("bfloat16",),
        head_sizes=(576,),
        block_sizes=("multiple of 32",),
        is_mla=True,
    ),
    Row(
        name="TURBOQUANT",
        registry="attention",
        path="vllm.v1.attention.backends.turboquant_attn.TurboQuantAttentionBackend",
        at="vllm/v1/attention/backends/turboquant_attn.py:123",
        builder="TurboQuantMetadataBuilder",
        graph=Graph(
            said="declared",
            level="UNIFORM_BATCH",
            at="vllm/v1/attention/backends/turboquant_attn.py:220",
        ),
        dtypes=("float16", "bfloat16"),
        kv_cache_dtypes=(
            "turboquant_k8v4",
            "turboquant_4bit_nc",
            "turboquant_k3v4_nc",
            "turboquant_3bit_nc",
        ),
        head_sizes="depends",
        block_sizes=(16, 32, 64, 128),
    ),
    # The one head size is a constant of the module (rocm_octave_attn.py:64).
    Row(
        name="ROCM_OCTAVE",
        registry="attention",
        path="vllm.v1.attention.backends.rocm_octave_attn.RocmOctaveAttentionBackend",
        at="vllm/v1/attention/backends/rocm_octave_attn.py:90",
        builder="RocmOctaveMetadataBuilder",
        graph=Graph(
            said="declared",
            level="UNIFORM_BATCH",
            at="vllm/v1/attention/backends/rocm_octave_attn.py:177",
        ),
        dtypes=("float16", "bfloat16"),
        kv_cache_dtypes=("octave_k3v4", "octave_k3v3", "octave_k3v3_compact"),
        head_sizes=(256,),
        block_sizes=("multiple of 16",),
        compute_capability=(
            "current_platform.is_rocm() and (get_rdna_version() == 3 or get_cdna_version() == 3)"
        ),
    ),
    Row(
        name="ULTRAQUANT",
        registry="attention",
        path="vllm.v1.attention.backends.ultraquant_attn.UltraQuantAttentionBackend",
        at="vllm/v1/attention/backends/ultraquant_attn.py:63",
        builder="TurboQuantMetadataBuilder",
        graph=Graph(
            said="declared",
            level="UNIFORM_BATCH",
            at="vllm/v1/attention/backends/turboquant_attn.py:220",
        ),
        dtypes=("bfloat16",),
        kv_cache_dtypes=("ultraquant_4bit",),
        head_sizes="depends",
        block_sizes=(16, 32, 64, 128),
        inherits=("head_sizes", "block_sizes"),
    ),
    Row(name="CUSTOM", registry="attention", path=None),
    Row(
        name="MAMBA1",
        registry="mamba",
        path="vllm.v1.attention.backends.mamba1_attn.Mamba1AttentionBackend",
        at="vllm/v1/attention/backends/mamba1_attn.py:14",
        builder="Mamba1AttentionMetadataBuilder",
        graph=Graph(
            said="inherited",
            level="UNIFORM_BATCH",
            at="vllm/v1/attention/backends/mamba_attn.py:87",
            base="BaseMambaAttentionMetadataBuilder",
        ),
        is_ssm=True,
    ),
    Row(
        name="MAMBA2",
        registry="mamba",
        path="vllm.v1.attention.backends.mamba2_attn.Mamba2AttentionBackend",
        at="vllm/v1/attention/backends/mamba2_attn.py:95",
        builder="Mamba2AttentionMetadataBuilder",
        graph=Graph(
            said="inherited",
            level="UNIFORM_BATCH",
            at="vllm/v1/attention/backends/mamba_attn.py:87",
            base="BaseMambaAttentionMetadataBuilder",
        ),
        is_ssm=True,
    ),
    Row(
        name="SHORT_CONV",
        registry="mamba",
        path="vllm.v1.attention.backends.short_conv_attn.ShortConvAttentionBackend",
        at="vllm/v1/attention/backends/short_conv_attn.py:30",
        builder="ShortConvAttentionMetadataBuilder",
        graph=Graph(
            said="inherited",
            level="UNIFORM_BATCH",
            at="vllm/v1/attention/backends/mamba_attn.py:87",
            base="BaseMambaAttentionMetadataBuilder",
        ),
        is_ssm=True,
    ),
    Row(
        name="LINEAR",
        registry="mamba",
        path="vllm.v1.attention.backends.linear_attn.LinearAttentionBackend",
        at="vllm/v1/attention/backends/linear_attn.py:22",
        builder="LinearAttentionMetadataBuilder",
        graph=Graph(
            said="declared",
            level="UNIFORM_SINGLE_TOKEN_DECODE",
            at="vllm/v1/attention/backends/linear_attn.py:52",
        ),
        is_ssm=True,
    ),
    Row(
        name="GDN_ATTN",
        registry="mamba",
        path="vllm.v1.attention.backends.gdn_attn.GDNAttentionBackend",
        at="vllm/v1/attention/backends/gdn_attn.py:74",
        builder="GDNAttentionMetadataBuilder",
        graph=Graph(
            said="declared",
            level="UNIFORM_BATCH",
            at="vllm/v1/attention/backends/gdn_attn.py:136",
        ),
        is_ssm=True,
    ),
    Row(name="CUSTOM", registry="mamba", path=None),
)
