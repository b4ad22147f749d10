"""Conditions as expressions of the source itself.

What is no expression there, such as an `except` clause, stands in one as a name that reads like
it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence

Guards = tuple[ast.expr, ...]
"""Conditions that must all hold."""
_MOST = 60
"""As many conditions are told apart; more are one, which nothing decides."""


def words(text: str) -> ast.expr:
    """Write what is no expression as one."""
    return ast.Name(id=text, ctx=ast.Load())


def in_method(name: str) -> ast.expr:
    """Guard what a method does that nothing seen here calls."""
    return words(f"once {name}() has run")


def negated(test: ast.expr) -> ast.expr:
    """Turn a condition over."""
    match test:
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return operand
        case ast.Constant(value=bool(value)):
            return ast.Constant(value=not value)
    return ast.UnaryOp(op=ast.Not(), operand=test)


def decided(test: ast.expr) -> bool | None:
    """Tell whether a condition holds whatever happens, or never does; None where it depends."""
    match test:
        case ast.Constant(value=value):
            return bool(value)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            inner = decided(operand)
            return None if inner is None else not inner
        case ast.BoolOp(op=op, values=values):
            told, decisive = [decided(value) for value in values], isinstance(op, ast.Or)
            if decisive in told:
                return decisive
            return None if None in told else not decisive
    return None


def met(guards: Guards) -> Guards | None:
    """Leave out the conditions that always hold; None where one never does."""
    if not guards:
        return guards
    left: list[ast.expr] = []
    for guard in guards:
        holds = decided(guard)
        if holds is False:
            return None
        if holds is None:
            left.append(guard)
    return tuple(left) if len(left) <= _MOST else (words("many conditions hold"),)


def any_of(tests: Sequence[ast.expr]) -> ast.expr:
    """Say that one of some conditions holds."""
    return tests[0] if len(tests) == 1 else ast.BoolOp(op=ast.Or(), values=list(tests))


def all_of(guards: Iterable[ast.expr]) -> ast.expr:
    """Say that some conditions hold, as one."""
    parts = conditions(guards) or [ast.Constant(value=True)]
    return parts[0] if len(parts) == 1 else ast.BoolOp(op=ast.And(), values=parts)


def conditions(guards: Iterable[ast.expr]) -> list[ast.expr]:
    """List the single conditions of guards, each once, `a and b` as two; `True` is none."""
    found: dict[str, ast.expr] = {}
    for guard in guards:
        parts = (
            guard.values
            if isinstance(guard, ast.BoolOp) and isinstance(guard.op, ast.And)
            else [guard]
        )
        for part in parts:
            if not (isinstance(part, ast.Constant) and part.value is True):
                found.setdefault(ast.unparse(part), part)
    return list(found.values())


def condition(guards: Iterable[ast.expr]) -> str:
    """Write guards as one expression; nothing where there is none."""
    parts = conditions(guards)
    return ast.unparse(all_of(parts)) if parts else ""
