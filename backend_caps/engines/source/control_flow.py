"""Control flow of an interpreted program, each statement compiled to a function of a frame.

Where a condition is unknown, both branches run, and what either would change is joined with what
was there. An error that is raised in such a branch is recorded as one that may be raised.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from backend_caps.engines.source.calls import Broken, Continued, NotFollowedError, Returned, Run
from backend_caps.engines.source.expressions import Expressions
from backend_caps.engines.source.uncertainty import all_joined
from backend_caps.engines.source.values import (
    ClassValue,
    Frame,
    Instance,
    Managed,
    Native,
    Raised,
    Suppressed,
    Unknown,
)

_MOST_ROUNDS = 20_000


class ControlFlow(Expressions):
    """Runs the statements that decide which others run."""

    def controlling(self) -> Mapping[type[ast.stmt], Callable[[Any], Run]]:
        """List what makes a function of each kind of these statements."""
        return {
            ast.Return: self._return,
            ast.If: self._if,
            ast.For: self._for,
            ast.While: self._while,
            ast.Raise: lambda node: partial(self._raise, node),
            ast.Assert: lambda node: partial(self._assert, node),
            ast.Try: self._try,
            ast.With: self._with,
            ast.Break: lambda _node: _break,
            ast.Continue: lambda _node: _continue,
        }

    def _return(self, node: ast.Return) -> Run:
        value_of = None if node.value is None else self.evaluator(node.value)

        def run(frame: Frame) -> None:
            raise Returned(None if value_of is None else value_of(frame))

        return run

    def _if(self, node: ast.If) -> Run:
        test, then, other = self.evaluator(node.test), self.body(node.body), self.body(node.orelse)

        def run(frame: Frame) -> None:
            truth = self.truth(test(frame))
            if truth is None:
                self._either(ast.unparse(node.test), (then, other), frame)
            elif truth:
                then(frame)
            else:
                other(frame)

        return run

    def _either(self, why: str, bodies: Sequence[Run], frame: Frame) -> None:
        """Run branches of which one runs; leave the function where all of them leave it."""
        before = frame.num_leaves
        ends = [self._possibly(why, body, frame) for body in bodies]
        if all(isinstance(end, Returned) for end in ends):
            values = [end.value for end in ends if isinstance(end, Returned)]
            raise Returned(all_joined([*values]))
        for end in ends:
            if isinstance(end, Returned):
                frame.returned.append(end.value)
            frame.num_leaves += isinstance(end, Returned | Broken | Continued)
        if frame.num_leaves > before:
            self._suppose(why)  # until the function ends: the rest may not run
        if all(isinstance(end, Broken | Continued) for end in ends):
            raise Continued
        if all(end is not None for end in ends):
            first = next((end for end in ends if isinstance(end, Returned)), None)
            raise first or Returned(Unknown(why))

    def _possibly(self, why: str, body: Run, frame: Frame) -> Exception | None:
        """Run statements that may not run; return how they left, or None."""
        depth, place = len(self._maybe), self._place
        self._suppose(why)
        try:
            body(frame)
        except Raised as error:
            self.note(error)
            return error
        except (Returned, Broken, Continued) as end:
            return end
        finally:
            del self._maybe[depth:]
            self._place = place
            if not self._maybe:
                self._made_under.clear()
        return None

    def _for(self, node: ast.For) -> Run:
        values_of, store = self.evaluator(node.iter), self.storer(node.target)
        body, orelse = self.body(node.body), self.body(node.orelse)

        def run(frame: Frame) -> None:
            values = self.iterated(values_of(frame))
            if isinstance(values, Unknown):
                store(values, frame)
                why = f"for ... in {ast.unparse(node.iter)}"
                self._either(why, (body, nothing), frame)
                self._either(why, (orelse, nothing), frame)
                return
            for value in values:
                store(value, frame)
                try:
                    body(frame)
                except Broken:
                    return
                except Continued:
                    continue
            orelse(frame)

        return run

    def _while(self, node: ast.While) -> Run:
        test, body = self.evaluator(node.test), self.body(node.body)

        def run(frame: Frame) -> None:
            for _ in range(_MOST_ROUNDS):
                truth = self.truth(test(frame))
                if truth is None:
                    self._either(ast.unparse(node.test), (body, nothing), frame)
                    return
                if not truth:
                    return
                try:
                    body(frame)
                except Broken:
                    return
                except Continued:
                    continue
            raise NotFollowedError(f"a loop of more than {_MOST_ROUNDS} rounds", self.at)

        return run

    def _raise(self, node: ast.Raise, frame: Frame) -> None:
        at = self.at
        if node.exc is None:
            raise frame.names.get("\0handled") or Raised(Unknown("raise"), at)
        value = self.value(node.exc, frame)
        if isinstance(value, type | ClassValue):
            value = self.apply(value, (), {})
        raise Raised(value, at)

    def _assert(self, node: ast.Assert, frame: Frame) -> None:
        at = self.at
        truth = self.truth(self.value(node.test, frame))
        if truth is True:
            return
        message = () if node.msg is None else (self.value(node.msg, frame),)
        error = Raised(AssertionError(*message), at)
        if truth is False:
            raise error
        self._suppose(f"not ({ast.unparse(node.test)})")
        self.note(error)
        self._maybe.pop()

    def _try(self, node: ast.Try) -> Run:
        body, orelse, final = map(self.body, (node.body, node.orelse, node.finalbody))
        handlers = [(each, self.body(each.body)) for each in node.handlers]

        def tried(frame: Frame) -> None:
            try:
                body(frame)
            except Raised as error:
                for handler, handle in handlers:
                    if self._handles(handler, error, frame) is not False:
                        before = frame.names.get("\0handled")
                        frame.names["\0handled"] = error
                        if handler.name:
                            frame.names[handler.name] = error.value
                        handle(frame)
                        frame.names["\0handled"] = before
                        return
                raise
            else:
                orelse(frame)

        def run(frame: Frame) -> None:
            try:
                tried(frame)
            finally:
                final(frame)

        return run

    def _handles(self, handler: ast.ExceptHandler, error: Raised, frame: Frame) -> bool | None:
        if handler.type is None:
            return True
        wanted = self.value(handler.type, frame)
        return self.is_instance(error.value, wanted)

    def _with(self, node: ast.With) -> Run:
        body = self.body(node.body)
        items = [
            (
                self.evaluator(each.context_expr),
                None if each.optional_vars is None else self.storer(each.optional_vars),
                Unknown(ast.unparse(each.context_expr)),
            )
            for each in node.items
        ]

        def within(at: int, frame: Frame) -> None:
            if at == len(items):
                body(frame)
                return
            manager_of, store, unknown = items[at]

            def inside(value: Native) -> None:
                if store is not None:
                    store(value, frame)
                within(at + 1, frame)

            self.managed(manager_of(frame), unknown, inside)

        return lambda frame: within(0, frame)

    def managed(self, manager: Native, unknown: Unknown, inside: Callable[[Native], None]) -> None:
        """Run what is inside of a `with` statement, between a manager's begin and its end."""
        if isinstance(manager, Managed):
            self._around_yield(manager, inside)
        elif isinstance(manager, Suppressed):
            try:
                inside(unknown)
            except Raised as error:
                if self.is_instance(error.value, manager.errors) is False:
                    raise
        elif isinstance(manager, Instance) and (enter := manager.cls.lookup("__enter__")):
            value = self.apply(enter, (manager,), {})
            try:
                inside(value)
            finally:
                self.apply(manager.cls.lookup("__exit__"), (manager, None, None, None), {})
        else:
            inside(unknown)

    def _around_yield(self, manager: Managed, inside: Callable[[Native], None]) -> None:
        """Run a context manager's function, and where it yields what is inside."""
        ends: list[Exception] = []

        def around(value: Native) -> None:
            try:
                inside(value)
            except (Returned, Broken, Continued) as end:
                ends.append(end)

        self._around = around
        try:
            self.apply(manager.function, manager.args, manager.named)
        finally:
            self._around = None
        for end in ends:
            raise end


def nothing(_frame: Frame) -> None:
    """Run no statement."""


def _break(_frame: Frame) -> None:
    raise Broken


def _continue(_frame: Frame) -> None:
    raise Continued
