"""Statements and values of a body, each with the conditions under which control reaches it.

Conditions are expressions of the source. A clause that is no expression, such as `except`,
becomes an `ast.Name` with the text of the clause.
"""

from __future__ import annotations

import ast
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Generic, NamedTuple, TypeVar

Function = ast.FunctionDef | ast.AsyncFunctionDef
Guards = tuple[ast.expr, ...]
"""Conditions that must all hold."""
_MOST = 60
"""The most conditions, or cases of a `match`, kept apart; more become one open condition."""
_SWALLOWS = frozenset({"suppress", "ignoring"})
"""Names of context managers that suppress exceptions of their body."""
_NEVER: Guards = (ast.Constant(value=False),)
_Loop = ast.For | ast.AsyncFor | ast.While
_Item = TypeVar("_Item")
_Item_co = TypeVar("_Item_co", covariant=True)


class Guarded(NamedTuple, Generic[_Item_co]):
    """A statement, value or definition with the conditions under which it counts."""

    guards: Guards
    """Empty where it always counts."""
    value: _Item_co


Case = Guarded[ast.expr]
"""A value, and when it holds."""


def as_expression(text: str) -> ast.expr:
    """Return an `ast.Name` with this text, for use in a condition."""
    return ast.Name(id=text, ctx=ast.Load())


def spans(node: ast.AST, lines: Sequence[int]) -> bool:
    """Return whether a node spans any of `lines`; nodes without a position count."""
    if not isinstance(node, ast.stmt | ast.expr):
        return True
    first = node.lineno
    if isinstance(node, ast.ClassDef | Function) and node.decorator_list:
        first = node.decorator_list[0].lineno
    return bisect_left(lines, first) < bisect_right(lines, node.end_lineno or first)


def has_attribute(value: ast.expr, name: str) -> bool:
    """Return whether an expression reads an attribute `name` of any object."""
    return any(isinstance(node, ast.Attribute) and node.attr == name for node in ast.walk(value))


def negated(test: ast.expr) -> ast.expr:
    """Negate a condition; `not x` becomes `x`."""
    match test:
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return operand
        case ast.Constant(value=bool(value)):
            return ast.Constant(value=not value)
    return ast.UnaryOp(op=ast.Not(), operand=test)


def decided(test: ast.expr, known: Callable[[ast.expr], bool | None]) -> bool | None:
    """Evaluate a condition from the `known` truth of its parts; None where it is open."""
    match test:
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            inner = decided(operand, known)
            return None if inner is None else not inner
        case ast.BoolOp(op=op, values=values):
            parts, decisive = [decided(value, known) for value in values], isinstance(op, ast.Or)
            if decisive in parts:
                return decisive
            return None if None in parts else not decisive
    return known(test)


def _constant(test: ast.expr) -> bool | None:
    return bool(test.value) if isinstance(test, ast.Constant) else None


def met(guards: Guards) -> Guards | None:
    """Drop the conditions that always hold; None where one never holds."""
    truths = [decided(guard, _constant) for guard in guards]
    if False in truths:
        return None
    still_open = tuple(guard for guard, truth in zip(guards, truths, strict=True) if truth is None)
    # Each condition is copied into the guards of every later statement of its body.
    return still_open if len(still_open) <= _MOST else (as_expression("many conditions hold"),)


def under(guards: Guards, items: Iterable[Guarded[_Item]]) -> Iterator[Guarded[_Item]]:
    """Add guards in front of the guards of each item."""
    return (Guarded(guards + inner, item) for inner, item in items)


def grouped(pairs: Iterable[tuple[str, _Item]]) -> dict[str, list[_Item]]:
    """Group items by name."""
    groups: dict[str, list[_Item]] = {}
    for name, item in pairs:
        groups.setdefault(name, []).append(item)
    return groups


def _any_of(tests: Sequence[ast.expr]) -> ast.expr:
    return tests[0] if len(tests) == 1 else ast.BoolOp(op=ast.Or(), values=list(tests))


def all_of(guards: Iterable[ast.expr]) -> ast.expr:
    """Join conditions by `and`."""
    parts = conditions(guards) or [ast.Constant(value=True)]
    return parts[0] if len(parts) == 1 else ast.BoolOp(op=ast.And(), values=parts)


def conditions(guards: Iterable[ast.expr]) -> list[ast.expr]:
    """List the distinct conditions of guards; `a and b` gives two, `True` none."""
    by_text: dict[str, ast.expr] = {}
    for guard in guards:
        is_and = isinstance(guard, ast.BoolOp) and isinstance(guard.op, ast.And)
        for part in guard.values if isinstance(guard, ast.BoolOp) and is_and else [guard]:
            if not (isinstance(part, ast.Constant) and part.value is True):
                by_text.setdefault(ast.unparse(part), part)
    return list(by_text.values())


