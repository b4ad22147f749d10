"""The nodes of a plugin's file that may run with an engine, each with what has to hold for it."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from backend_caps.compatibility.nodes import children, walk
from backend_caps.engines.source.guards import Function, as_expression, decided, negated
from backend_caps.engines.source.module import Module

_OF_IMPORTS = frozenset({"ImportError", "ModuleNotFoundError"})


class Decisions(Protocol):
    """What an engine decides of a plugin's conditions; None where only running code knows."""

    def truth(self, test: ast.expr, place: Place) -> bool | None:
        """Return whether a condition holds."""
        ...

    def imports_hold(self, body: Sequence[ast.stmt], place: Place) -> bool | None:
        """Return whether every import in a body finds what it names."""
        ...


_LEAVING = ast.Return | ast.Raise | ast.Continue | ast.Break


@dataclass(frozen=True, slots=True)
class Place:
    """Where a node runs."""

    module: Module
    node: ast.AST
    guards: tuple[ast.expr, ...] = ()
    """The conditions that are not known to hold."""
    handlers: tuple[ast.ExceptHandler, ...] = ()
    """The handlers that catch what it raises, innermost last."""
    functions: tuple[Function, ...] = ()
    """The functions around it, innermost first."""
    owner: ast.ClassDef | None = None
    """The class around its innermost function."""

    @property
    def at(self) -> str:
        """`file:line`."""
        assert isinstance(self.node, ast.stmt | ast.expr), "only those are places"
        return self.module.at(self.node)

    def of(self, node: ast.AST) -> Place:
        """Return the place of another node that runs under the same conditions."""
        return Place(self.module, node, self.guards, self.handlers, self.functions, self.owner)

    def under(self, *tests: ast.expr) -> Place:
        """Return the place with conditions more."""
        return replace(self, guards=(*self.guards, *tests)) if tests else self


class Places:
    """Walks a file."""

    def __init__(self, module: Module, decisions: Decisions) -> None:
        self._module, self._decisions = module, decisions

    def __iter__(self) -> Iterator[Place]:
        """List what may run: statements in the order of the text, each before what is in it."""
        return self._body(self._module.tree.body, Place(self._module, self._module.tree))

    def _body(self, body: Iterable[ast.stmt], around: Place) -> Iterator[Place]:
        for statement in body:
            if isinstance(statement, ast.If):
                yield from self._if(statement, around)
                after = self._after(statement, around)
                if after is None:
                    return
                around = after
                continue
            yield around.of(statement)
            yield from self._expressions(_heads(statement), around)
            if isinstance(statement, ast.Try | ast.TryStar):
                yield from self._try(statement, around)
            for inner, place in _bodies(statement, around):
                yield from self._body(inner, place)
            if isinstance(statement, _LEAVING):
                return

    def _if(self, statement: ast.If, around: Place) -> Iterator[Place]:
        yield from self._expression(statement.test, around)
        holds = self._holds(statement.test, around)
        if holds is not False:
            tests = () if holds else (statement.test,)
            yield from self._body(statement.body, around.under(*tests))
        if holds is not True:
            tests = () if holds is False else (negated(statement.test),)
            yield from self._body(statement.orelse, around.under(*tests))

    def _try(self, statement: ast.Try | ast.TryStar, around: Place) -> Iterator[Place]:
        handlers = (*around.handlers, *statement.handlers)
        yield from self._body(statement.body, replace(around, handlers=handlers))
        for handler in statement.handlers:
            yield from self._handler(handler, statement.body, around)
        yield from self._body(statement.orelse, around)
        yield from self._body(statement.finalbody, around)

    def _handler(
        self, handler: ast.ExceptHandler, body: Sequence[ast.stmt], around: Place
    ) -> Iterator[Place]:
        """List the places of a handler, unless it is of imports that are not lost."""
        yield from self._expressions(filter(None, [handler.type]), around)
        if handler.type is not None and caught_by(handler) <= _OF_IMPORTS:
            hold = self._decisions.imports_hold(body, around)
            if hold:
                return
            if hold is None:
                around = around.under(as_expression(f"except {ast.unparse(handler.type)}"))
        yield from self._body(handler.body, around)

    def _after(self, statement: ast.If, around: Place) -> Place | None:
        """Return the place after an `if`; None where control never gets there."""
        holds = self._holds(statement.test, around)
        body, orelse = _leaves(statement.body), _leaves(statement.orelse)
        if holds is not None:
            return None if (body if holds else orelse) else around
        if body and orelse:
            return None
        if body:
            return around.under(negated(statement.test))
        return around.under(statement.test) if orelse else around

    def _holds(self, test: ast.expr, around: Place) -> bool | None:
        return decided(test, lambda part: self._decisions.truth(part, around))

    def _expressions(self, nodes: Iterable[ast.expr], around: Place) -> Iterator[Place]:
        for node in nodes:
            yield from self._expression(node, around)

    def _expression(self, node: ast.expr, around: Place) -> Iterator[Place]:
        match node:
            case ast.BoolOp(op=op, values=values):
                yield from self._joined(values, around, is_and=isinstance(op, ast.And))
            case ast.IfExp(test=test, body=body, orelse=orelse):
                yield from self._expression(test, around)
                holds = self._holds(test, around)
                if holds is not False:
                    yield from self._expression(body, around.under(*(() if holds else (test,))))
                if holds is not True:
                    tests = () if holds is False else (negated(test),)
                    yield from self._expression(orelse, around.under(*tests))
            case _:
                yield around.of(node)
                yield from self._expressions(_parts(node), around)

    def _joined(
        self, values: Sequence[ast.expr], around: Place, *, is_and: bool
    ) -> Iterator[Place]:
        """List the places of `and` or `or`: each part runs only if those before let it."""
        for value in values:
            yield from self._expression(value, around)
            holds = self._holds(value, around)
            if holds is (not is_and):
                return
            if holds is None:
                around = around.under(value if is_and else negated(value))


