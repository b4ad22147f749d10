"""Expressions of an interpreted program."""

from __future__ import annotations

import ast
import builtins
import operator
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from backend_caps.engines.source.builtin_functions import SPECIAL, number_of
from backend_caps.engines.source.calls import Calls
from backend_caps.engines.source.instances import Super
from backend_caps.engines.source.objects import Objects
from backend_caps.engines.source.uncertainty import all_joined, has_unknown, joined, merge, short
from backend_caps.engines.source.values import (
    PLAIN,
    ClassValue,
    External,
    FieldDefault,
    Frame,
    FunctionValue,
    Hook,
    Instance,
    Native,
    Options,
    Raised,
    Unknown,
)

_OPERATORS: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
    ast.LShift: operator.lshift,
    ast.RShift: operator.rshift,
    ast.BitAnd: operator.and_,
    ast.BitOr: operator.or_,
    ast.BitXor: operator.xor,
}
_UNARY: Mapping[type[ast.unaryop], Callable[[Any], Any]] = {
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
    ast.Invert: operator.inv,
}
_COMPARES: Mapping[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}


_CONVERSIONS: Mapping[str, Callable[[Any], str]] = {"r": repr, "s": str, "a": ascii}


class Expressions(Calls):
    """Evaluates expressions."""

    def __init__(self, natives: Mapping[str, object]) -> None:
        """Take what external names mean, and names of the program that are replaced."""
        super().__init__(natives)
        self._expressions: Mapping[type[ast.expr], Callable[[Any, Frame], Native]] = {
            ast.Constant: lambda node, _: node.value,
            ast.Name: self._name,
            ast.Attribute: lambda n, f: self.attribute(self.value(n.value, f), n.attr),
            ast.Call: self._called,
            ast.BoolOp: self._bool_op,
            ast.BinOp: self._bin_op,
            ast.UnaryOp: self._unary_op,
            ast.Compare: self._compare,
            ast.IfExp: self._if_exp,
            ast.Subscript: self._subscript,
            ast.Slice: self._slice,
            ast.Dict: self._dict,
            ast.List: lambda n, f: self._elements(n.elts, f),
            ast.Tuple: lambda n, f: tuple(self._elements(n.elts, f)),
            ast.Set: lambda n, f: self._native(set, [self._elements(n.elts, f)], {}),
            ast.ListComp: lambda n, f: self._fresh([*self._comprehended(n, f, n.elt)]),
            ast.SetComp: lambda n, f: self._fresh(set(self._comprehended(n, f, n.elt))),
            ast.GeneratorExp: lambda n, f: [*self._comprehended(n, f, n.elt)],
            ast.DictComp: self._dict_comp,
            ast.Lambda: lambda n, f: self.function(n, f, "<lambda>"),
            ast.JoinedStr: self._joined_str,
            ast.NamedExpr: self._named_expr,
            ast.Starred: lambda n, f: self.value(n.value, f),
            ast.Yield: self._yield,
            ast.YieldFrom: self._yield_from,
            ast.Await: lambda n, f: self.value(n.value, f),
        }

    @abstractmethod
    def function(
        self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda, frame: Frame, name: str
    ) -> FunctionValue:
        """Make a function of its definition."""

    @abstractmethod
    def store(self, target: ast.expr, value: Native, frame: Frame) -> None:
        """Assign to a target."""

    @abstractmethod
    def looked_up(self, names: dict[str, Native], name: str) -> Native:
        """Return the value of a name, whose import runs on its first use."""

    def value(self, node: ast.expr, frame: Frame) -> Native:
        """Evaluate an expression."""
        evaluate = self._expressions.get(type(node))
        if evaluate is None:
            return Unknown(ast.unparse(node))
        return evaluate(node, frame)

    def _name(self, node: ast.Name, frame: Frame) -> Native:
        scope: Frame | None = frame
        while scope is not None:
            if node.id in scope.names and (scope is frame or not scope.is_class_body):
                return self.looked_up(scope.names, node.id)
            scope = scope.outer
        if node.id in frame.module.names:
            return self.looked_up(frame.module.names, node.id)
        return self._builtin(node.id, frame)

    def _builtin(self, name: str, frame: Frame) -> Native:
        if name == "super":
            return Hook(lambda run, _a, _n: _super(run, frame))
        if name in _UNSAFE or not hasattr(builtins, name):
            star = next((s for s in frame.module.module.stars), None)
            return Unknown(name if star is None else f"{star}.{name}")
        return getattr(builtins, name)

    def _called(self, node: ast.Call, frame: Frame) -> Native:
        place = self._place
        function = self.value(node.func, frame)
        args: list[Native] = []
        named: dict[str, Native] = {}
        for each in node.args:
            value = self.value(each, frame)
            if not isinstance(each, ast.Starred):
                args.append(value)
            elif isinstance(values := self.iterated(value), Unknown):
                return values
            else:
                args.extend(values)
        for keyword in node.keywords:
            value = self.value(keyword.value, frame)
            if keyword.arg is not None:
                named[keyword.arg] = value
            elif isinstance(value, Mapping):
                named.update(value)
            else:
                return Unknown(ast.unparse(node))
        self._place = (frame.module.module.path, node.lineno)
        try:
            return self.apply(function, args, named)
        finally:
            self._place = place

    def _bool_op(self, node: ast.BoolOp, frame: Frame) -> Native:
        ends = isinstance(node.op, ast.Or)
        unknown: Unknown | None = None
        value: Native = None
        for each in node.values:
            value = self.value(each, frame)
            truth = self.truth(value)
            if truth is None:
                unknown = unknown or Unknown(ast.unparse(each))
            elif truth is ends:
                # What an unknown operand before it would give has the same truth.
                return value if unknown is None else self._ended(node, value, ends=ends)
        return value if unknown is None else unknown

    def _ended(self, node: ast.BoolOp, value: Native, *, ends: bool) -> Native:
        return ends if isinstance(value, bool) else Unknown(ast.unparse(node)) if ends else value

    def _bin_op(self, node: ast.BinOp, frame: Frame) -> Native:
        left, right = self.value(node.left, frame), self.value(node.right, frame)
        return self._operated(node.op, left, right)

    def _operated(self, op: ast.operator, left: Native, right: Native) -> Native:
        if isinstance(left, Options) and not isinstance(right, Unknown):
            return all_joined([self._operated(op, each, right) for each in left.options])
        if isinstance(right, Options) and not isinstance(left, Unknown):
            return all_joined([self._operated(op, left, each) for each in right.options])
        if isinstance(left, Unknown) or isinstance(right, Unknown):
            return Unknown(str(left if isinstance(left, Unknown) else right))
        if isinstance(op, ast.Mod) and isinstance(left, str) and has_unknown(right):
            return Unknown(left)
        if isinstance(op, ast.BitOr) and isinstance(left, ClassValue | tuple | External):
            kinds = [each if isinstance(each, tuple) else (each,) for each in (left, right)]
            return (*kinds[0], *kinds[1])  # of types: what isinstance takes
        if isinstance(left, Instance) and left.cls.is_enum:
            left = left.attributes["value"]
        if isinstance(left, External | Instance) or isinstance(right, External | Instance):
            return Unknown(f"{short(left)} and {short(right)}")
        try:
            return _OPERATORS[type(op)](left, right)
        except (TypeError, ValueError, ArithmeticError, KeyError) as error:
            raise self.raised(error) from error

    def _unary_op(self, node: ast.UnaryOp, frame: Frame) -> Native:
        value = self.value(node.operand, frame)
        if isinstance(node.op, ast.Not):
            truth = self.truth(value)
            return Unknown(f"not {ast.unparse(node.operand)}") if truth is None else not truth
        if isinstance(value, Unknown | External):
            return Unknown(ast.unparse(node))
        return _UNARY[type(node.op)](value)

    def _compare(self, node: ast.Compare, frame: Frame) -> Native:
        left = self.value(node.left, frame)
        result: Native = True
        for op, each in zip(node.ops, node.comparators, strict=True):
            right = self.value(each, frame)
            one = self._compared(op, left, right)
            if one is False:
                return False
            if one is not True:
                result = Unknown(ast.unparse(node)) if one is None else one
            left = right
        return result

    def _compared(self, op: ast.cmpop, left: Native, right: Native) -> Native:
        if isinstance(left, Options):
            truths = {self._compared(op, each, right) for each in left.options}
            return truths.pop() if len(truths) == 1 else None
        match op:
            case ast.Is() | ast.IsNot():
                return _turned(_identical(left, right), isinstance(op, ast.IsNot))
            case ast.Eq() | ast.NotEq():
                return _turned(self._equal(left, right), isinstance(op, ast.NotEq))
            case ast.In() | ast.NotIn():
                return _turned(self._contains(right, left), isinstance(op, ast.NotIn))
        if isinstance(left, Unknown | External) or isinstance(right, Unknown | External):
            return None
        try:
            return bool(_COMPARES[type(op)](number_of(left), number_of(right)))
        except TypeError as error:
            raise self.raised(error) from error

    def _if_exp(self, node: ast.IfExp, frame: Frame) -> Native:
        truth = self.truth(self.value(node.test, frame))
        if truth is not None:
            return self.value(node.body if truth else node.orelse, frame)
        self._maybe.append(ast.unparse(node.test))
        try:
            return joined(self.value(node.body, frame), self.value(node.orelse, frame))
        except Raised as error:
            self.note(error.message, error.at)
            return Unknown(ast.unparse(node))
        finally:
            self._maybe.pop()

    def _subscript(self, node: ast.Subscript, frame: Frame) -> Native:
        owner, key = self.value(node.value, frame), self.value(node.slice, frame)
        return self.item(owner, key)

    def _slice(self, node: ast.Slice, frame: Frame) -> Native:
        bounds = [each and self.value(each, frame) for each in (node.lower, node.upper, node.step)]
        return Unknown("slice") if has_unknown(bounds) else slice(*bounds)

    def _dict(self, node: ast.Dict, frame: Frame) -> Native:
        made: dict[Native, Native] = {}
        for key, value in zip(node.keys, node.values, strict=True):
            own = self.value(value, frame)
            if key is not None:
                at = self.value(key, frame)
                if isinstance(at, Unknown | list | dict):
                    return Unknown(ast.unparse(node))
                made[at] = own
            elif isinstance(own, Mapping):
                merge(made, own)
            else:
                return Unknown(ast.unparse(node))
        return self._fresh(made)

    def _elements(self, nodes: Iterable[ast.expr], frame: Frame) -> list[Native]:
        made: list[Native] = []
        for node in nodes:
            value = self.value(node, frame)
            if not isinstance(node, ast.Starred):
                made.append(value)
            elif isinstance(values := self.iterated(value), Unknown):
                made.append(values)
            else:
                made.extend(values)
        self._fresh(made)
        return made

    def _comprehended(
        self,
        node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp,
        frame: Frame,
        *results: ast.expr,
    ) -> Iterator[Native]:
        inner = Frame(frame.module, {}, frame, frame.owner, frame.function, len(self._maybe))
        yield from self._rounds(list(node.generators), inner, results)

    def _rounds(
        self, rest: list[ast.comprehension], frame: Frame, results: Sequence[ast.expr]
    ) -> Iterator[Native]:
        if not rest:
            values = [self.value(each, frame) for each in results]
            yield values[0] if len(values) == 1 else tuple(values)
            return
        first, *others = rest
        values = self.iterated(self.value(first.iter, frame))
        if isinstance(values, Unknown):
            yield values
            return
        for value in list(values):
            self.store(first.target, value, frame)
            truths = [self.truth(self.value(each, frame)) for each in first.ifs]
            if all(each is not False for each in truths):
                found = self._rounds(others, frame, results)
                certain = all(each is True for each in truths)
                yield from found if certain else (Unknown("comprehension") for _ in [*found])

    def _dict_comp(self, node: ast.DictComp, frame: Frame) -> Native:
        pairs = [*self._comprehended(node, frame, node.key, node.value)]
        if any(isinstance(each, Unknown) or has_unknown(each[0]) for each in pairs):
            return Unknown(ast.unparse(node))
        return self._fresh(dict(pairs))

    def _joined_str(self, node: ast.JoinedStr, frame: Frame) -> Native:
        parts = []
        for each in node.values:
            if isinstance(each, ast.Constant):
                parts.append(str(each.value))
            else:
                assert isinstance(each, ast.FormattedValue), "a text has no other parts"
                parts.append(self._formatted(each, frame))
        return "".join(parts)

    def _formatted(self, node: ast.FormattedValue, frame: Frame) -> str:
        value = self.value(node.value, frame)
        spec = "" if node.format_spec is None else str(self.value(node.format_spec, frame))
        if isinstance(value, Instance):
            value = SPECIAL[str](self, [value], {})
        try:
            converted = _CONVERSIONS.get(chr(max(node.conversion, 0)))
            return format(converted(value) if converted else value, spec)
        except (TypeError, ValueError):
            return f"{{{ast.unparse(node.value)}}}"

    def _named_expr(self, node: ast.NamedExpr, frame: Frame) -> Native:
        value = self.value(node.value, frame)
        self.store(node.target, value, frame)
        return value

    def _yield(self, node: ast.Yield, frame: Frame) -> Native:
        frame.yielded.append(None if node.value is None else self.value(node.value, frame))
        return None

    def _yield_from(self, node: ast.YieldFrom, frame: Frame) -> Native:
        values = self.iterated(self.value(node.value, frame))
        frame.yielded.extend([values] if isinstance(values, Unknown) else values)


def _turned(truth: bool | None, is_negated: bool) -> bool | None:
    return truth if truth is None or not is_negated else not truth


def _identical(left: Native, right: Native) -> bool | None:
    if isinstance(left, Unknown) or isinstance(right, Unknown):
        # What is computed is no sentinel of the program.
        return False if object in {type(left), type(right)} else None
    if isinstance(left, External) and isinstance(right, External):
        return True if left.path == right.path else None
    if isinstance(left, External) or isinstance(right, External):
        other = right if isinstance(left, External) else left
        return (
            None if not isinstance(other, (*PLAIN, Instance, ClassValue, FieldDefault)) else False
        )
    if isinstance(left, int | str) and isinstance(right, int | str):
        return type(left) is type(right) and left == right
    return left is right


def _super(run: Objects, frame: Frame) -> Native:
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
