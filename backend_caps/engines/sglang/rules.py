"""What a version of SGLang forces, read from the function that decides, as rules of ours."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import replace

from backend_caps.capability.facts import Given
from backend_caps.capability.vocabulary import Capabilities
from backend_caps.engines import problems
from backend_caps.engines.sglang.anchors import label_of, path_of, tell_missing, version_of
from backend_caps.engines.sglang.conditions import given_of
from backend_caps.engines.source.guards import Guards, condition, conditions, negated
from backend_caps.engines.source.index import FunctionDef, Index
from backend_caps.engines.source.module import Function
from backend_caps.engines.source.returns import returns
from backend_caps.resolution.engine import ENGINES
from backend_caps.resolution.rules import Rule, RuleSet

_MODULE = "sglang.srt.managers.overlap_utils"
_DECIDES = "decide_needs_cpu_seq_lens"
_FLAG = "needs_cpu_seq_lens"
_ALWAYS = "it runs at all"
KNOWN_VERSIONS = tuple(name.removeprefix("sglang-") for name in ENGINES)
"""The versions whose source the reader was checked with."""
IN_SOURCE = ("two-batch-overlap", "piecewise-cuda-graph", "ngram")
"""The rules that SGLang's function states; the others are in no version's source."""


def read_rules(index: Index) -> RuleSet:
    """Read what the version forces; what is not known is a problem, and counts as open."""
    is_known = index.tree.version in KNOWN_VERSIONS
    if not is_known:
        told = problems.unknown_version("sglang", version_of(index), KNOWN_VERSIONS)
        index.tell(told)
    expected = RuleSet.builtin(label_of(index) if is_known else ENGINES[-1])
    found = {rule.name: rule for rule in _read(index)}
    if is_known:
        for rule in expected.rules:
            if rule.name in IN_SOURCE and rule.name not in found:
                tell_missing(index, f"rule {rule.name!r}", path_of(_MODULE))
    ours = {rule.name: rule for rule in expected.rules if rule.name not in IN_SOURCE}
    return replace(
        expected,
        name=label_of(index),
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
        tell_missing(index, f"{_DECIDES}()", path_of(_MODULE))
        yield _unknown("nothing is known of what the engine forces")
        return
    known = {rule.given: rule for name in ENGINES for rule in RuleSet.builtin(name).rules}
    for guards in _forcing(function.node):
        given = given_of(guards)
        if given in known:
            yield known[given]
        else:
            words = condition(guards) or _ALWAYS
            told = problems.unknown_rule("sglang", version_of(index), function.at, words)
            index.tell(told)
            yield _unknown(words)
    if not any(_is_join(case.value) for case in returns(function.node)):
        tell_missing(index, f"join over the backends' {_FLAG}", path_of(_MODULE))


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
    passed: set[str] = set()
    for case in returns(function):
        own = tuple(guard for guard in conditions(case.guards) if ast.unparse(guard) not in passed)
        if own:
            whole = own[0] if len(own) == 1 else ast.BoolOp(op=ast.And(), values=list(own))
            passed.add(ast.unparse(negated(whole)))
        if _is_constant(case.value, value=True):
            yield own
        elif not _is_join(case.value) and not _is_constant(case.value, value=False):
            yield *own, case.value


def _is_constant(node: ast.expr, *, value: bool) -> bool:
    return isinstance(node, ast.Constant) and node.value is value


def _is_join(node: ast.expr) -> bool:
    """Tell whether it is the or over the backends, a missing flag counted as True."""
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
