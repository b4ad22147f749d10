"""The page sizes that a backend takes: from its kernels' blocks, or from its own test."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from backend_caps.capability.scale import ANY
from backend_caps.capability.sizes import Exact, MultipleOf, OneOf, Sizes
from backend_caps.engines.source.attributes import Case
from backend_caps.engines.vllm.constants import MULTIPLE_OF, Constants, Item
from backend_caps.engines.vllm.lookup import Answer


def pages_of_blocks(blocks: Iterable[Item]) -> Sizes | None:
    """Say which pages can be cut into one of a kernel's blocks; None where `Sizes` cannot.

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


def pages_of_test(test: Answer, constants: Constants) -> Sizes | None:
    """Read a `supports_block_size`; None where it is no plain test of its argument."""
    argument = test.argument
    if argument is None:
        return None
    match [case for case in test.cases if not is_for_none(case, argument)]:
        case [Case(value=value, guards=guards)]:
            if all(argument in ast.unparse(guard) for guard in guards):
                return _tested(value, argument, test, constants)
    return None


def is_for_none(case: Case, argument: str) -> bool:
    """Tell whether a case answers for an argument that is not known yet."""
    return any(ast.unparse(guard) == f"{argument} is None" for guard in case.guards)


def _tested(value: ast.expr, argument: str, test: Answer, constants: Constants) -> Sizes | None:
    match value:
        case ast.BoolOp(op=ast.Or(), values=[none, rest]):
            is_none = ast.unparse(none) == f"{argument} is None"
            return _tested(rest, argument, test, constants) if is_none else None
        case ast.Compare(left=left, ops=[ast.Eq()], comparators=[ast.Constant(value=int(right))]):
            return _equal(left, right, argument)
        case ast.Compare(left=left, ops=[ast.In()], comparators=[right]):
            items = constants.items(right, test) if _is_argument(left, argument) else None
            sizes = frozenset(item for item in items or () if isinstance(item, int))
            return OneOf(sizes) if sizes else None
    return None


def _equal(left: ast.expr, right: int, argument: str) -> Sizes | None:
    match left:
        case ast.BinOp(left=divided, op=ast.Mod(), right=ast.Constant(value=int(base))):
            return MultipleOf(base) if right == 0 and _is_argument(divided, argument) else None
    return Exact(right) if _is_argument(left, argument) else None


def _is_argument(value: ast.expr, argument: str) -> bool:
    return ast.unparse(value) in {argument, f"int({argument})"}
