"""Values read off expressions: numbers, dtypes and lists of them, page sizes, compute windows."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import reduce

from backend_caps.capability.kind import ANY
from backend_caps.capability.sets import (
    ComputeRange,
    Exact,
    MultipleOf,
    OneOf,
    Sizes,
    Version,
    Windows,
    overlap,
)
from backend_caps.engines.source.guards import Case
from backend_caps.engines.source.index import Index, Value
from backend_caps.engines.vllm.lookup import Answer

Item = int | str
"""A number, a name, or `multiple of 16`."""
MULTIPLE_OF = "multiple of "


def items_of(index: Index, value: ast.expr, answer: Answer) -> tuple[Item, ...] | None:
    """List the items of a list or a tuple; None where only running code knows them.

    Args:
        index: what a name is followed by to what its module binds it to.
        value: such as `[16, MultipleOf(64)]`, `list(SIZES)` or `(*NAMES, torch.float16)`.
        answer: where it stands.
    """
    try:
        return tuple(_items(index, Value(answer.owner.module, value), answer))
    except _UnknownError:
        return None


class _UnknownError(Exception):
    """Only running code knows a value."""


def _items(index: Index, at: Value, local: Answer | None) -> Iterator[Item]:
    at, local = _followed(index, at, local)
    match at.node:
        case ast.List(elts=parts) | ast.Tuple(elts=parts):
            for part in parts:
                yield from _of_part(index, replace(at, node=part), local)
        case ast.Call(func=ast.Name(id="list" | "tuple"), args=[inner], keywords=[]):
            yield from _items(index, replace(at, node=inner), local)
        case _:
            raise _UnknownError


def _of_part(index: Index, at: Value, local: Answer | None) -> Iterator[Item]:
    at, local = _followed(index, at, local)
    match at.node:
        case ast.Starred(value=inner):
            yield from _items(index, replace(at, node=inner), local)
        case ast.Constant(value=int() | str() as item) if not isinstance(item, bool):
            yield item
        case ast.Attribute(value=ast.Name(id="torch"), attr=name):
            yield name
        case ast.Call(func=ast.Name(id="MultipleOf"), args=[ast.Constant(value=int() as base)]):
            yield f"{MULTIPLE_OF}{base}"
        case _:
            raise _UnknownError


def _followed(index: Index, at: Value, local: Answer | None) -> tuple[Value, Answer | None]:
    """Follow a module's name; one that a function binds is not known before it runs."""
    if not isinstance(at.node, ast.Name):
        return at, local
    if local is not None and local.binds(at.node.id):
        raise _UnknownError
    match index.resolve(at.node, at.module):
        case [((), Value() as target)]:
            return target, None
    raise _UnknownError


def pages_of_blocks(blocks: Iterable[Item]) -> Sizes | None:
    """Return the pages that can be cut into a kernel's blocks; None where `Sizes` cannot tell.

    vLLM takes a page that is a multiple of any block, be the block itself exact or not.
    """
    bases = {int(str(block).removeprefix(MULTIPLE_OF)) for block in blocks}
    least = [base for base in bases if not any(base % other == 0 for other in bases - {base})]
    match least:
        case []:
            return ANY
        case [only]:
            return MultipleOf(only)
    return None


def pages_of_test(test: Answer, index: Index) -> Sizes | None:
    """Read a `supports_block_size`; None where it is no plain test of its argument."""
    match test.cases_of_argument:
        case [Case(value=value, guards=guards)] if test.argument:
            if all(test.argument in ast.unparse(guard) for guard in guards):
                return _tested(value, test, index)
    return None


def _tested(value: ast.expr, test: Answer, index: Index) -> Sizes | None:
    argument = test.argument
    match value:
        case ast.BoolOp(op=ast.Or(), values=[none, rest]):
            is_none = ast.unparse(none) == f"{argument} is None"
            return _tested(rest, test, index) if is_none else None
        case ast.Compare(left=left, ops=[ast.In()], comparators=[right]):
            is_ours = ast.unparse(left) in {argument, f"int({argument})"}
            items = items_of(index, right, test) if is_ours else None
            sizes = frozenset(item for item in items or () if isinstance(item, int))
            return OneOf(sizes) if sizes else None
    asked = rf"(?:{argument}|int\({argument}\))(?: % (?P<base>\d+) == 0| == (?P<exact>\d+))"
    found = re.fullmatch(asked, ast.unparse(value))
    if found is None:
        return None
    return MultipleOf(int(found["base"])) if found["base"] else Exact(int(found["exact"]))


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
    is_major = left == f"{argument}.major"
    if not is_major and left not in {argument, f"({argument}.major, {argument}.minor)"}:
        return None
    match sign, right:
        case ast.In(), ast.List(elts=values) | ast.Tuple(elts=values):
            bounds = [_version(value, is_major=is_major) for value in values]
        case ast.Eq() | ast.GtE() | ast.Gt() | ast.LtE() | ast.Lt(), _:
            bounds = [_version(right, is_major=is_major)]
        case _:
            return None
    starts = [bound for bound in bounds if bound is not None]
    if not starts or len(starts) < len(bounds):
        return None
    ends = [(first + 1, 0) if is_major else (first, second + 1) for first, second in starts]
    match sign:
        case ast.GtE() | ast.Gt():
            return (ComputeRange(starts[0] if isinstance(sign, ast.GtE) else ends[0]),)
        case ast.LtE() | ast.Lt():
            return (ComputeRange((0, 0), ends[0] if isinstance(sign, ast.LtE) else starts[0]),)
    return overlap(tuple(map(ComputeRange, starts, ends)), ANY)


def _version(value: ast.expr, *, is_major: bool) -> Version | None:
    """Read `9` of a major version, else `DeviceCapability(9, 0)` or `(9, 0)`."""
    match value:
        case ast.Constant(value=int(major)) if is_major:
            return major, 0
        case (
            ast.Call(
                func=ast.Name(id="DeviceCapability"),
                args=[ast.Constant(value=int(major)), ast.Constant(value=int(minor))],
                keywords=[],
            )
            | ast.Tuple(elts=[ast.Constant(value=int(major)), ast.Constant(value=int(minor))])
        ) if not is_major:
            return major, minor
    return None
