"""What a version of SGLang forces, read from the function that decides, as rules of ours."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import replace

from backend_caps.capability.facts import Given
from backend_caps.capability.vocabulary import Capabilities
from backend_caps.engines import problems
from backend_caps.engines.sglang.conditions import given_of
from backend_caps.engines.source.guards import condition, conditions
from backend_caps.engines.source.index import Index
from backend_caps.engines.source.module import Function, Module
from backend_caps.engines.source.returns import returns
from backend_caps.resolution.engine import ENGINES
from backend_caps.resolution.rules import Rule, RuleSet

_MODULE = "sglang.srt.managers.overlap_utils"
_DECIDES = "decide_needs_cpu_seq_lens"
KNOWN_VERSIONS = tuple(name.removeprefix("sglang-") for name in ENGINES)
"""The versions whose source the reader was checked with."""
IN_SOURCE = ("two-batch-overlap", "piecewise-cuda-graph", "ngram")
"""The rules that SGLang's function states; the others are in no version's source."""


def read_rules(index: Index) -> RuleSet:
    """Read what the version forces; what is not known is a problem, and counts as open."""
    version = index.tree.version or "of unknown version"
    known = version in KNOWN_VERSIONS
    if not known:
        index.tell(problems.unknown_version("sglang", version, KNOWN_VERSIONS))
    rules = tuple(_read(index, version))
    expected = RuleSet.builtin(f"sglang-{version}" if known else ENGINES[-1])
    _tell_missing(index, version, rules, expected if known else None)
    ours = tuple(rule for rule in expected.rules if rule.name not in IN_SOURCE)
    return replace(
        expected,
        name=f"sglang-{version}",
        rules=_in_order((*rules, *ours), expected),
        algorithms=expected.algorithms if known else frozenset(),
    )


def _in_order(rules: tuple[Rule, ...], expected: RuleSet) -> tuple[Rule, ...]:
    names = [rule.name for rule in expected.rules]
    return tuple(sorted(rules, key=lambda r: names.index(r.name) if r.name in names else 99))


def _tell_missing(
    index: Index, version: str, rules: tuple[Rule, ...], expected: RuleSet | None
) -> None:
    """Tell of rules that this version is known to have, and that its source has not."""
    found = {rule.name for rule in rules}
    for rule in expected.rules if expected else ():
        if rule.name in IN_SOURCE and rule.name not in found:
            index.tell(problems.anchor_missing("sglang", version, f"rule {rule.name!r}", _path()))


def _path() -> str:
    return _MODULE.replace(".", "/") + ".py"


def _read(index: Index, version: str) -> Iterator[Rule]:
    module = index.module(_MODULE)
    function = None if module is None else _function(module)
    if module is None or function is None:
        index.tell(problems.anchor_missing("sglang", version, f"{_DECIDES}()", _path()))
        yield _unknown("nothing is known of what the engine forces")
        return
    known = {rule.given: rule for name in ENGINES for rule in RuleSet.builtin(name).rules}
    for guards in _forcing(function):
        given = given_of(guards)
        assert given is not None, f"{_DECIDES} returns True under no condition"
        if given in known:
            yield known[given]
        else:
            words = condition(guards)
            index.tell(problems.unknown_rule("sglang", version, module.at(function), words))
            yield _unknown(words)
    if not _joins(function):
        what = "join over the backends' needs_cpu_seq_lens"
        index.tell(problems.anchor_missing("sglang", version, what, _path()))


def _unknown(words: str) -> Rule:
    return Rule(
        name=f"unknown: {words}",
        given=Given(expression=words),
        forces=Capabilities(needs_cpu_seq_lens=True),
        reason="the engine's source forces it, and no rule here says why",
    )


def _function(module: Module) -> Function | None:
    return next(
        (n for n in module.tree.body if isinstance(n, Function) and n.name == _DECIDES), None
    )


def _forcing(function: Function) -> Iterator[list[ast.expr]]:
    """List the conditions under which the function answers True, without what comes before."""
    passed: set[str] = set()
    for case in returns(function):
        own = [guard for guard in conditions(case.guards) if ast.unparse(guard) not in passed]
        passed |= {ast.unparse(ast.UnaryOp(op=ast.Not(), operand=guard)) for guard in own}
        passed |= {ast.unparse(g.operand) for g in own if isinstance(g, ast.UnaryOp)}
        if isinstance(case.value, ast.Constant) and case.value.value is True:
            yield own


def _joins(function: Function) -> bool:
    """Tell whether what is left is the or over the backends, a missing flag counted as True."""
    for node in ast.walk(function):
        match node:
            case ast.Call(
                func=ast.Name(id="getattr"),
                args=[_, ast.Constant(value="needs_cpu_seq_lens"), ast.Constant(value=True)],
            ):
                return True
    return False
