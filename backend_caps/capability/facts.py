"""What is known of a server, conditions over it, and whether a backend fits it.

A condition stays open while a value that it names is not known.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Literal, TypeVar

from pydantic import BeforeValidator, ConfigDict, Field, StrictBool, StrictInt, model_validator
from pydantic_core import PydanticCustomError

from backend_caps.capability.gpu import FORMS, Gpu, compute_capability, gpu_named, gpu_of, gpus
from backend_caps.capability.kind import UNDECLARED, Phase, Role
from backend_caps.capability.model import Algorithm, Device, Dtype, FrozenModel, OrAuto
from backend_caps.capability.sets import STORED_AS_SET, SomeOf, SomeWindows, Version, pages_of
from backend_caps.capability.vocabulary import (
    CAPABILITIES,
    NO_LIMIT,
    AttentionArch,
    AttentionType,
    KVLayout,
)

Situation = Mapping[str, object]
"""A value for each flag and fact that is known, by its name; what is not known is left out."""


class Truth(Enum):
    """A truth value that may be open."""

    TRUE = "true"
    FALSE = "false"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class AtLeast:
    """The numbers from a smallest one upwards."""

    __pydantic_config__ = ConfigDict(extra="forbid", revalidate_instances="always")

    at_least: StrictInt
    """The smallest."""

    def __contains__(self, number: object) -> bool:
        return isinstance(number, int) and number >= self.at_least

    def __str__(self) -> str:
        return f">= {self.at_least}"


def _read_compute_capability(value: object) -> object:
    """Read a compute capability as people write it."""
    read = compute_capability(value)
    if isinstance(read, str):
        raise PydanticCustomError("compute_capability", f"Input should be {FORMS}")
    return read


def _read_device_name(value: object) -> object:
    """Read a GPU's name as its short one; a name that is not in the table is refused."""
    if not isinstance(value, str):
        return value
    gpu = gpu_named(value)
    if gpu is None:
        raise PydanticCustomError("device_name", f"Input should be one of {', '.join(gpus())}")
    return gpu.key


class Facts(FrozenModel):
    """State what is known of the machine and the model; `None` is not known yet."""

    device: OrAuto[Device] = None
    """The torch device type, such as `cuda`."""
    device_name: Annotated[str | None, BeforeValidator(_read_device_name)] = None
    """The GPU, such as `H100`; it gives its device type, compute capability and `rocm`."""
    num_gpus: Annotated[StrictInt, Field(ge=1)] | None = None
    """The GPUs of the machine."""
    compute_capability: Annotated[Version | None, BeforeValidator(_read_compute_capability)] = None
    """The GPU's (major, minor); `9.0`, `sm_90` and a GPU's name are read too."""
    dtype: OrAuto[Dtype] = None
    """The model's dtype, by torch's name."""
    kv_cache_dtype: OrAuto[Dtype] = None
    """The KV cache's dtype once `auto` is decided, by SGLang's name."""
    head_size: StrictInt | None = None
    """The attention heads' size, in elements."""
    page_size: StrictInt | None = None
    """The KV cache's page size, in tokens."""
    attention_arch: AttentionArch | None = None
    """The model's family of attention."""
    context_length: StrictInt | None = None
    """The longest context the server takes, in tokens."""
    rocm: StrictBool | None = None
    """Whether torch is built for ROCm, whose devices it calls `cuda` too."""
    attention_type: AttentionType | None = None
    """Which queries attend to which keys; where it is not known, none but a decoder's are
    expected."""
    sliding_window: StrictBool | None = None
    """Whether some layers see the last tokens of a context alone."""
    attention_sinks: StrictBool | None = None
    """Whether the model has a learned logit for each head in the softmax."""
    logit_soft_cap: StrictBool | None = None
    """Whether the model caps its attention's logits."""
    non_causal: StrictBool | None = None
    """Whether tokens of a decoder see later ones of the same forward."""
    multimodal_prefix: StrictBool | None = None
    """Whether tokens of one image see each other both ways."""
    per_head_kv_scales: StrictBool | None = None
    """Whether the quantized KV cache has a scale for each head."""
    decode_context_parallel: StrictBool | None = None
    """Whether a request's KV cache lies on several ranks while it decodes."""
    prefill_context_parallel: StrictBool | None = None
    """Whether a prompt's tokens are shared out among several ranks."""
    kv_layout: KVLayout | None = None
    """The order of the KV cache's dimensions."""

    @model_validator(mode="before")
    @classmethod
    def _of_gpu(cls, values: object) -> object:
        """Fill in what a GPU's name gives."""
        name = values.get("device_name") if isinstance(values, Mapping) else None
        gpu = gpu_named(name) if isinstance(name, str) else None
        if gpu is None or not isinstance(values, Mapping):
            return values
        given = {
            "device": "cuda",
            "compute_capability": gpu.compute_capability,
            "rocm": gpu.rocm_arch is not None,
        }
        return {**given, **{key: value for key, value in values.items() if value is not None}}

    @property
    def gpu(self) -> Gpu | None:
        """The GPU of that name, or the one that stands for the compute capability."""
        if self.device_name is not None:
            return gpus()[self.device_name]
        if self.compute_capability is None:
            return None
        return gpu_of(self.compute_capability, rocm=self.rocm is True)

    def known(self) -> Situation:
        """List the facts that are known."""
        values = {name: getattr(self, name) for name in type(self).model_fields}
        return {name: value for name, value in values.items() if value is not None}


