"""SGLang's conditions in our vocabulary: what flags and facts decide, and what stays open."""

from __future__ import annotations

import ast
import re
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
_MLA = "use_mla_backend"
_ARGS = re.compile(
    r"(?:self\.)?(?:\w*runner\.)?server_args|args|get_global_server_args\(\)"
    r"|get_(?:exec|parallel|schedule|spec)\(\)(?:\.(?:graph|overlap))?"
)
"""What holds the server's flags; a word of theirs may mean anything elsewhere."""
_RUNNERS = re.compile(
    r"(?:self\.)?(?:draft_|model_|draft_model_)?runner|get_global_server_args\(\)"
)
"""What knows whether the model has MLA."""
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
    """Tell whether guards do not contradict each other, as far as the platform decides.

    It is one for the whole process. What else two guards ask may have changed between them.
    """
    fields: dict[str, object] = {}
    for guard in conditions(guards):
        asked = _fields(guard) if _is_of_platform(guard) else None
        both = fields if asked is None else _together(fields, asked)
        if both is None:
            return False
        fields = both
    return True


def _is_of_platform(guard: ast.expr) -> bool:
    match guard:
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return _platform(operand) is not None
    return _platform(guard) is not None


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
            left=ast.Attribute(value=holder, attr="speculative_algorithm"),
            ops=[ast.Eq()],
            comparators=[ast.Constant(value=str(name))],
        ) if _ARGS.fullmatch(ast.unparse(holder)):
            yield {"speculative_algorithm": {name}}
        case ast.Compare(
            left=ast.Attribute(value=ast.Name(id="self"), attr="_kv_shard_pool"),
            ops=[ast.IsNot()],
            comparators=[ast.Constant(value=None)],
        ):
            yield {"enable_kv_cache_sharding": True}
        case ast.Call(func=ast.Attribute(attr=name), args=[], keywords=[]) if name in _ALGORITHMS:
            yield {"speculative_algorithm": {_ALGORITHMS[name]}}
        case ast.Compare(
            left=ast.Name(id="decode_backend"),
            ops=[ast.Eq()],
            comparators=[ast.Constant(value=str(name))],
        ):
            yield {"decode_attention_backend": {name}}
    yield from _of_word(guard)


def _of_word(guard: ast.expr) -> Iterator[_Fields]:
    word = _word(guard)
    if word in _SWITCHES:
        yield {word: True}
    elif word == _MLA:
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
    elif word == _MLA:
        yield {"attention_arch": _ARCHITECTURES - {"mla"}}
    elif word == "is_hip":
        yield {"rocm": False}
    elif word != "is_cuda" and word in _ASKS_DEVICE:  # torch calls ROCm's devices `cuda` too
        yield {"device": _DEVICES - {_ASKS_DEVICE[word]}}


def _word(guard: ast.expr) -> str | None:
    """Return the flag that a condition asks for, of an object that is known to have it."""
    match guard:
        case ast.Attribute(value=holder, attr=name):
            holders = _RUNNERS if name == _MLA else _ARGS
            is_ours = name == _MLA or name in _SWITCHES
            return name if is_ours and holders.fullmatch(ast.unparse(holder)) else None
    return _platform(guard)


def _platform(guard: ast.expr) -> str | None:
    """Return what is asked of the platform: `is_npu()`, or a module's `_is_npu`."""
    match guard:
        case ast.Call(func=ast.Name(id=name), args=[], keywords=[]):
            word = name.lstrip("_")
        case ast.Name(id=name) if name.startswith("_"):
            word = name.lstrip("_")
        case _:
            return None
    return word if word == "is_hip" or word in _ASKS_DEVICE else None
