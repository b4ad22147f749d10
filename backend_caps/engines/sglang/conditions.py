"""SGLang's conditions as `Given`, and the rules by which a version forces capabilities."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import replace
from functools import cache

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
from backend_caps.engines.source.index import Index
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
_ALGORITHMS = {"is_dflash": "DFLASH", "is_dspark": "DSPARK", "is_ngram": "NGRAM"}
"""Methods of SGLang's `SpeculativeAlgorithm` that test for one algorithm."""
_ARGS = (
    r"(?:(?:self\.)?(?:\w*runner\.)?server_args|args|get_global_server_args\(\)"
    r"|get_(?:exec|parallel|schedule|spec)\(\)(?:\.(?:graph|overlap))?)"
)
"""Expressions for the server's arguments; on another object a flag's name may differ in meaning."""
_RUNNERS = r"(?:(?:self\.)?(?:draft_|model_|draft_model_)?runner|get_global_server_args\(\))"
"""Objects with `use_mla_backend`, which is true for MLA models."""
_TEST = re.compile(
    rf"_*(?P<platform>is_[a-z]+)\(\)|_+(?P<module_platform>is_[a-z]+)"
    rf"|{_ARGS}\.(?P<switch>{'|'.join(sorted(_SWITCHES))})"
    rf"|{_RUNNERS}\.(?P<arch>use_mla_backend)"
    rf"|{_ARGS}\.speculative_algorithm == '(?P<speculative_algorithm>[^'\\]*)'"
    rf"|[\w.()]+\.(?P<algorithm>{'|'.join(sorted(_ALGORITHMS))})\(\)"
    r"|decode_backend == '(?P<decode_attention_backend>[^'\\]*)'"
    r"|(?P<sharding>self\._kv_shard_pool is not None)"
)
"""A test in SGLang that flags and facts decide, as `ast.unparse` writes it."""
_Fields = Mapping[str, object]
_Required = tuple[_Fields, _Fields | None]
"""The facts required for a test to hold, and for it to fail; None where none decide it."""
_PLATFORMS: Mapping[str, _Required] = {
    **{f"is_{each}": ({"device": {each}}, {"device": _DEVICES - {each}}) for each in _DEVICES},
    "is_cuda": ({"device": {"cuda"}, "rocm": False}, None),  # torch calls ROCm's devices so too
    "is_hip": ({"rocm": True}, {"rocm": False}),
}
_MODULE = "sglang.srt.managers.overlap_utils"
_DECIDES = "decide_needs_cpu_seq_lens"
_FLAG = "needs_cpu_seq_lens"
_JOIN = re.compile(rf"any\(\(?getattr\([^,]+, '{_FLAG}', True\) for .*\)")
_ALWAYS = "it runs at all"
KNOWN_VERSIONS = tuple(name.removeprefix("sglang-") for name in ENGINES)
"""The versions with which the reader was checked."""
IN_SOURCE = ("two-batch-overlap", "piecewise-cuda-graph", "ngram")
"""The rules that SGLang's function states; no version's source has the others."""


def given_of(guards: Iterable[ast.expr]) -> Given | None:
    """Translate guards into a `Given`; None without guards.

    Guards that flags and facts do not decide become its `expression`, which stays open.
    """
    fields: dict[str, object] = {}
    untranslated: list[ast.expr] = []
    for guard in conditions(guards):
        more = _fields(guard)
        joined = None if more is None else _together(fields, more)
        if joined is None:
            untranslated.append(guard)
        else:
            fields = joined
    if untranslated:
        fields["expression"] = condition(untranslated)
    return Given.model_validate(fields) if fields else None


def can_hold(guards: Iterable[ast.expr]) -> bool:
    """Return whether the guards' tests of the platform can hold together.

    Only the platform is fixed for the process: other values may change between two guards.
    """
    fields: dict[str, object] = {}
    for guard in conditions(guards):
        joined = _together(fields, _fields(guard, {"platform", "module_platform"}) or {})
        if joined is None:
            return False
        fields = joined
    return True


def _together(fields: dict[str, object], more: _Fields) -> dict[str, object] | None:
    """Join two sets of required values; None where they contradict."""
    joined = {**fields, **more}
    for name in fields.keys() & more.keys():
        one, other = fields[name], more[name]
        if isinstance(one, AbstractSet) and isinstance(other, AbstractSet) and one & other:
            joined[name] = one & other
        elif one != other:
            return None
    return joined


