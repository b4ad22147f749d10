"""Any declaration, use, rule and server, by hypothesis."""

from __future__ import annotations

from collections.abc import Mapping

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from backend_caps import AtLeast, Declaration, Given, Part, Rule, ServerFlags, Use, When
from backend_caps.capability.kind import ANY, Phase, Role, Scale, Scope
from backend_caps.capability.sets import (
    ComputeRange,
    Conflict,
    Exact,
    JoinedSizes,
    MultipleOf,
    OneOf,
    Sizes,
    Unchecked,
    intersect,
    overlap,
)
from backend_caps.capability.vocabulary import (
    CAPABILITIES,
    NO_LIMIT,
    AttentionArch,
    AttentionType,
    Capabilities,
    KVLayout,
)

law = settings(
    deadline=None,  # a shared machine is slow at times
    derandomize=True,  # a change fails by what it changes
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
"""How a law is tried."""

Situation = dict[str, object]

_WORDS = st.sampled_from(["bfloat16", "float16", "fp8_e4m3", "fp8_e5m2"])
_SIZE = st.sampled_from([1, 2, 3, 4, 6, 8, 12, 16, 24, 64])
_VERSION = st.tuples(st.integers(7, 12), st.integers(0, 1))
_SENTENCE = st.text(st.characters(codec="utf-8"), min_size=1).map(str.strip).filter(bool)
_NAME = st.sampled_from(["fa3", "flashinfer", "mla", "triton"])

windows = st.lists(
    st.builds(ComputeRange, _VERSION, st.none() | _VERSION), min_size=1, max_size=3
).map(tuple)
sizes: st.SearchStrategy[Sizes] = st.one_of(
    st.builds(Exact, _SIZE),
    st.builds(MultipleOf, _SIZE),
    st.builds(OneOf, st.frozensets(_SIZE, min_size=1, max_size=4)),
    st.just(ANY),
)


def normal(value: object) -> object:
    """Write a value as joins leave it: one size alone, windows in order, a conflict unowned."""
    if isinstance(value, Conflict):
        return Conflict()
    if isinstance(value, Exact | MultipleOf | OneOf | Unchecked):
        return intersect(ANY, value)
    return overlap(ANY, value) if isinstance(value, tuple) else value


joined_sizes: st.SearchStrategy[JoinedSizes] = st.one_of(
    sizes, sizes.map(Unchecked), st.just(Conflict()), st.just(Conflict(("fa3", "mla")))
)

_NARROWER: Mapping[str, st.SearchStrategy[object]] = {
    "roles": st.frozensets(st.sampled_from(Role), min_size=1),
    "max_speculative_topk": st.sampled_from([1, 2, 8, NO_LIMIT]),
    "devices": st.frozensets(st.sampled_from(["cuda", "npu", "xpu"])) | st.just(ANY),
    "attention_arch": st.frozensets(st.sampled_from(AttentionArch)) | st.just(ANY),
    "attention_types": st.frozensets(st.sampled_from(AttentionType), min_size=1),
    "kv_layouts": st.frozensets(st.sampled_from(KVLayout)) | st.just(ANY),
}
"""The capabilities whose values are fewer than their algebra says."""


def declared_value(name: str) -> st.SearchStrategy[object]:
    """Any value that a backend may declare of a capability: by its worst and its best one."""
    if name in _NARROWER:
        return _NARROWER[name]
    kind = CAPABILITIES[name]
    match kind.worst, kind.best:
        case bool(), _:
            return st.booleans()
        case Scale() as level, _:
            return st.sampled_from(type(level))
        case int(worst), int(best):
            return st.integers(worst, best)
        case _, frozenset(best):
            return st.frozensets(st.sampled_from(sorted(best, key=str)))
        case Unchecked(), _:
            return sizes
        case tuple(), _:
            return windows | st.just(ANY)
    return st.frozensets(_WORDS) | st.just(ANY)


def joined_value(name: str) -> st.SearchStrategy[object]:
    """Any value that a join of a capability may have."""
    is_of_sizes = isinstance(CAPABILITIES[name].worst, Unchecked)
    return joined_sizes if is_of_sizes else declared_value(name)


def _capabilities(names: list[str], *, at_least: int = 0) -> st.SearchStrategy[Capabilities]:
    fields = st.lists(st.sampled_from(names), min_size=at_least, unique=True)
    return fields.flatmap(
        lambda some: st.fixed_dictionaries({n: declared_value(n) for n in some})
    ).map(Capabilities.model_validate)


_ALL = list(CAPABILITIES)
_PLANNED = [name for name, kind in CAPABILITIES.items() if kind.scope is not Scope.USE]
_USABLE = [*_PLANNED, "max_context_len_known"]

_NUMBERS = st.frozensets(_SIZE, min_size=1, max_size=3) | st.builds(AtLeast, _SIZE)
_ASKED: Mapping[str, st.SearchStrategy[object]] = {
    "role": st.frozensets(st.sampled_from(Role), min_size=1),
    "phase": st.frozensets(st.sampled_from(Phase), min_size=1),
    "device": st.frozensets(st.sampled_from(["cuda", "xpu"]), min_size=1),
    "kv_cache_dtype": st.frozensets(_WORDS, min_size=1),
    "compute_capability": windows,
    "head_size": _NUMBERS,
    "tp_size": _NUMBERS,
    "disable_cuda_graph": st.booleans(),
    "enable_dp_attention": st.booleans(),
}
_KNOWN: Mapping[str, st.SearchStrategy[object]] = {
    "role": st.sampled_from(Role),
    "phase": st.sampled_from(Phase),
    "device": st.sampled_from(["cuda", "npu", "xpu"]),
    "kv_cache_dtype": _WORDS,
    "compute_capability": _VERSION,
    "head_size": _SIZE,
    "tp_size": _SIZE,
    "disable_cuda_graph": st.booleans(),
    "enable_dp_attention": st.booleans(),
}


def _asked(names: list[str]) -> st.SearchStrategy[Given]:
    fields = st.lists(st.sampled_from(names), min_size=1, max_size=3, unique=True)
    return fields.flatmap(lambda some: st.fixed_dictionaries({n: _ASKED[n] for n in some})).map(
        Given.model_validate
    )


givens = _asked(list(_ASKED))
situations: st.SearchStrategy[Situation] = st.fixed_dictionaries(dict(_KNOWN))


@st.composite
def partly_known(draw: st.DrawFn) -> tuple[Situation, Situation]:
    """What is known of a server, and all of it."""
    whole = draw(situations)
    known = draw(st.sets(st.sampled_from(list(whole))))
    return {name: whole[name] for name in known}, whole


def _whens(names: list[str]) -> st.SearchStrategy[list[When]]:
    when = st.builds(
        When, given=givens, capabilities=_capabilities(names, at_least=1), reason=_SENTENCE
    )
    return st.lists(when, max_size=2)


parts = st.lists(
    st.builds(
        Part,
        backend=_SENTENCE,
        phases=st.frozensets(st.sampled_from(Phase), min_size=1),
        roles=st.frozensets(st.sampled_from(Role), min_size=1),
    ),
    max_size=2,
)
declarations = st.builds(
    Declaration,
    capabilities=_capabilities(_ALL),
    conditions=_whens(_ALL),
    parts=parts,
    implementation=st.none() | st.just("my_flash.backend:MyFlash"),
)
"""Any declaration."""
plain_declarations = st.builds(
    Declaration, capabilities=_capabilities(_ALL), conditions=_whens(_ALL)
)
"""Any declaration of a backend that is no composite."""
usable_declarations = st.builds(
    Declaration, capabilities=_capabilities(_USABLE), conditions=_whens(_USABLE)
)
"""Any declaration of a backend that takes every role and is no composite."""

uses = st.builds(
    Use,
    backend=_NAME,
    role=st.sampled_from(Role),
    phase=st.sampled_from(Phase),
    declaration=usable_declarations,
    adds_only=st.booleans(),
)
some_uses = st.lists(uses, min_size=1, max_size=3)
rules = st.builds(
    Rule,
    name=st.sampled_from(["house", "site"]),
    given=givens,
    forces=_capabilities(_PLANNED, at_least=1),
    reason=_SENTENCE,
)

_COUNT = st.integers(1, 2**31 - 1)
_FLAGS: Mapping[str, st.SearchStrategy[object]] = {
    "attention_backend": _NAME,
    "prefill_attention_backend": _NAME,
    "decode_attention_backend": _NAME,
    "speculative_algorithm": st.sampled_from(["EAGLE", "EAGLE3", "NGRAM", "STANDALONE"]),
    "speculative_draft_attention_backend": _NAME,
    "speculative_attention_mode": st.sampled_from(["prefill", "decode"]),
    "speculative_eagle_topk": _COUNT,
    "speculative_num_steps": st.integers(0, 8),
    "speculative_num_draft_tokens": _COUNT,
    "page_size": _COUNT,
    "kv_cache_dtype": _WORDS,
    "disaggregation_mode": st.sampled_from(["null", "prefill", "decode"]),
    "context_length": _COUNT,
    "tp_size": _COUNT,
    "pp_size": _COUNT,
    "dp_size": _COUNT,
    "device": st.sampled_from(["cuda", "npu", "xpu"]),
    **{
        name: st.just(True)  # noqa: FBT003 - a switch that is given is on
        for name, field in ServerFlags.model_fields.items()
        if field.default is False
    },
}
flag_names = list(_FLAGS)
flags = st.fixed_dictionaries({}, optional=dict(_FLAGS)).map(ServerFlags.model_validate)
"""Any server, by the flags that were given."""