def condition(guards: Iterable[ast.expr]) -> str:
    """Write guards as one expression; an empty text if none is needed."""
    parts = conditions(guards)
    return ast.unparse(all_of(parts)) if parts else ""


def where(text: str, guards: Iterable[ast.expr]) -> str:
    """Append to a text the condition under which it holds, if there is one."""
    when = condition(guards)
    return f"{text} where {when}" if when else text


def branches(value: ast.expr, guards: Guards) -> list[Case]:
    """Split a conditional expression into its cases, without those that never hold."""
    held = met(guards)
    if held is None:
        return []
    if not isinstance(value, ast.IfExp):
        return [Guarded(held, value)]
    return [
        *branches(value.body, (*held, value.test)),
        *branches(value.orelse, (*held, negated(value.test))),
    ]


def returns(function: Function) -> tuple[Case, ...]:
    """List the values that a function returns, in text order; not of a bare `return`."""
    return tuple(
        case
        for statement in guarded(function.body)
        if isinstance(statement.value, ast.Return) and statement.value.value is not None
        for case in branches(statement.value.value, statement.guards)
    )


def in_turn(cases: Iterable[Case]) -> Iterator[Case]:
    """Drop from the guards of each case the negated conditions of earlier cases."""
    failed: set[str] = set()
    for case in cases:
        new = tuple(each for each in conditions(case.guards) if ast.unparse(each) not in failed)
        yield Guarded(new, case.value)
        if new:
            failed.add(ast.unparse(negated(all_of(new))))


def guarded(body: Sequence[ast.stmt], guards: Guards = ()) -> list[Guarded[ast.stmt]]:
    """List the statements of a body in order, each with its guards.

    Statements after a branch that returns are guarded by its negated test, and those after a
    `return` are left out. A branch that raises adds no guard: a run through it gives no value.
    Statements that a caught exception may skip are guarded by `not except ...`.
    """
    flow = _Flow()
    flow.through(body, guards)
    return flow.statements


class _Flow:
    """Follows control through a body.

    The methods return the conditions under which control passes the end; None where it never does.
    """

    def __init__(self) -> None:
        self.statements: list[Guarded[ast.stmt]] = []

    def through(self, body: Sequence[ast.stmt], guards: Guards) -> Guards | None:
        """Append the statements of a body, each with its guards."""
        reached = met(guards)
        past: Guards = ()
        for statement in body:
            passed = self._statement(statement, _NEVER if reached is None else reached)
            if passed is None:
                return None
            past += passed
            if isinstance(statement, ast.Raise):
                # The body still counts as passed, so that code after the branch gets no guard.
                reached = None
            elif reached is not None and passed:
                reached = met((*reached, *passed))
        return met(past)

    def _statement(self, statement: ast.stmt, guards: Guards) -> Guards | None:
        match statement:
            case ast.If():
                return self._if(statement, guards)
            case ast.With(body=body) | ast.AsyncWith(body=body):
                return self._try(ast.Try(body, _swallowing(statement), [], []), guards)
            case ast.For() | ast.AsyncFor() | ast.While():
                return self._loop(statement, guards)
            case ast.Try() | ast.TryStar():
                return self._try(statement, guards)
            case ast.Match():
                return self._match(statement, guards)
        if guards is not _NEVER:
            self.statements.append(Guarded(guards, statement))
        return None if isinstance(statement, ast.Return | ast.Continue | ast.Break) else ()

    def _if(self, statement: ast.If, guards: Guards) -> Guards | None:
        test, inverse = statement.test, negated(statement.test)
        match test:
            case ast.Name(id="TYPE_CHECKING") | ast.Attribute(attr="TYPE_CHECKING"):
                # Both branches bind the same names, so that neither depends on a condition.
                self.through(statement.body, guards)
                self.through(statement.orelse, guards)
                return ()
        taken = self.through(statement.body, (*guards, test))
        other = self.through(statement.orelse, (*guards, inverse))
        holds = decided(test, _constant)
        if holds is not None:
            return taken if holds else other
        if taken is None:
            return None if other is None else (inverse, *other)
        if other is None:
            return test, *taken
        return *_unless(inverse, taken), *_unless(test, other)

    def _loop(self, loop: _Loop, guards: Guards) -> Guards | None:
        if isinstance(loop, ast.While):
            head, test = f"while {ast.unparse(loop.test)}", loop.test
        else:
            head = f"for {ast.unparse(loop.target)} in {ast.unparse(loop.iter)}"
            test = as_expression(head)
        breaks = (as_expression(f"left the loop {head}"),) if _has(loop.body, ast.Break) else ()
        self.through(loop.body, (*guards, test))
        after = self.through(loop.orelse, (*guards, *map(negated, breaks)))
        returned = as_expression(f"returned from the loop {head}")
        past = (negated(returned),) if _has(loop.body, ast.Return) else ()
        if after is None:
            return (*past, *breaks) if breaks else None
        return *past, *(_unless(breaks[0], after) if breaks else after)

    def _try(self, statement: ast.Try | ast.TryStar, guards: Guards) -> Guards | None:
        handlers = [
            (as_expression(f"except {ast.unparse(each.type)}" if each.type else "except"), each)
            for each in statement.handlers
        ]
        passed = (negated(test) for test, each in handlers if not _raises_again(each))
        tried = (*guards, *passed)
        body = self.through(statement.body, tried)
        pasts = [(test, self.through(each.body, (*guards, test))) for test, each in handlers]
        orelse = self.through(statement.orelse, tried)
        last = self.through(statement.finalbody, guards)
        completed = None if body is None or orelse is None else met(body + orelse)
        past = _past_handlers(completed, pasts)
        return None if last is None or past is None else past + last

    def _match(self, statement: ast.Match, guards: Guards) -> Guards | None:
        """Read a `match` as a chain of `if` and `else` that tests its subject."""
        if len(statement.cases) > _MOST:  # the chain would be too deep for recursion
            any_case = as_expression("it is one of many cases")
            pasts = [self.through(case.body, (*guards, any_case)) for case in statement.cases]
            return () if all(past == () for past in pasts) else (negated(any_case),)
        rest: list[ast.stmt] = []
        for case in reversed(statement.cases):
            rest = [ast.If(_case_test(statement.subject, case), case.body, rest)]
        return self.through(rest, guards)


