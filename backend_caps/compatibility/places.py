"""The nodes of a plugin's file that may run with an engine, each with what has to hold for it."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from backend_caps.engines.source.guards import Function, decided, negated
from backend_caps.engines.source.module import Module

Truth = Callable[[ast.expr, "Place"], bool | None]
"""Returns whether a condition holds with the engine; None where that is not known."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a node runs."""

    module: Module
    node: ast.AST
    guards: tuple[ast.expr, ...] = ()
    """The conditions that are not known to hold."""
    caught: tuple[tuple[ast.Try, ast.ExceptHandler], ...] = ()
    """The handlers around it, innermost last."""
    functions: tuple[Function, ...] = ()
    """The functions around it, innermost first."""
    owner: ast.ClassDef | None = None
    """The class around its innermost function."""

    @property
    def at(self) -> str:
        """`file:line`."""
        assert isinstance(self.node, ast.stmt | ast.expr), "only those are places"
        return self.module.at(self.node)


class Places:
    """Walks a file."""

    def __init__(self, module: Module, truth: Truth) -> None:
        self._module, self._truth = module, truth

    def __iter__(self) -> Iterator[Place]:
        """List the statements and expressions that may run, in the order of the text."""
        yield from self._body(self._module.tree.body, Place(self._module, self._module.tree))

    def _body(self, body: Sequence[ast.stmt], around: Place) -> Iterator[Place]:
        for statement in body:
            match statement:
                case ast.If():
                    yield from self._expression(statement.test, around)
                    holds = self._holds(statement.test, around)
                    for branch, test, runs in (
                        (statement.body, statement.test, holds is not False),
                        (statement.orelse, negated(statement.test), holds is not True),
                    ):
                        if runs:
                            own = () if holds is not None else (test,)
                            yield from self._body(branch, _under(around, *own))
                    left = _leaves(statement.body), _leaves(statement.orelse)
                    if (holds is True and left[0]) or (holds is False and left[1]) or all(left):
                        return
                    if holds is None and any(left):
                        test = negated(statement.test) if left[0] else statement.test
                        around = _under(around, test)
                case _:
                    yield from self._statement(statement, around)
                    if isinstance(statement, ast.Return | ast.Raise | ast.Continue | ast.Break):
                        return

    def _holds(self, test: ast.expr, around: Place) -> bool | None:
        return decided(test, lambda part: self._truth(part, around))

    def _statement(self, statement: ast.stmt, around: Place) -> Iterator[Place]:
        yield replace(around, node=statement)
        match statement:
            case ast.Try() | ast.TryStar():
                own = tuple((statement, each) for each in statement.handlers)
                inner = replace(around, caught=(*around.caught, *own))
                yield from self._body(statement.body, inner)
                for handler in statement.handlers:
                    yield from self._body(handler.body, around)
                yield from self._body(statement.orelse, around)
                yield from self._body(statement.finalbody, around)
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                for each in (*statement.decorator_list, *statement.args.defaults):
                    yield from self._expression(each, around)
                inner = replace(around, functions=(statement, *around.functions), caught=())
                yield from self._body(statement.body, inner)
            case ast.ClassDef():
                for each in (*statement.decorator_list, *statement.bases):
                    yield from self._expression(each, around)
                yield from self._body(statement.body, replace(around, owner=statement))
            case ast.For() | ast.AsyncFor() | ast.While():
                head = statement.test if isinstance(statement, ast.While) else statement.iter
                yield from self._expression(head, around)
                yield from self._body(statement.body, around)
                yield from self._body(statement.orelse, around)
            case ast.With() | ast.AsyncWith():
                for item in statement.items:
                    yield from self._expression(item.context_expr, around)
                yield from self._body(statement.body, around)
            case ast.Match():
                yield from self._expression(statement.subject, around)
                for case in statement.cases:
                    yield from self._body(case.body, around)
            case _:
                for child in ast.iter_child_nodes(statement):
                    if isinstance(child, ast.expr):
                        yield from self._expression(child, around)

    def _expression(self, node: ast.expr, around: Place) -> Iterator[Place]:
        match node:
            case ast.BoolOp(op=op, values=values):
                inner, is_and = around, isinstance(op, ast.And)
                for value in values:
                    yield from self._expression(value, inner)
                    holds = self._holds(value, inner)
                    if holds is not None and holds is not is_and:
                        return
                    if holds is None:
                        inner = _under(inner, value if is_and else negated(value))
                return
            case ast.IfExp(test=test, body=body, orelse=orelse):
                yield from self._expression(test, around)
                holds = self._holds(test, around)
                if holds is not False:
                    own = () if holds else (test,)
                    yield from self._expression(body, _under(around, *own))
                if holds is not True:
                    own = () if holds is False else (negated(test),)
                    yield from self._expression(orelse, _under(around, *own))
                return
        yield replace(around, node=node)
        for child in ast.iter_child_nodes(node):
            for inner in [child.value] if isinstance(child, ast.keyword) else [child]:
                if isinstance(inner, ast.expr):
                    yield from self._expression(inner, around)
                elif isinstance(inner, ast.comprehension):
                    for each in (inner.iter, *inner.ifs):
                        yield from self._expression(each, around)


def _under(around: Place, *tests: ast.expr) -> Place:
    return replace(around, guards=(*around.guards, *tests)) if tests else around


def _leaves(body: Sequence[ast.stmt]) -> bool:
    """Return whether control never passes a branch."""
    return bool(body) and isinstance(
        body[-1], ast.Return | ast.Raise | ast.Continue | ast.Break
    )
