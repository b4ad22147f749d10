"""SGLang's conditions in our vocabulary, and the rules that a version forces something by."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import replace

from backend_caps.capability.facts import Given
from backend_caps.capability.vocabulary import Capabilities
from backend_caps.engines.source.guards import (
    Function,
    Guards,
    condition,
    conditions,
    in_turn,
    returns,
)
from backend_caps.engines.source.index import FunctionDef, Index
from backend_caps.resolution.engine import ENGINES
from backend_caps.resolution.rules import Rule, RuleSet

_DEVICES = frozenset({"cpu", "cuda", "hpu", "mps", "musa", "npu", "xpu"})
"""The torch device types that SGLang runs on."""
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
_WORDS: Mapping[str, tuple[_Fields, _Fields | None]] = {
    **{name: ({name: True}, {name: False}) for name in _SWITCHES},
    **{f"is_{each}": ({"device": {each}}, {"device": _DEVICES - {each}}) for each in _DEVICES},
    "is_cuda": ({"device": {"cuda"}, "rocm": False}, None),  # torch calls ROCm's devices so too
    "is_hip": ({"rocm": True}, {"rocm": False}),
    _MLA: ({"attention_arch": {"mla"}}, {"attention_arch": _ARCHITECTURES - {"mla"}}),
}
"""What of ours must hold for a word of SGLang's to hold, and for it not to hold."""
_MODULE = "sglang.srt.managers.overlap_utils"
_DECIDES = "decide_needs_cpu_seq_lens"
_FLAG = "needs_cpu_seq_lens"
_ALWAYS = "it runs at all"
KNOWN_VERSIONS = tuple(name.removeprefix("sglang-") for name in ENGINES)
"""The versions whose source the reader was checked with."""
IN_SOURCE = ("two-batch-overlap", "piecewise-cuda-graph", "ngram")
"""The rules that SGLang's function states; the others are in no version's source."""


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
    """Return whether guards can hold together, as far as the platform decides.

    It is one for the whole process. What else two guards ask may have changed between them.
    """
    fields: dict[str, object] = {}
    for guard in conditions(guards):
        is_not = isinstance(guard, ast.UnaryOp) and isinstance(guard.op, ast.Not)
        inner = guard.operand if isinstance(guard, ast.UnaryOp) and is_not else guard
        asked = _fields(guard) if _platform(inner) else None
        both = fields if asked is None else _together(fields, asked)
        if both is None:
            return False
        fields = both
    return True


def _together(fields: dict[str, object], asked: _Fields | None) -> dict[str, object] | None:
    """Join two sets of required values; None where one is unknown or they contradict."""
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
    """Translate a condition of SGLang's into required values; None where none decides it."""
    match guard:
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            word = _word(operand)
            return None if word is None else _WORDS[word][1]
    word = _word(guard)
    return _compared(guard) if word is None else _WORDS[word][0]


def _compared(guard: ast.expr) -> _Fields | None:
    match guard:
        case ast.Compare(
            left=ast.Attribute(value=holder, attr="speculative_algorithm"),
            ops=[ast.Eq()],
            comparators=[ast.Constant(value=str(name))],
        ) if _ARGS.fullmatch(ast.unparse(holder)):
            return {"speculative_algorithm": {name}}
        case ast.Compare(
            left=ast.Attribute(value=ast.Name(id="self"), attr="_kv_shard_pool"),
            ops=[ast.IsNot()],
            comparators=[ast.Constant(value=None)],
        ):
            return {"enable_kv_cache_sharding": True}
        case ast.Call(func=ast.Attribute(attr=name), args=[], keywords=[]) if name in _ALGORITHMS:
            return {"speculative_algorithm": {_ALGORITHMS[name]}}
        case ast.Compare(
            left=ast.Name(id="decode_backend"),
            ops=[ast.Eq()],
            comparators=[ast.Constant(value=str(name))],
        ):
            return {"decode_attention_backend": {name}}
    return None


