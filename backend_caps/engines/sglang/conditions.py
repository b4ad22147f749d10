"""SGLang's conditions in our vocabulary: what flags and facts decide, and what stays open."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet

from backend_caps.capability.facts import Given
from backend_caps.engines.source.guards import condition, conditions

_DEVICES = frozenset({"cpu", "cuda", "hpu", "mps", "musa", "npu", "xpu"})
"""The torch device types that SGLang runs on."""
_ASKS_DEVICE = {f"is_{device}": device for device in _DEVICES}
_ARCHITECTURES = frozenset({"mha", "mla", "sparse", "ssm"})
_SWITCHES = frozenset(
    {
        "disable_cuda_graph",
        "disable_overlap_schedule",
        "disable_piecewise_cuda_graph",
        "enable_dp_attention",
        "enable_kv_cache_sharding",
        "enable_mixed_chunk",
        "enable_two_batch_overlap",
    }
)
_ALGORITHMS = {"is_dspark": "DSPARK", "is_ngram": "NGRAM"}
"""Methods of SGLang's `SpeculativeAlgorithm` that ask for one algorithm."""
_Fields = Mapping[str, object]


def given_of(guards: Iterable[ast.expr]) -> Given | None:
    """Write guards as a condition of ours; None where there are none.

    What flags and facts do not decide stays in the source's own words, and open.
    """
    fields: dict[str, object] = {}
    left: list[ast.expr] = []
    for guard in conditions(guards):
        both = _together(fields, _fields(guard))
        if both is None:
            left.append(guard)
        else:
            fields = both
    if left:
        fields["expression"] = condition(left)
    return Given.model_validate(fields) if fields else None


def can_hold(guards: Iterable[ast.expr]) -> bool:
    """Tell whether guards do not contradict each other, as far as our vocabulary sees."""
    fields: dict[str, object] = {}
    for guard in conditions(guards):
        asked = _fields(guard)
        both = fields if asked is None else _together(fields, asked)
        if both is None:
            return False
        fields = both
    return True


def _together(fields: dict[str, object], asked: _Fields | None) -> dict[str, object] | None:
    """Ask for more than is asked already; None where it is not ours, or nothing is both."""
    if asked is None:
        return None
    both = {name: _both(fields.get(name), value) for name, value in asked.items()}
    return None if None in both.values() else {**fields, **both}


def _both(one: object, other: object) -> object:
    """Ask for two things of one name at once; None where nothing is both."""
    if one is None:
        return other
    if isinstance(one, AbstractSet) and isinstance(other, AbstractSet):
        return (one & other) or None
    return one if one == other else None


def _fields(guard: ast.expr) -> _Fields | None:
    match guard:
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return next(_where_not(operand), None)
    return next(_where(guard), None)


def _where(guard: ast.expr) -> Iterator[_Fields]:
    """Say what of ours must hold for a condition of SGLang's to hold."""
    match guard:
        case ast.Compare(
            left=ast.Attribute(attr="speculative_algorithm"),
            ops=[ast.Eq()],
            comparators=[ast.Constant(value=str(name))],
        ):
            yield {"speculative_algorithm": {name}}
        case ast.Compare(
            left=ast.Attribute(attr="_kv_shard_pool"),
            ops=[ast.IsNot()],
            comparators=[ast.Constant(value=None)],
        ):
            yield {"enable_kv_cache_sharding": True}
        case ast.Call(func=ast.Attribute(attr=name)) if name in _ALGORITHMS:
            yield {"speculative_algorithm": {_ALGORITHMS[name]}}
    yield from _of_word(guard)


def _of_word(guard: ast.expr) -> Iterator[_Fields]:
    word = _word(guard)
    if word in _SWITCHES:
        yield {word: True}
    elif word == "use_mla_backend":
        yield {"attention_arch": {"mla"}}
    elif word == "is_hip":
        yield {"rocm": True}
    elif word == "is_cuda":
        yield {"device": {"cuda"}, "rocm": False}
    elif word in _ASKS_DEVICE:
        yield {"device": {_ASKS_DEVICE[word]}}


def _where_not(guard: ast.expr) -> Iterator[_Fields]:
    word = _word(guard)
    if word in _SWITCHES:
        yield {word: False}
    elif word == "use_mla_backend":
        yield {"attention_arch": _ARCHITECTURES - {"mla"}}
    elif word == "is_hip":
        yield {"rocm": False}
    elif word != "is_cuda" and word in _ASKS_DEVICE:  # torch calls ROCm's devices `cuda` too
        yield {"device": _DEVICES - {_ASKS_DEVICE[word]}}


def _word(guard: ast.expr) -> str | None:
    """Return the last word of a flag's name, however it is reached: `is_npu()`, `_is_npu`."""
    match guard:
        case ast.Call(func=ast.Name(id=name), args=[], keywords=[]):
            return name.lstrip("_")
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name.lstrip("_")
    return None
