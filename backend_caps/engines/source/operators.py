"""Operators and comparisons of an interpreted program's values."""

from __future__ import annotations

import ast
import operator
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from backend_caps.engines.source.builtin_functions import number_of
from backend_caps.engines.source.calls import Calls
from backend_caps.engines.source.uncertainty import all_joined, has_unknown, short
from backend_caps.engines.source.values import (
    EXACT,
    PLAIN,
    ClassValue,
    External,
    FieldDefault,
    Hook,
    Instance,
    Native,
    Options,
    Unknown,
    as_tuple,
)

Compare: TypeAlias = Callable[[Native, Native], bool | None]
"""Compares two values; None where the result is not known."""
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
UNARY: Mapping[type[ast.unaryop], Callable[[Any], Any]] = {
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
    ast.Invert: operator.inv,
}
_ORDERS: Mapping[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_NEGATIONS: Mapping[type[ast.cmpop], type[ast.cmpop]] = {
    ast.IsNot: ast.Is,
    ast.NotEq: ast.Eq,
    ast.NotIn: ast.In,
}


class Operators(Calls):
    """Computes with values, and compares them; what is not known makes the result unknown."""

    def operated(self, op: ast.operator, left: Native, right: Native) -> Native:
        """Return what a binary operator gives."""
        if isinstance(left, Options) and not isinstance(right, Unknown):
            return all_joined(self._of_each(left, lambda each: self.operated(op, each, right)))
        if isinstance(right, Options) and not isinstance(left, Unknown):
            return all_joined(self._of_each(right, lambda each: self.operated(op, left, each)))
        if isinstance(left, Unknown) or isinstance(right, Unknown):
            return Unknown(str(left if isinstance(left, Unknown) else right))
        if isinstance(op, ast.Mod) and isinstance(left, str) and has_unknown(right):
            return Unknown(left)
        own = (ClassValue, tuple, External, Hook)
        if isinstance(op, ast.BitOr) and (isinstance(left, own) or isinstance(right, own)):
            return (*_alternatives(left), *_alternatives(right))  # of types
        if isinstance(left, Instance) and left.cls.is_enum:
            left = left.attributes["value"]
        if isinstance(left, External | Instance) or isinstance(right, External | Instance):
            return Unknown(f"{short(left)} and {short(right)}")
        try:
            return _OPERATORS[type(op)](left, right)
        except (TypeError, ValueError, ArithmeticError, KeyError) as error:
            raise self.raised(error) from error

    def comparison(self, op: type[ast.cmpop]) -> Compare:
        """Return what an operator of comparison does."""
        if op in _NEGATIONS:
            return _negated(self.comparison(_NEGATIONS[op]))
        if op is ast.Is:
            return self._over_options(_identical)
        if op is ast.Eq:
            return self._over_options(self._equal)
        if op is ast.In:
            return self._over_options(lambda value, container: self.contains(container, value))
        return self._over_options(self._ordered(_ORDERS[op]))

    def _over_options(self, compare: Compare) -> Compare:
        """Compare each value that the left one may have; None where the results differ."""

        def over_options(left: Native, right: Native) -> bool | None:
            if type(left) is not Options:
                return compare(left, right)
            truths = {*self._of_each(left, lambda each: compare(each, right))}
            return truths.pop() if len(truths) == 1 else None

        return over_options

    def _ordered(self, order: Callable[[Any, Any], Any]) -> Compare:
        def compare(left: Native, right: Native) -> bool | None:
            if isinstance(left, Unknown | External) or isinstance(right, Unknown | External):
                return None
            own = left.cls.lookup(f"__{order.__name__}__") if isinstance(left, Instance) else None
            found = NotImplemented if own is None else self.apply(own, (left, right), {})
            if found is not NotImplemented:
                return self.truth(found)
            left, right = as_tuple(number_of(left)), as_tuple(number_of(right))
            try:
                return bool(order(left, right))
            except TypeError as error:
                raise self.raised(error) from error

        return compare


def _alternatives(kind: Native) -> tuple[Native, ...]:
    """List the types of a union, as `isinstance` takes them."""
    if isinstance(kind, tuple):
        return kind
    if isinstance(kind, types.UnionType):
        return typing.get_args(kind)
    return (type(None) if kind is None else kind,)


def _negated(compare: Compare) -> Compare:
    def negated(left: Native, right: Native) -> bool | None:
        truth = compare(left, right)
        return None if truth is None else not truth

    return negated


def _identical(left: Native, right: Native) -> bool | None:
    if right is None and type(left) in EXACT:  # the most frequent question
        return left is None
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