def _word(guard: ast.expr) -> str | None:
    """Return the flag that a condition asks for, of an object that is known to have it."""
    match guard:
        case ast.Attribute(value=holder, attr=name):
            holders = _RUNNERS if name == _MLA else _ARGS
            is_ours = name == _MLA or name in _SWITCHES
            return name if is_ours and holders.fullmatch(ast.unparse(holder)) else None
    return _platform(guard)


def _platform(guard: ast.expr) -> str | None:
    """Return the platform word of a test: of `is_npu()`, or of a module's `_is_npu`."""
    match guard:
        case ast.Call(func=ast.Name(id=name), args=[], keywords=[]):
            word = name.lstrip("_")
        case ast.Name(id=name) if name.startswith("_"):
            word = name.lstrip("_")
        case _:
            return None
    return word if word in _WORDS and word.startswith("is_") else None


def read_rules(index: Index) -> RuleSet:
    """Read what the version forces; what is not known is a problem, and counts as open."""
    is_known = index.tree.version in KNOWN_VERSIONS
    if not is_known:
        index.note_unknown_version(KNOWN_VERSIONS)
    expected = RuleSet.builtin(index.label if is_known else ENGINES[-1])
    found = {rule.name: rule for rule in _read(index)}
    if is_known:
        for rule in expected.rules:
            if rule.name in IN_SOURCE and rule.name not in found:
                index.note_missing(f"rule {rule.name!r}", _MODULE)
    ours = {rule.name: rule for rule in expected.rules if rule.name not in IN_SOURCE}
    return replace(
        expected,
        name=index.label,
        rules=_in_order((ours | found).values(), expected),
        algorithms=expected.algorithms if is_known else frozenset(),
    )


def _in_order(rules: Iterable[Rule], expected: RuleSet) -> tuple[Rule, ...]:
    """Sort the rules as the built-in set has them, those that it has not after them."""
    places = {rule.name: place for place, rule in enumerate(expected.rules)}
    return tuple(sorted(rules, key=lambda rule: places.get(rule.name, len(places))))


def _read(index: Index) -> Iterator[Rule]:
    function = _function(index)
    if function is None:
        index.note_missing(f"{_DECIDES}()", _MODULE)
        yield _unknown("nothing is known of what the engine forces")
        return
    known = {rule.given: rule for name in ENGINES for rule in RuleSet.builtin(name).rules}
    for guards in _forcing(function.node):
        given = given_of(guards)
        if given in known:
            yield known[given]
        else:
            words = condition(guards) or _ALWAYS
            index.note(
                "engine-rule-unknown",
                engine="sglang",
                version=index.version,
                condition=words,
                at=function.at,
            )
            yield _unknown(words)
    if not any(_is_join(case.value) for case in returns(function.node)):
        index.note_missing(f"join over the backends' {_FLAG}", _MODULE)


def _unknown(words: str) -> Rule:
    return Rule(
        name=f"unknown: {words}",
        given=Given(expression=words),
        forces=Capabilities(needs_cpu_seq_lens=True),
        reason="the engine's source forces it, and no rule here says why",
    )


def _function(index: Index) -> FunctionDef | None:
    module = index.module(_MODULE)
    for node in module.tree.body if module else ():
        if module is not None and isinstance(node, Function) and node.name == _DECIDES:
            return FunctionDef(module, node)
    return None


def _forcing(function: Function) -> Iterator[Guards]:
    """List the conditions under which the function may answer True before it asks the backends.

    What an earlier answer needs not to hold is left out of the conditions of a later one.
    """
    for case in in_turn(returns(function)):
        match case.value:
            case ast.Constant(value=True):
                yield case.guards
            case ast.Constant(value=False):
                continue
            case value if not _is_join(value):
                yield *case.guards, value


def _is_join(node: ast.expr) -> bool:
    """Return whether it is the or over the backends, a missing flag counted as True."""
    match node:
        case ast.Call(
            func=ast.Name(id="any"),
            args=[
                ast.GeneratorExp(
                    elt=ast.Call(
                        func=ast.Name(id="getattr"),
                        args=[_, ast.Constant(value=flag), ast.Constant(value=True)],
                    )
                )
            ],
        ):
            return flag == _FLAG
    return False
