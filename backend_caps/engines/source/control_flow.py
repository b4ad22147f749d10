"""Control flow of an interpreted program.

Where a condition is unknown, both branches run, and what either would change is joined with what
was there. An error that is raised in such a branch is recorded as one that may be raised.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from backend_caps.engines.source.calls import Broken, Continued, NotFollowedError, Returned
from backend_caps.engines.source.expressions import Expressions
from backend_caps.engines.source.uncertainty import all_joined
from backend_caps.engines.source.values import ClassValue, Frame, Instance, Native, Raised, Unknown

_MOST_ROUNDS = 20_000


class ControlFlow(Expressions):
    """Runs the statements that decide which others run."""

    def controlling(self) -> Mapping[type[ast.stmt], Callable[[Any, Frame], None]]:
        """List what runs each kind of these statements."""
        return {
            ast.Return: self._return,
            ast.If: self._if,
            ast.For: self._for,
            ast.While: self._while,
            ast.Raise: self._raise,
            ast.Assert: self._assert,
            ast.Try: self._try,
            ast.With: self._with,
            ast.Break: self._break,
            ast.Continue: self._continue,
        }

    def _return(self, node: ast.Return, frame: Frame) -> None:
        raise Returned(None if node.value is None else self.value(node.value, frame))

    def _break(self, _node: ast.Break, _frame: Frame) -> None:
        raise Broken

    def _continue(self, _node: ast.Continue, _frame: Frame) -> None:
        raise Continued

    def _if(self, node: ast.If, frame: Frame) -> None:
        truth = self.truth(self.value(node.test, frame))
        if truth is None:
            self._either(ast.unparse(node.test), (node.body, node.orelse), frame)
        else:
            self.run_body(node.body if truth else node.orelse, frame)

    def _either(self, why: str, bodies: Sequence[Sequence[ast.stmt]], frame: Frame) -> None:
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
            self._maybe.append(why)  # until the function ends: the rest may not run
        if all(isinstance(end, Broken | Continued) for end in ends):
            raise Continued
        if all(end is not None for end in ends):
            first = next((end for end in ends if isinstance(end, Returned)), None)
            raise first or Returned(Unknown(why))

    def _possibly(self, why: str, body: Sequence[ast.stmt], frame: Frame) -> Exception | None:
        """Run statements that may not run; return how they left, or None."""
        depth, place = len(self._maybe), self._place
        self._maybe.append(why)
        try:
            self.run_body(body, frame)
        except Raised as error:
            self.note(error.message, error.at)
            return error
        except (Returned, Broken, Continued) as end:
            return end
        finally:
            del self._maybe[depth:]
            self._place = place
            if not self._maybe:
                self._levels.clear()
        return None

    def _for(self, node: ast.For, frame: Frame) -> None:
        values = self.iterated(self.value(node.iter, frame))
        if isinstance(values, Unknown):
            self.store(node.target, values, frame)
            self._either(f"for ... in {ast.unparse(node.iter)}", (node.body, ()), frame)
            return
        for value in list(values):
            self.store(node.target, value, frame)
            try:
                self.run_body(node.body, frame)
            except Broken:
                return
            except Continued:
                continue
        self.run_body(node.orelse, frame)

    def _while(self, node: ast.While, frame: Frame) -> None:
        for _ in range(_MOST_ROUNDS):
            truth = self.truth(self.value(node.test, frame))
            if truth is None:
                self._either(ast.unparse(node.test), (node.body, ()), frame)
                return
            if not truth:
                return
            try:
                self.run_body(node.body, frame)
            except Broken:
                return
            except Continued:
                continue
        raise NotFollowedError(f"a loop of more than {_MOST_ROUNDS} rounds", self.at)

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
        self._maybe.append(f"not ({ast.unparse(node.test)})")
        self.note(error.message, at)
        self._maybe.pop()

    def _try(self, node: ast.Try, frame: Frame) -> None:
        try:
            self._tried(node, frame)
        finally:
            self.run_body(node.finalbody, frame)

    def _tried(self, node: ast.Try, frame: Frame) -> None:
        try:
            self.run_body(node.body, frame)
        except Raised as error:
            for handler in node.handlers:
                handles = self._handles(handler, error, frame)
                if handles is not False:
                    before = frame.names.get("\0handled")
                    frame.names["\0handled"] = error
                    if handler.name:
                        frame.names[handler.name] = error.value
                    self.run_body(handler.body, frame)
                    frame.names["\0handled"] = before
                    return
            raise
        else:
            self.run_body(node.orelse, frame)

    def _handles(self, handler: ast.ExceptHandler, error: Raised, frame: Frame) -> bool | None:
        if handler.type is None:
            return True
        wanted = self.value(handler.type, frame)
        return self.is_instance(error.value, wanted)

    def _with(self, node: ast.With, frame: Frame) -> None:
        entered: list[Native] = []
        for item in node.items:
            manager = self.value(item.context_expr, frame)
            value = Unknown(ast.unparse(item.context_expr))
            if isinstance(manager, Instance) and (enter := manager.cls.lookup("__enter__")):
                value = self.apply(enter, (manager,), {})
                entered.append(manager)
            if item.optional_vars is not None:
                self.store(item.optional_vars, value, frame)
        try:
            self.run_body(node.body, frame)
        finally:
            for manager in reversed(entered):
                self.apply(manager.cls.lookup("__exit__"), (manager, None, None, None), {})