_Member = TypeVar("_Member")
_SOME = Field(min_length=1)
AnyOf = Annotated[Annotated[AbstractSet[_Member], _SOME] | None, *STORED_AS_SET]
"""A set of values, any of which meets a condition."""


def _written_numbers(value: object) -> object:
    """Refuse one number where several are expected."""
    if type(value) is int:
        raise PydanticCustomError("numbers", f"Input should be {{{value}}}, or AtLeast({value})")
    return value


Numbers = Annotated[AtLeast | SomeOf[StrictInt] | None, BeforeValidator(_written_numbers)]
Flag = StrictBool | None


class Given(FrozenModel):
    """A condition over a use, its server's flags and its facts; all that is stated must hold.

    A set takes any of its members, `AtLeast` any number from it on. Two alternatives are two
    `When`s.
    """

    role: AnyOf[Role] = None
    phase: AnyOf[Phase] = None
    device: AnyOf[Device] = None
    compute_capability: SomeWindows | None = None
    dtype: AnyOf[Dtype] = None
    kv_cache_dtype: AnyOf[Dtype] = None
    head_size: Numbers = None
    page_size: Numbers = None
    attention_arch: AnyOf[AttentionArch] = None
    context_length: Numbers = None
    rocm: Flag = None
    attention_type: AnyOf[AttentionType] = None
    sliding_window: Flag = None
    attention_sinks: Flag = None
    logit_soft_cap: Flag = None
    non_causal: Flag = None
    multimodal_prefix: Flag = None
    per_head_kv_scales: Flag = None
    decode_context_parallel: Flag = None
    prefill_context_parallel: Flag = None
    kv_layout: AnyOf[KVLayout] = None
    speculative_algorithm: AnyOf[Algorithm] = None
    """`NONE` is speculation switched off."""
    decode_attention_backend: AnyOf[str] = None
    """The name that decode runs on, by whichever flag."""
    speculative_attention_mode: AnyOf[Literal["prefill", "decode"]] = None
    speculative_eagle_topk: Numbers = None
    speculative_num_steps: Numbers = None
    speculative_num_draft_tokens: Numbers = None
    enable_two_batch_overlap: Flag = None
    enable_mixed_chunk: Flag = None
    enable_dp_attention: Flag = None
    disable_piecewise_cuda_graph: Flag = None
    enforce_piecewise_cuda_graph: Flag = None
    disable_cuda_graph: Flag = None
    disable_overlap_schedule: Flag = None
    enable_kv_cache_sharding: Flag = None
    enable_deterministic_inference: Flag = None
    disaggregation_mode: AnyOf[Literal["null", "prefill", "decode"]] = None
    tp_size: Numbers = None
    pp_size: Numbers = None
    dp_size: Numbers = None
    expression: Annotated[str, _SOME] | None = None
    """A condition that only running code decides, in that code's own words: it stays open, so
    both ways count. The readers of engines write it."""

    @model_validator(mode="after")
    def _states_something(self) -> Given:
        if not self.stated():
            raise ValueError("Given() states no condition; name at least one flag or fact.")
        return self

    def stated(self) -> Mapping[str, object]:
        """List the stated requirements by name, in the order of the fields."""
        values = {name: getattr(self, name) for name in type(self).model_fields}
        return {name: value for name, value in values.items() if value is not None}

    def truth(self, situation: Situation) -> Truth:
        """Evaluate the condition: FALSE if a part fails, else UNKNOWN if one is open."""
        compared = [(wanted, situation.get(name)) for name, wanted in self.stated().items()]
        if not all(actual is None or includes(wanted, actual) for wanted, actual in compared):
            return Truth.FALSE
        return Truth.UNKNOWN if any(actual is None for _, actual in compared) else Truth.TRUE

    def __str__(self) -> str:
        return " and ".join(
            str(wanted) if name == "expression" else f"{name} {_text(wanted)}"
            for name, wanted in self.stated().items()
        )


