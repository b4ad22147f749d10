"""Expressions of an interpreted program, each compiled to a function of a frame.

A node is read once, and evaluated often: loops and the functions that SGLang calls for each of its
arguments evaluate a node fifteen times on average.
"""

from __future__ import annotations

import ast
import builtins
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from backend_caps.engines.source.calls import Evaluate
from backend_caps.engines.source.displays import Displays
from backend_caps.engines.source.instances import Super
from backend_caps.engines.source.objects import Objects
from backend_caps.engines.source.operators import UNARY
from backend_caps.engines.source.uncertainty import joined
from backend_caps.engines.source.values import (
    ClassValue,
    External,
    Frame,
    FunctionValue,
    Hook,
    Instance,
    Lazy,
    Native,
    Perhaps,
    Raised,
    Unknown,
)

_NOT_THERE = object()


class Expressions(Displays):
    """Evaluates expressions."""

    def __init__(self, natives: Mapping[str, object]) -> None:
        """Take what external names mean, and names of the program that are replaced."""
        super().__init__(natives)
        self._evaluators: dict[ast.expr, Evaluate] = {}
        self._expressions: Mapping[type[ast.expr], Callable[[Any], Evaluate]] = {
            ast.Constant: lambda node: _constant_of(node.value),
            ast.Name: self._name,
            ast.Attribute: self._attribute,
            ast.Call: self._call,
            ast.BoolOp: self._bool_op,
            ast.BinOp: self._bin_op,
            ast.UnaryOp: self._unary_op,
            ast.Compare: self._compare,
            ast.IfExp: self._if_exp,
            ast.Subscript: self._subscript,
            ast.Slice: lambda node: partial(self._slice, node),
            ast.Dict: self._dict,
            ast.List: lambda node: self._elements(node.elts),
            ast.Tuple: lambda node: self._collected(tuple, node.elts),
            ast.Set: lambda node: self._collected(self._set, node.elts),
            ast.ListComp: lambda node: self._comprehension(self._fresh, node, node.elt),
            ast.SetComp: lambda node: self._comprehension(self._set, node, node.elt),
            ast.GeneratorExp: lambda node: self._comprehension(list, node, node.elt),
            ast.DictComp: self._dict_comp,
            ast.Lambda: lambda node: partial(self.function, node, "<lambda>"),
            ast.JoinedStr: lambda node: partial(self._joined_str, node),
            ast.NamedExpr: self._named_expr,
            ast.Starred: lambda node: self.evaluator(node.value),
            ast.Yield: self._yield,
            ast.YieldFrom: self._yield_from,
            ast.Await: lambda node: self.evaluator(node.value),
        }

    @abstractmethod
    def function(
        self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda, name: str, frame: Frame
    ) -> FunctionValue:
        """Make a function of its definition."""

    @abstractmethod
    def looked_up(self, names: dict[str, Native], name: str) -> Native:
        """Return the value of a name, whose import runs on its first use."""

    def value(self, node: ast.expr, frame: Frame) -> Native:
        """Evaluate an expression."""
        return self.evaluator(node)(frame)

    def evaluator(self, node: ast.expr) -> Evaluate:
        """Return what evaluates an expression."""
        found = self._evaluators.get(node)
        if found is None:
            make = self._expressions.get(type(node))
            found = self._evaluators[node] = (
                _constant_of(Unknown(ast.unparse(node))) if make is None else make(node)
            )
        return found

    def _name(self, node: ast.Name) -> Evaluate:
        name = node.id

        def evaluate(frame: Frame) -> Native:
            value = frame.names.get(name, _NOT_THERE)
            if value is _NOT_THERE:
                return self._outer_name(name, frame)
            return self.looked_up(frame.names, name) if type(value) is Lazy else value

        return evaluate

    def _outer_name(self, name: str, frame: Frame) -> Native:
        scope = frame.outer
        while scope is not None:
            if name in scope.names and not scope.is_class_body:
                return self.looked_up(scope.names, name)
            scope = scope.outer
        if name in frame.module.names:
            return self.looked_up(frame.module.names, name)
        return self._builtin(name, frame)

    def _builtin(self, name: str, frame: Frame) -> Native:
        if name == "super":
            return Hook(lambda run, args, _named: _super(run, frame, args))
        if name in _UNSAFE or not hasattr(builtins, name):
            star = next((s for s in frame.module.module.stars), None)
            return Unknown(name if star is None else f"{star}.{name}")
        return getattr(builtins, name)

    def _attribute(self, node: ast.Attribute) -> Evaluate:
        owner_of, name = self.evaluator(node.value), node.attr

        def evaluate(frame: Frame) -> Native:
            owner = owner_of(frame)
            if type(owner) is Instance:
                value = owner.attributes.get(name, _NOT_THERE)
                if value is not _NOT_THERE and type(value) is not Perhaps:
                    return value
            return self.attribute(owner, name)

        return evaluate

    def _call(self, node: ast.Call) -> Evaluate:
        function_of, args_of = self.evaluator(node.func), self._arguments_of(node.args)
        named_of = [(each.arg, self.evaluator(each.value)) for each in node.keywords]
        line = node.lineno

        def evaluate(frame: Frame) -> Native:
            place = self._place
            function, args = function_of(frame), args_of(frame)
            if type(args) is not list:
                return args  # not known
            named: dict[str, Native] = {}
            for name, value_of in named_of:
                value = value_of(frame)
                if name is not None:
                    named[name] = value
                elif isinstance(value, Mapping):
                    named.update(value)
                else:
                    return Unknown(ast.unparse(node))
            self._place = (frame.module, line)
            try:
                return self.apply(function, args, named)
            finally:
                self._place = place

        return evaluate

    def _arguments_of(self, nodes: Sequence[ast.expr]) -> Evaluate:
        """Return what lists positional arguments; unknown where `*values` are not known."""
        each_of = [(self.evaluator(each), isinstance(each, ast.Starred)) for each in nodes]
        if not any(is_starred for _, is_starred in each_of):
            plain_of = [evaluate for evaluate, _ in each_of]
            return lambda frame: [value_of(frame) for value_of in plain_of]

        def evaluate(frame: Frame) -> Native:
            args: list[Native] = []
            for value_of, is_starred in each_of:
                value = value_of(frame)
                if not is_starred:
                    args.append(value)
                elif isinstance(values := self.iterated(value), Unknown):
                    return values
                else:
                    args.extend(values)
            return args

        return evaluate

    def _bool_op(self, node: ast.BoolOp) -> Evaluate:
        ends, operands = isinstance(node.op, ast.Or), [*map(self.evaluator, node.values)]

        def evaluate(frame: Frame) -> Native:
            unknown: Unknown | None = None
            value: Native = None
            for at, value_of in enumerate(operands):
                value = value_of(frame)
                truth = self.truth(value)
                if truth is None:
                    unknown = unknown or Unknown(ast.unparse(node.values[at]))
                elif truth is ends:
                    # What an unknown operand before it would give has the same truth.
                    return value if unknown is None else _ended(node, value, ends=ends)
            return value if unknown is None else unknown

        return evaluate

    def _bin_op(self, node: ast.BinOp) -> Evaluate:
        left, right, op = self.evaluator(node.left), self.evaluator(node.right), node.op
        return lambda frame: self.operated(op, left(frame), right(frame))

    def _unary_op(self, node: ast.UnaryOp) -> Evaluate:
        operand, is_not = self.evaluator(node.operand), isinstance(node.op, ast.Not)

        def evaluate(frame: Frame) -> Native:
            value = operand(frame)
            if is_not:
                truth = self.truth(value)
                return Unknown(f"not {ast.unparse(node.operand)}") if truth is None else not truth
            if isinstance(value, Unknown | External):
                return Unknown(ast.unparse(node))
            return UNARY[type(node.op)](value)

        return evaluate

    def _compare(self, node: ast.Compare) -> Evaluate:
        first = self.evaluator(node.left)
        compares = [self.comparison(type(op)) for op in node.ops]
        others = [*zip(compares, map(self.evaluator, node.comparators), strict=True)]

        def evaluate(frame: Frame) -> Native:
            left = first(frame)
            result: Native = True
            for compare, right_of in others:
                right = right_of(frame)
                truth = compare(left, right)
                if truth is False:
                    return False
                if truth is None:
                    result = Unknown(ast.unparse(node))
                left = right
            return result

        return evaluate

    def _if_exp(self, node: ast.IfExp) -> Evaluate:
        test, then, other = map(self.evaluator, (node.test, node.body, node.orelse))

        def evaluate(frame: Frame) -> Native:
            truth = self.truth(test(frame))
            if truth is not None:
                return then(frame) if truth else other(frame)
            self._suppose(ast.unparse(node.test))
            try:
                return joined(then(frame), other(frame))
            except Raised as error:
                self.note(error)
                return Unknown(ast.unparse(node))
            finally:
                self._maybe.pop()

        return evaluate

    def _subscript(self, node: ast.Subscript) -> Evaluate:
        owner, key = self.evaluator(node.value), self.evaluator(node.slice)
        return lambda frame: self.item(owner(frame), key(frame))

    def _named_expr(self, node: ast.NamedExpr) -> Evaluate:
        value_of, store = self.evaluator(node.value), self.storer(node.target)

        def evaluate(frame: Frame) -> Native:
            value = value_of(frame)
            store(value, frame)
            return value

        return evaluate

    def _yield(self, node: ast.Yield) -> Evaluate:
        value_of = _constant_of(None) if node.value is None else self.evaluator(node.value)

        def evaluate(frame: Frame) -> Native:
            value = value_of(frame)
            if frame.around is None:
                frame.yielded.append(value)
            else:
                frame.around(value)

        return evaluate

    def _yield_from(self, node: ast.YieldFrom) -> Evaluate:
        values_of = self.evaluator(node.value)

        def evaluate(frame: Frame) -> Native:
            values = self.iterated(values_of(frame))
            frame.yielded.extend([values] if isinstance(values, Unknown) else values)

        return evaluate


def _constant_of(value: Native) -> Evaluate:
    return lambda _frame: value


def _ended(node: ast.BoolOp, value: Native, *, ends: bool) -> Native:
    return ends if isinstance(value, bool) else Unknown(ast.unparse(node)) if ends else value


def _super(run: Objects, frame: Frame, named: Sequence[Native]) -> Native:
    if named:  # a class to begin behind, which need not be the method's own
        owner, *bound = named
        is_found = isinstance(owner, ClassValue) and bound
        return Super(run, owner, bound[0]) if is_found else Unknown("super(...)")
    if frame.owner is None or frame.function is None:
        return Unknown("super()")
    first = (*frame.function.node.args.posonlyargs, *frame.function.node.args.args)[0].arg
    scope: Frame | None = frame
    while scope is not None and first not in scope.names:  # in a comprehension of the method
        scope = scope.outer
    return Unknown("super()") if scope is None else Super(run, frame.owner, scope.names[first])


_UNSAFE = frozenset(
    {"open", "exec", "eval", "compile", "input", "__import__", "globals", "locals"}
    | {"breakpoint", "exit", "quit", "help", "memoryview", "dir", "delattr", "id", "print"}
)
