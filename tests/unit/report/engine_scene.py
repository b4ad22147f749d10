"""Two engines as a reader of their source would find them, made by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from backend_caps.capability.backend import Backend, EngineClass, Problem, Reading, Status
from backend_caps.capability.declaration import Declaration, Part, When
from backend_caps.capability.facts import Given
from backend_caps.capability.kind import Phase, Role
from backend_caps.capability.provenance import Origin, Source
from backend_caps.capability.sets import ComputeRange, MultipleOf, OneOf
from backend_caps.capability.vocabulary import (
    AttentionArch,
    BatchKind,
    Capabilities,
    HostSeqLens,
    SharedReadsEnd,
)
from backend_caps.engines.reading import EngineReading
from backend_caps.resolution.engine import Engine
from backend_caps.resolution.rules import Rule, RuleSet

_NOTHING: Mapping[str, Reading] = {}


def read_class(
    name: str,
    at: str,
    readings: Mapping[str, Reading] = _NOTHING,
    *,
    conditions: Sequence[When] = (),
    registered_as: tuple[str, ...] = (),
    attributes: Mapping[str, Reading] = _NOTHING,
    composite: str | None = None,
) -> Backend:
    """Describe a class as a reader finds it; what is declared there is what it declares."""
    declared = {n: each.value for n, each in readings.items() if each.origin is Origin.DECLARED}
    return Backend(
        name=name,
        status=Status.OK,
        source=Source(distribution="sglang", version="0.5.23", declared_at=at),
        declaration=Declaration(
            capabilities=Capabilities.model_validate(declared), conditions=conditions
        ),
        engine_class=EngineClass(
            path=f"sglang.srt.{name}",
            registered_as=registered_as,
            readings=readings,
            attributes=attributes,
            composite=composite,
        ),
    )


def read_name(name: str, *parts: Part) -> Backend:
    """Describe a name that flags use for some classes."""
    source = Source(distribution="sglang", version="0.5.23", declared_at="sglang/registry.py:9")
    return Backend(name=name, status=Status.OK, source=source, declaration=Declaration(parts=parts))


def says(
    value: object,
    words: str,
    at: str,
    *,
    origin: Origin = Origin.DECLARED,
    inherited_from: str | None = None,
) -> Reading:
    """Read something of a class."""
    return Reading(
        origin=origin,
        words=words,
        value=value,
        declared_at=at or None,
        inherited_from=inherited_from,
    )


_TRITON = "sglang/srt/layers/attention/triton_backend.py"
_FA = "sglang/srt/layers/attention/flashattention_backend.py"
_FLASHINFER = "sglang/srt/layers/attention/flashinfer_backend.py"
_HYBRID = "sglang/srt/layers/attention/hybrid_attn_backend.py"
_FALSE = "needs_cpu_seq_lens = False"

CLASSES: tuple[Backend, ...] = (
    read_class(
        "TritonAttnBackend",
        f"{_TRITON}:150",
        {
            "host_seq_lens": says(HostSeqLens.NONE, _FALSE, f"{_TRITON}:153"),
            "shared_reads_end": says(
                SharedReadsEnd.PRE_REPLAY, "return PRE_REPLAY", f"{_TRITON}:170"
            ),
            "max_context_len_known": says(
                value=True, words="self.max_context_len = context_len", at=f"{_TRITON}:199"
            ),
        },
        registered_as=("fa4", "triton"),
        attributes={
            "supports_ragged_verify_graph": says(
                value=True, words="supports_ragged_verify_graph = True", at=f"{_TRITON}:155"
            ),
            "cuda_graph_mode": says(None, "set by __init__", "", origin=Origin.CONDITIONAL),
            "label": says("tri", "label = 'tri'", f"{_TRITON}:156"),
        },
    ),
    read_class(
        "TritonMultiStepDraftBackend",
        f"{_TRITON}:2504",
        {
            "host_seq_lens": says(
                HostSeqLens.NONE,
                _FALSE,
                f"{_TRITON}:153",
                origin=Origin.INHERITED,
                inherited_from="TritonAttnBackend",
            )
        },
    ),
    read_class(
        "FlashAttentionBackend",
        f"{_FA}:132",
        {
            "host_seq_lens": says(
                None,
                "needs_cpu_seq_lens = self._kv_shard_pool is not None",
                f"{_FA}:221",
                origin=Origin.CONDITIONAL,
            ),
            "shared_reads_end": says(
                None, "return self._ends[phase]", f"{_FA}:240", origin=Origin.CONDITIONAL
            ),
        },
        conditions=[
            When(
                given=Given(expression="self._kv_shard_pool is not None"),
                capabilities=Capabilities(host_seq_lens=HostSeqLens.EXACT),
                reason="needs_cpu_seq_lens = True",
            ),
            When(
                given=Given(expression="not (self._kv_shard_pool is not None)"),
                capabilities=Capabilities(host_seq_lens=HostSeqLens.NONE),
                reason=_FALSE,
            ),
        ],
        registered_as=("fa3", "fa4"),
    ),
    read_class(
        "MusaFlashAttentionBackend",
        "sglang/srt/hardware_backend/musa/attention/flashattention_backend.py:214",
        {
            "host_seq_lens": says(
                None,
                "needs_cpu_seq_lens = self._kv_shard_pool is not None",
                f"{_FA}:221",
                origin=Origin.INHERITED,
                inherited_from="FlashAttentionBackend",
            )
        },
    ),
    read_class("FlashInferAttnBackend", f"{_FLASHINFER}:77", registered_as=("flashinfer",)),
    read_class("FlashInferMLAAttnBackend", f"{_FLASHINFER}:400", registered_as=("flashinfer",)),
    read_class(
        "HybridAttnBackend",
        f"{_HYBRID}:25",
        {
            "host_seq_lens": says(
                HostSeqLens.NONE, _FALSE, f"{_HYBRID}:31", origin=Origin.DECLARED
            ),
            "max_context_len_known": says(None, "nobody sets it", "", origin=Origin.UNDECLARED),
        },
        conditions=[
            When(
                given=Given(speculative_attention_mode={"prefill"}),
                capabilities=Capabilities(host_seq_lens=HostSeqLens.EXACT),
                reason="or prefill_backend.needs_cpu_seq_lens",
            )
        ],
        composite="decode_backend.needs_cpu_seq_lens or (self.spec_attn_is_prefill and "
        "prefill_backend.needs_cpu_seq_lens)",
    ),
    Backend(
        name="TornBackend",
        status=Status.BROKEN,
        source=Source(distribution="sglang", version="0.5.23"),
        problems=(
            Problem(
                code="unreadable-class",
                message="class TornBackend has a base that is not there.",
                remedy="Tell the maintainers.",
            ),
        ),
        engine_class=EngineClass(path="sglang.srt.TornBackend"),
    ),
)
"""What the classes of a small SGLang say."""

NAMES: tuple[Backend, ...] = (
    read_name(
        "triton",
        Part("TritonAttnBackend", roles={Role.TARGET, Role.DRAFT_EXTEND}),
        Part("TritonAttnBackend", roles={Role.DRAFT}, phases={Phase.PREFILL}),
        Part("TritonMultiStepDraftBackend", roles={Role.DRAFT}, phases={Phase.DECODE}),
    ),
    read_name("fa3", Part("FlashAttentionBackend")),
    read_name(
        "fa4",
        Part("TritonAttnBackend", given=Given(expression="is_hip()")),
        Part("FlashAttentionBackend", given=Given(expression="not is_hip()")),
    ),
    read_name(
        "flashinfer",
        Part("FlashInferAttnBackend", given=Given(attention_arch={AttentionArch.MHA})),
        Part("FlashInferMLAAttnBackend", given=Given(attention_arch={AttentionArch.MLA})),
    ),
    Backend(
        name="torn",
        status=Status.BROKEN,
        source=Source(distribution="sglang", version="0.5.23"),
        problems=(
            Problem(
                code="unreadable-name",
                message="what 'torn' makes is not known.",
                remedy="Tell the maintainers.",
            ),
        ),
    ),
)
"""What its flags name."""

_TBO = Rule(
    name="two-batch-overlap",
    given=Given(enable_two_batch_overlap=True),
    forces=Capabilities(host_seq_lens=HostSeqLens.EXACT),
    reason="the halves are divided by the lengths on the host (sglang/srt/overlap.py:12)",
)
RULES = RuleSet(
    name="sglang-0.5.23",
    rules=(_TBO,),
    relays=frozenset({"EAGLE"}),
    algorithms=frozenset({"EAGLE", "NGRAM"}),
)
"""What its flags force."""
COMMAND_LINE = Engine(
    name="sglang-0.5.23",
    options={
        "--attention-backend": ("--attention-backend", "--attn"),
        "--attn": ("--attention-backend", "--attn"),
        "--speculative-algorithm": ("--speculative-algorithm",),
        "--enable-two-batch-overlap": ("--enable-two-batch-overlap",),
    },
    attention_backends=frozenset({"fa3", "fa4", "flashinfer", "torn", "triton"}),
)
"""What its server takes; `--attn` is an alias that no stored version has."""
SGLANG = EngineReading(
    engine="sglang",
    version="0.5.23",
    source="sglang-0.5.23-py3-none-any.whl",
    backends=(*CLASSES, *NAMES),
    rules=RULES,
    command_line=COMMAND_LINE,
    problems=(
        Problem(
            code="not-found",
            message="sglang/srt/choices.py is not there.",
            remedy="Tell the maintainers.",
        ),
    ),
    num_files=2141,
    num_parsed=58,
)
"""A small SGLang."""

_V1 = "vllm/v1/attention/backends"
_BASE = ("AttentionBackend", f"{_V1}/abstract.py:60")

VLLM = EngineReading(
    engine="vllm",
    version=None,
    source="installed",
    backends=(
        read_class(
            "FlashAttentionBackend",
            f"{_V1}/flash_attn.py:286",
            {
                "graph_replay": says(
                    None,
                    "_cudagraph_support",
                    f"{_V1}/flash_attn.py:619",
                    origin=Origin.CONDITIONAL,
                ),
                "dtypes": says(
                    frozenset({"float16", "bfloat16"}),
                    "supported_dtypes = [torch.float16, torch.bfloat16]",
                    f"{_V1}/flash_attn.py:290",
                ),
                "kv_cache_dtypes": says(
                    frozenset({"bfloat16", "fp8_e4m3"}), "supported", f"{_V1}/flash_attn.py:291"
                ),
                "head_sizes": says(OneOf({64, 128}), "return x in (64, 128)", f"{_V1}/x.py:5"),
                "page_sizes": says(MultipleOf(16), "[MultipleOf(16)]", f"{_V1}/x.py:6"),
                "compute_capability": says(
                    (ComputeRange((8, 0)),), "capability >= (8, 0)", f"{_V1}/x.py:7"
                ),
            },
            conditions=[
                When(
                    given=Given(expression="get_flash_attn_version() == 3"),
                    capabilities=Capabilities(graph_replay=set(BatchKind)),
                    reason="ALWAYS",
                )
            ],
            registered_as=("FLASH_ATTN",),
        ),
        read_class(
            "TritonAttentionBackend",
            f"{_V1}/triton_attn.py:306",
            {
                "dtypes": says(
                    frozenset({"float16", "bfloat16"}),
                    "supported_dtypes = [torch.float16, torch.bfloat16]",
                    _BASE[1],
                    origin=Origin.INHERITED,
                    inherited_from=_BASE[0],
                )
            },
            registered_as=("TRITON_ATTN",),
        ),
        read_class(
            "FlexAttentionBackend",
            f"{_V1}/flex_attention.py:90",
            {
                "graph_replay": says(
                    frozenset({BatchKind.SINGLE_TOKEN_DECODE, BatchKind.UNIFORM_BATCH}),
                    "UNIFORM_BATCH",
                    f"{_V1}/flex_attention.py:95",
                ),
                "dtypes": says(frozenset({"float32"}), "if on_cpu", f"{_V1}/flex_attention.py:99"),
            },
            conditions=[
                When(
                    given=Given(device={"cuda"}),
                    capabilities=Capabilities(dtypes={"float16", "bfloat16"}),
                    reason="else",
                )
            ],
        ),
        read_class(
            "OddBackend",
            f"{_V1}/odd.py:1",
            {"graph_replay": says(frozenset({BatchKind.MIXED_BATCH}), "odd", f"{_V1}/odd.py:2")},
        ),
        read_name("FLASH_ATTN", Part("FlashAttentionBackend")),
    ),
    rules=None,
    command_line=None,
    problems=(),
    num_files=1,
    num_parsed=1,
)
"""A smaller vLLM."""