def includes(taken: object, actual: object) -> bool:
    """Return whether a value is among those that a condition or a backend takes."""
    match taken:
        case bool():
            return taken is actual
        case tuple():
            return any(actual in window for window in taken)
    return isinstance(taken, Container) and actual in taken


def _text(wanted: object) -> str:
    match wanted:
        case bool():
            return "on" if wanted else "off"
        case tuple():
            return "in " + " or ".join(map(str, wanted))
        case frozenset():
            names = sorted(str(v.value if isinstance(v, Enum) else v) for v in wanted)
            return f"= {names[0]}" if len(names) == 1 else "in " + ", ".join(names)
    return str(wanted)


_BLOCKS = "kernel_block_sizes"
_PERMISSIONS = [name for name, kind in CAPABILITIES.items() if kind.worst is False]
CHECKED_AGAINST: Mapping[str, str] = {
    "devices": "device",
    "dtypes": "dtype",
    "kv_cache_dtypes": "kv_cache_dtype",
    "head_sizes": "head_size",
    "page_sizes": "page_size",
    "compute_capability": "compute_capability",
    "attention_arch": "attention_arch",
    "attention_types": "attention_type",
    "kv_layouts": "kv_layout",
    _BLOCKS: "page_size",
    **{name: name for name in _PERMISSIONS if name in Facts.model_fields},
}
"""The fact that each capability of the machine and the model is checked against."""
FEATURES = CHECKED_AGAINST.keys() & _PERMISSIONS
"""Facts that a model or a server has or has not. A backend is checked against those it has."""
OF_EVERY_SERVER = frozenset(
    {"device", "dtype", "kv_cache_dtype", "head_size", "compute_capability", "attention_arch"}
)
"""Facts that a server cannot be without. Of the others, the engine chooses pages and their layout
by its backends, and most servers have no feature."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """Why a backend does not fit, or could not be checked."""

    fact: str
    actual: str
    """The value here."""
    needed: str | None
    """What the backend takes; None where it is undeclared."""

    @property
    def code(self) -> str:
        """Stable: `<fact>-unsupported` or `<fact>-not-checked`."""
        ending = "not-checked" if self.needed is None else "unsupported"
        return f"{self.fact.replace('_', '-')}-{ending}"

    @property
    def remedy(self) -> str:
        """What to do about it."""
        if self.needed is None:
            return "Ask the backend's author to declare it."
        if self.fact in FEATURES:
            return f"Use another backend, or a model and flags without {self.fact}."
        return f"Use another backend, or {self.fact} {self.needed}."

    def of(self, backend: str) -> str:
        """Write the reason as a sentence about a backend."""
        clause = f"takes {self.fact} {self.needed}"
        if self.fact in FEATURES:
            says = "does not support" if self.needed else "does not say whether it supports"
            clause = f"{says} {self.fact}"
        elif self.needed is None:
            clause = f"does not say which {self.fact} it takes"
        return f"backend {backend!r} {clause}; here it is {self.actual}."


def unsupported_reasons(supported: Mapping[str, object], facts: Facts) -> tuple[Reason, ...]:
    """List the reasons why a backend does not fit the known facts.

    `supported` holds a value for each capability in `CHECKED_AGAINST`. A capability that is
    undeclared is a reason too, without `needed`, unless its worst value takes the fact: it may fit.
    """
    known = facts.known()
    checked = {**supported, _BLOCKS: pages_of(supported[_BLOCKS])}
    reasons = (
        Reason(
            fact=fact,
            actual=text_of(known[fact]),
            needed=None if checked[name] is UNDECLARED else text_of(checked[name]),
        )
        for name, fact in CHECKED_AGAINST.items()
        if fact in known and not _takes(name, checked[name], known[fact])
    )
    return tuple(dict.fromkeys(reasons))


def _takes(capability: str, taken: object, actual: object) -> bool:
    """Return whether a backend that states `taken` fits a fact."""
    if taken is UNDECLARED:
        # Without blocks of its own, a kernel takes pages, which are checked by themselves.
        return capability == _BLOCKS or includes(CAPABILITIES[capability].worst, actual)
    return actual is False or includes(taken, actual)


def text_of(value: object) -> str:
    """Write a value of a capability or a fact for a reader, in a stable order."""
    match value:
        case bool():
            return "yes" if value else "no"
        case int() if value == NO_LIMIT:
            return "no limit"
        case Enum():
            return str(value.value)
        case (int(major), int(minor)):
            return f"{major}.{minor}"
        case tuple():
            return " or ".join(map(str, value))
        case frozenset():
            return ", ".join(sorted(map(text_of, value))) or "none"
    return str(value)
