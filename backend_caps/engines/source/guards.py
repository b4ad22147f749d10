"""Statements with the conditions under which they run."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from backend_caps.engines.source.passing import (
    cases_of,
    handler_words,
    handlers_of,
    is_type_checking,
    left,
    loop_words,
    not_cut_short,
    passed,
)
from backend_caps.engines.source.truth import (
    Guards,
    condition,
    conditions,
    in_method,
    met,
    negated,
)

__all__ = ["Guarded", "Guards", "condition", "conditions", "guarded", "in_method", "met", "negated"]

_SIMPLE = (
    ast.Assign,
    ast.Expr,
    ast.FunctionDef,
    ast.AnnAssign,
    ast.AugAssign,
    ast.ImportFrom,
    ast.Import,
    ast.ClassDef,
)
"""What most bodies are made of: it has nothing in it that runs on its own, and is come past."""


@dataclass(frozen=True, slots=True)
class Guarded:
    """A simple statement, or a definition, and when it runs."""

    node: ast.stmt
    guards: Guards


def guarded(body: Sequence[ast.stmt], guards: Guards = ()) -> Iterator[Guarded]:
    """List the statements of a body in order, each with its guards.

    What follows a branch that returns is guarded by that branch not being taken, and what
    follows a `return` is left out. A branch that raises guards nothing: where it is taken there
    is nothing to be read. What an exception may cut short is guarded by its not being caught.
    """
    held = met(guards)
    for statement in body:
        if held is None:
            return
        if isinstance(statement, _SIMPLE):
            yield Guarded(statement, held)
            continue
        yield from _inner(statement, held)
        past = passed(statement)
        if past is None or isinstance(statement, ast.Raise):
            return
        held = met((*held, *past)) if past else held


def _inner(statement: ast.stmt, guards: Guards) -> Iterator[Guarded]:
    match statement:
        case ast.If(test=test, body=then, orelse=orelse):
            is_open = is_type_checking(test)
            yield from guarded(then, guards if is_open else (*guards, test))
            yield from guarded(orelse, guards if is_open else (*guards, negated(test)))
        case ast.With(body=inner) | ast.AsyncWith(body=inner):
            yield from guarded(inner, (*guards, *not_cut_short(handlers_of(statement))))
        case ast.For() | ast.AsyncFor() | ast.While():
            yield from guarded(statement.body, (*guards, loop_words(statement)))
            yield from guarded(statement.orelse, (*guards, *map(negated, left(statement))))
        case ast.Try() | ast.TryStar():
            yield from _of_try(statement, guards)
        case ast.Match():
            for case, own in cases_of(statement):
                yield from guarded(case.body, (*guards, *own))
        case _:
            yield Guarded(statement, guards)


def _of_try(statement: ast.Try | ast.TryStar, guards: Guards) -> Iterator[Guarded]:
    tried = (*guards, *not_cut_short(statement.handlers))
    yield from guarded(statement.body, tried)
    for handler in statement.handlers:
        yield from guarded(handler.body, (*guards, handler_words(handler)))
    yield from guarded(statement.orelse, tried)
    yield from guarded(statement.finalbody, guards)