def caught_by(handler: ast.ExceptHandler) -> set[str]:
    """List the names of the exceptions that a handler catches."""
    kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return {"BaseException" if each is None else ast.unparse(each) for each in kinds}


def _heads(statement: ast.stmt) -> Iterable[ast.expr]:
    """List the expressions that a statement evaluates itself."""
    match statement:
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            return (*statement.decorator_list, *_parts(statement.args))
        case ast.ClassDef():
            keywords = (each.value for each in statement.keywords)
            return (*statement.decorator_list, *statement.bases, *keywords)
        case ast.AnnAssign():  # an annotation is no code that runs
            return filter(None, (statement.value, statement.target))
        case ast.With() | ast.AsyncWith():
            return [item.context_expr for item in statement.items]
        case ast.Match(subject=subject, cases=cases):
            return (subject, *(each for case in cases for each in _tests(case)))
    return [child for child in children(statement) if isinstance(child, ast.expr)]


def _bodies(statement: ast.stmt, around: Place) -> Iterator[tuple[Sequence[ast.stmt], Place]]:
    """List the bodies in a statement, each with where it runs."""
    match statement:
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            functions = (statement, *around.functions)
            yield statement.body, replace(around, functions=functions, handlers=())
        case ast.ClassDef():
            yield statement.body, replace(around, owner=statement)
        case ast.With() | ast.AsyncWith():
            handlers = (*around.handlers, *_suppressing(statement))
            yield statement.body, replace(around, handlers=handlers)
        case ast.For() | ast.AsyncFor() | ast.While():
            yield statement.body, around
            yield statement.orelse, around
        case ast.Match():
            for case in statement.cases:
                yield case.body, around


def _tests(case: ast.match_case) -> Iterator[ast.expr]:
    """List the expressions that a case compares with, and its guard."""
    for node in walk(case.pattern):
        if isinstance(node, ast.pattern):
            yield from _parts(node)
    yield from filter(None, [case.guard])


def _parts(node: ast.AST) -> Iterator[ast.expr]:
    """List the expressions in a node."""
    for child in children(node):
        match child:
            case ast.expr():
                yield child
            case ast.keyword(value=value):
                yield value
            case ast.comprehension(iter=iterable, ifs=tests):
                yield iterable
                yield from tests
            case ast.arguments():  # of a lambda
                yield from _parts(child)


def _suppressing(statement: ast.With | ast.AsyncWith) -> Iterator[ast.ExceptHandler]:
    """Write each `contextlib.suppress` of a statement as the handler that it is."""
    for item in statement.items:
        match item.context_expr:
            case ast.Call(func=func, args=kinds) as call if (
                ast.unparse(func).rpartition(".")[2] == "suppress"
            ):
                caught = ast.Tuple(elts=list(kinds), ctx=ast.Load())
                yield ast.ExceptHandler(type=caught, name=None, body=[], lineno=call.lineno)


def _leaves(body: Sequence[ast.stmt]) -> bool:
    """Return whether control never passes a branch."""
    return bool(body) and isinstance(body[-1], _LEAVING)
