"""Windows of compute capabilities, out of the expressions that vLLM tests them with."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence
from functools import reduce

from backend_caps.capability.compute import ComputeRange, Version, Windows, overlap
from backend_caps.capability.scale import ANY


def windows_of(test: ast.expr, argument: str) -> Windows | None:
    """Read a test of one capability; None where it asks for anything else.

    Args:
        test: such as `capability.major in [9, 10]`.
        argument: the name of the capability in it.
    """
    match test:
        case ast.Constant(value=True):
            return ANY
        case ast.BoolOp(op=ast.And(), values=tests):
            every = [windows_of(each, argument) for each in tests]
            known = [each for each in every if each is not None]
            return (reduce(overlap, known) or None) if len(known) == len(every) else None
        case ast.Compare(left=left, ops=[sign], comparators=[right]):
            return _compared(ast.unparse(left), sign, right, argument)
    return None


def _compared(left: str, sign: ast.cmpop, right: ast.expr, argument: str) -> Windows | None:
    readers: dict[str, _Reader] = {
        argument: (_version, _next_minor),
        f"({argument}.major, {argument}.minor)": (_version, _next_minor),
        f"{argument}.major": (_major, _next_major),
    }
    if left not in readers:
        return None
    read, after = readers[left]
    bounds = list(_bounds(sign, right, read))
    if not bounds or None in bounds:
        return None
    return _windows(sign, [bound for bound in bounds if bound is not None], after)


_Read = Callable[[ast.expr], Version | None]
_After = Callable[[Version], Version]
_Reader = tuple[_Read, _After]


def _bounds(sign: ast.cmpop, right: ast.expr, read: _Read) -> Iterator[Version | None]:
    match sign, right:
        case ast.In(), ast.List(elts=parts) | ast.Tuple(elts=parts):
            yield from (read(part) for part in parts)
        case ast.Eq() | ast.GtE() | ast.Gt() | ast.LtE() | ast.Lt(), _:
            yield read(right)


def _windows(sign: ast.cmpop, bounds: Sequence[Version], after: _After) -> Windows:
    first = bounds[0]
    match sign:
        case ast.GtE():
            return (ComputeRange(first),)
        case ast.Gt():
            return (ComputeRange(after(first)),)
        case ast.LtE():
            return (ComputeRange((0, 0), after(first)),)
        case ast.Lt():
            return (ComputeRange((0, 0), first),)
    return overlap(tuple(ComputeRange(each, after(each)) for each in bounds), ANY)


def _version(value: ast.expr) -> Version | None:
    """Read `DeviceCapability(9, 0)` or `(9, 0)`."""
    match value:
        case (
            ast.Call(func=ast.Name(id="DeviceCapability"), args=[major, minor], keywords=[])
            | ast.Tuple(elts=[major, minor])
        ):
            return _pair(major, minor)
    return None


def _pair(major: ast.expr, minor: ast.expr) -> Version | None:
    match major, minor:
        case ast.Constant(value=int(first)), ast.Constant(value=int(second)):
            return first, second
    return None


def _major(value: ast.expr) -> Version | None:
    return _pair(value, ast.Constant(value=0))


def _next_minor(version: Version) -> Version:
    return version[0], version[1] + 1


def _next_major(version: Version) -> Version:
    return version[0] + 1, 0