def _fields(guard: ast.expr, kinds: Collection[str] = _TEST.groupindex) -> _Fields | None:
    """Translate a condition of SGLang into required values; None where none decide it."""
    is_not = isinstance(guard, ast.UnaryOp) and isinstance(guard.op, ast.Not)
    test = guard.operand if isinstance(guard, ast.UnaryOp) and is_not else guard
    found = _TEST.fullmatch(ast.unparse(test))
    kind = found.lastgroup if found else None
    if found is None or kind is None or kind not in kinds:
        return None
    required = _required(kind, found[kind])
    return required and required[is_not]


def _required(kind: str, word: str) -> _Required | None:
    match kind:
        case "platform" | "module_platform":
            return _PLATFORMS.get(word)
        case "switch":
            return {word: True}, {word: False}
        case "arch":
            return {"attention_arch": {"mla"}}, {"attention_arch": _ARCHITECTURES - {"mla"}}
        case "algorithm":
            own = frozenset({_ALGORITHMS[word]})
            others = _every_algorithm() - own
            return {"speculative_algorithm": own}, {"speculative_algorithm": others}
        case "sharding":
            return {"enable_kv_cache_sharding": True}, None
        case flag:
            return {flag: {word}}, None


@cache
def _every_algorithm() -> frozenset[str]:
    """Return the algorithms of the newest known version, and that of a server without any."""
    return RuleSet.builtin(ENGINES[-1]).algorithms | {"NONE"}


def read_rules(index: Index) -> RuleSet:
    """Read the rules of a version; an unknown one becomes a problem, and stays open."""
    is_known = index.note_unless_known(KNOWN_VERSIONS)
    found = {rule.name: rule for rule in _read(index)}
    expected = RuleSet.builtin(index.label if is_known else _nearest(found))
    kept: list[Rule] = []
    for rule in expected.rules:
        if rule.name not in IN_SOURCE or rule.name in found:
            kept.append(found.pop(rule.name, rule))
        elif is_known:
            index.note_missing(f"rule {rule.name!r}", _MODULE)
    return replace(
        expected,
        unchecked_for=None if is_known else index.label,
        rules=(*kept, *found.values()),
        algorithms=expected.algorithms if is_known else frozenset(),
    )


def _nearest(found: Collection[str]) -> str:
    """Return the known version whose function states the most of these rules, and no other."""

    def common(name: str) -> int:
        stated = {rule.name for rule in RuleSet.builtin(name).rules}.intersection(IN_SOURCE)
        return len(stated.intersection(found)) - len(stated.difference(found))

    return max(reversed(ENGINES), key=common)


def _read(index: Index) -> Iterator[Rule]:
    module = index.module(_MODULE)
    meanings = module.scope.get(_DECIDES, ()) if module else ()
    function = next((node for _, node in meanings if isinstance(node, Function)), None)
    if module is None or function is None:
        index.note_missing(f"{_DECIDES}()", _MODULE)
        yield _unknown("nothing is known of what the engine forces")
        return
    known = {rule.given: rule for name in ENGINES for rule in RuleSet.builtin(name).rules}
    for guards in _forcing(function):
        given = given_of(guards)
        if given in known:
            yield known[given]
        else:
            words = condition(guards) or _ALWAYS
            index.note_of_version("engine-rule-unknown", condition=words, at=module.at(function))
            yield _unknown(words)
    if not any(_is_join(case.value) for case in returns(function)):
        index.note_missing(f"join over the backends' {_FLAG}", _MODULE)


def _unknown(words: str) -> Rule:
    return Rule(
        name=f"unknown: {words}",
        given=Given(expression=words),
        forces=Capabilities(needs_cpu_seq_lens=True),
        reason="the engine's source forces it, and no rule here says why",
    )


def _forcing(function: Function) -> Iterator[Guards]:
    """List the conditions under which the function may return True without the backends.

    The negated conditions of earlier returns are left out of those of later ones.
    """
    for case in in_turn(returns(function)):
        match case.value:
            case ast.Constant(value=True):
                yield case.guards
            case ast.Constant(value=False):
                continue
            case value if not _is_join(value):
                yield *case.guards, value


def _is_join(value: ast.expr) -> bool:
    """Return whether a value is `any` over the backends' flags, where a missing one is True."""
    return isinstance(value, ast.Call) and _JOIN.fullmatch(ast.unparse(value)) is not None
