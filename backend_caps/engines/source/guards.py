"""Statements with the conditions under which they run.

A condition is an expression of the source itself. What is no expression there, such as an
`except` clause, stands in one as a name that reads like it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

Guards = tuple[ast.expr, ...]
"""Conditions that must all hold."""
_LEAVES = (ast.Return, ast.Continue, ast.Break)


@dataclass(frozen=True, slots=True)
class Guarded:
    """A simple statement, or a definition, and when it runs."""

    node: ast.stmt
    guards: Guards


def guarded(body: Sequence[ast.stmt], guards: Guards = ()) -> Iterator[Guarded]:
    """List the statements of a body in order, each with its guards.

    What follows a branch that always returns is guarded by the branch not being taken. A branch
    that raises guards nothing: where it is taken there is nothing to be read.
    """
    for statement in body:
        match statement:
            case ast.If(test=test, body=then, orelse=orelse):
                yield from _of_if(test, then, orelse, guards)
                guards = (*guards, *_not_left(test, then, orelse))
            case ast.With(body=inner) | ast.AsyncWith(body=inner):
                yield from guarded(inner, guards)
            case ast.For(target=target, iter=items, body=inner, orelse=orelse):
                words = f"for {ast.unparse(target)} in {ast.unparse(items)}"
                yield from guarded(inner, (*guards, _words(words)))
                yield from guarded(orelse, guards)
            case ast.While(test=test, body=inner, orelse=orelse):
                yield from guarded(inner, (*guards, test))
                yield from guarded(orelse, guards)
            case ast.Try() | ast.TryStar():
                yield from _of_try(statement, guards)
            case ast.Match(subject=subject, cases=cases):
                for case in cases:
                    words = f"{ast.unparse(subject)} matches {ast.unparse(case.pattern)}"
                    yield from guarded(case.body, (*guards, _words(words)))
            case _:
                yield Guarded(statement, guards)


def _of_if(
    test: ast.expr, then: list[ast.stmt], orelse: list[ast.stmt], guards: Guards
) -> Iterator[Guarded]:
    if _is_type_checking(test):
        yield from guarded(then, guards)
        yield from guarded(orelse, guards)
        return
    yield from guarded(then, (*guards, test))
    yield from guarded(orelse, (*guards, negated(test)))


def _is_type_checking(test: ast.expr) -> bool:
    match test:
        case ast.Name(id="TYPE_CHECKING") | ast.Attribute(attr="TYPE_CHECKING"):
            return True
    return False


def _not_left(test: ast.expr, then: list[ast.stmt], orelse: list[ast.stmt]) -> Guards:
    """Say what must have held for control to come past an `if`."""
    if _leaves(then):
        return (negated(test),)
    return (test,) if _leaves(orelse) else ()


def _leaves(body: list[ast.stmt]) -> bool:
    if not body:
        return False
    last = body[-1]
    if isinstance(last, ast.If):
        return _leaves(last.body) and _leaves(last.orelse)
    return isinstance(last, _LEAVES)


def _of_try(statement: ast.Try | ast.TryStar, guards: Guards) -> Iterator[Guarded]:
    yield from guarded(statement.body, guards)
    for handler in statement.handlers:
        kind = f" {ast.unparse(handler.type)}" if handler.type else ""
        yield from guarded(handler.body, (*guards, _words(f"except{kind}")))
    yield from guarded(statement.orelse, guards)
    yield from guarded(statement.finalbody, guards)


def _words(text: str) -> ast.expr:
    return ast.Name(id=text, ctx=ast.Load())


def in_method(name: str) -> ast.expr:
    """Guard what a method does that nothing seen here calls."""
    return _words(f"once {name}() has run")


def negated(test: ast.expr) -> ast.expr:
    """Turn a condition over."""
    match test:
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return operand
        case ast.Constant(value=bool(value)):
            return ast.Constant(value=not value)
    return ast.UnaryOp(op=ast.Not(), operand=test)


def conditions(guards: Iterable[ast.expr]) -> list[ast.expr]:
    """List the single conditions of guards, each once, `a and b` as two."""
    found: dict[str, ast.expr] = {}
    for guard in guards:
        parts = (
            guard.values
            if isinstance(guard, ast.BoolOp) and isinstance(guard.op, ast.And)
            else [guard]
        )
        for part in parts:
            found.setdefault(ast.unparse(part), part)
    return list(found.values())


def condition(guards: Iterable[ast.expr]) -> str:
    """Write guards as one expression; nothing where there is none."""
    parts = conditions(guards)
    if not parts:
        return ""
    return ast.unparse(parts[0] if len(parts) == 1 else ast.BoolOp(op=ast.And(), values=parts))