def _unless(test: ast.expr, guards: Guards) -> Guards:
    """Return guards that must hold only where `test` does not."""
    return (_any_of([test, all_of(guards)]),) if guards else ()


def _has(nodes: Iterable[ast.AST], kind: type[ast.Return | ast.Break]) -> bool:
    """Return whether statements have a `return`, or a `break` out of their own loop."""
    for node in nodes:
        if isinstance(node, kind):
            return True
        inner: Iterable[ast.AST] = ast.iter_child_nodes(node)
        if kind is ast.Break and isinstance(node, _Loop):
            inner = node.orelse
        if not isinstance(node, Function | ast.ClassDef | ast.expr) and _has(inner, kind):
            return True
    return False


def _swallowing(statement: ast.With | ast.AsyncWith) -> list[ast.ExceptHandler]:
    """Return the exceptions that a `with` suppresses as empty `except` handlers."""
    contexts = [each.context_expr for each in statement.items]
    calls = [each for each in contexts if isinstance(each, ast.Call)]
    swallowed = [c.args for c in calls if ast.unparse(c.func).rpartition(".")[2] in _SWALLOWS]
    kinds = (ast.Tuple(elts=of) if len(of) > 1 else next(iter(of), None) for of in swallowed)
    return [ast.ExceptHandler(type=kind, body=[]) for kind in kinds]


def _raises_again(handler: ast.ExceptHandler) -> bool:
    """Return whether a handler always raises, so that control never passes it."""
    is_raised = any(isinstance(last, ast.Raise) for last in handler.body[-1:])
    return is_raised and not _has(handler.body, ast.Return)


def _past_handlers(
    completed: Guards | None, pasts: Sequence[tuple[ast.expr, Guards | None]]
) -> Guards | None:
    """Return the conditions to pass a `try`, by its completed body or by a handler."""
    caught = [all_of((test, *past)) for test, past in pasts if past is not None]
    if completed is None:
        return (_any_of(caught),) if caught else None
    guards = (_any_of([*caught, all_of(completed)]),) if completed and caught else completed
    for test, past in pasts:
        guards += (negated(test),) if past is None else _unless(negated(test), past)
    return guards


def _case_test(subject: ast.expr, case: ast.match_case) -> ast.expr:
    """Write the condition of a case as an expression."""
    guards = filter(None, [case.guard])
    match case.pattern:
        case ast.MatchAs(pattern=None):
            return all_of(guards)
        case ast.MatchValue(value=value):
            return all_of((ast.Compare(subject, [ast.Eq()], [value]), *guards))
        case ast.MatchSingleton(value=value):
            return all_of((ast.Compare(subject, [ast.Is()], [ast.Constant(value)]), *guards))
    text = f"{ast.unparse(subject)} matches {ast.unparse(case.pattern)}"
    return all_of((as_expression(text), *guards))
