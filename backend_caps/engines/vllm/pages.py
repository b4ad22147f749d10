"""The sizes that a backend's own test, or that of vLLM's root class, lets pass.

A root's `supports_block_size` differs between releases, and is read as it stands in each: a page
is a multiple of a kernel's block, and in 0.15.1 one of a list too. One that asks for anything else
is not read.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from dataclasses import dataclass

from backend_caps.capability.kind import ANY
from backend_caps.capability.sets import Exact, MultipleOf, OneOf, Sizes
from backend_caps.engines.source.guards import Guarded, as_expression, in_turn
from backend_caps.engines.source.module import Import
from backend_caps.engines.source.statements import StatedValue
from backend_caps.engines.vllm.lookup import MULTIPLE_OF, Answer, Item

_BLOCKS = frozenset({"cls.get_supported_kernel_block_sizes()", "cls.supported_kernel_block_sizes"})
"""How a test gets the kernel's blocks."""
_EMPTY = frozenset(f"not {blocks}" for blocks in _BLOCKS)


@dataclass(frozen=True, slots=True)
class PageTest:
    """A test that a page splits into one of the kernel's blocks, which a root has."""

    among: frozenset[int] | None
    """The sizes of which a page has to be one; None for any."""

    @property
    def words(self) -> str:
        """What it makes of a list of blocks."""
        sizes = "" if self.among is None else f" of {', '.join(map(str, sorted(self.among)))}"
        return f"a page is any multiple of a block{sizes and f', and one{sizes}'}"

    def pages(self, blocks: Iterable[Item]) -> Sizes | None:
        """Return the pages that split into a kernel's blocks; None if no `Sizes` expresses them.

        A page may be a multiple of any block, whether the block is exact or a multiple.
        """
        bases = {int(str(block).removeprefix(MULTIPLE_OF)) for block in blocks}
        if self.among is not None:
            fitting = {n for n in self.among if not bases or any(n % base == 0 for base in bases)}
            return OneOf(frozenset(fitting)) if fitting else None
        least = [base for base in bases if not any(base % other == 0 for other in bases - {base})]
        match least:
            case []:
                return ANY
            case [only]:
                return MultipleOf(only)
        return None


def page_test(test: Answer) -> PageTest | None:
    """Read a test of a page that looks at the kernel's blocks; None if it asks for more."""
    page, among, splits = test.argument, None, False
    for guards, value in in_turn(Guarded(each.guards, each.value) for each in test.cases):
        match ast.unparse(value), [test.spelled_out(guard) for guard in guards]:
            case ("True", [one]) if one == f"{page} is None" or one in _EMPTY:
                continue
            case ("False", [one]) if one.startswith(f"{page} not in ") and among is None:
                among = _listed(test, one)
                if among is None:
                    return None
            case ("True", [loop, one]) if _splits(test, loop, one):
                splits = True
            case ("False", [one]) if splits and one.startswith("not returned from the loop for "):
                continue
            case _:
                return None
    return PageTest(among) if splits else None


def _splits(test: Answer, loop: str, question: str) -> bool:
    """Return whether a loop asks of each block if it divides a page; of a multiple, its base."""
    match = re.fullmatch(r"for (\w+) in (.+)", loop)
    if match is None or test.function is None:
        return False
    block, blocks = match.groups()
    bound = test.owner.module.scope_of(test.function.body).get(block, ())
    match bound:
        case [((*_, when), ast.Attribute() as base)]:
            rebound = f"{block} = {ast.unparse(base)} where {ast.unparse(when)}"
        case _:
            return False
    return (
        test.spelled_out(as_expression(blocks)) in _BLOCKS
        and rebound == f"{block} = {block}.base where isinstance({block}, MultipleOf)"
        and question == f"{test.argument} % {block} == 0"
    )


def _listed(test: Answer, question: str) -> frozenset[int] | None:
    """Read the numbers of `size not in get_args(NAME)`, of which NAME is a `Literal`."""
    match = re.fullmatch(r"\w+ not in get_args\((\w+)\)", question)
    if match is None:
        return None
    name, module = match[1], test.owner.module
    meanings = {**module.scope, **test.locals}.get(name, ())
    match meanings:
        case [(_, Import(module=source, attribute=str(name)))]:
            home = test.index.module(source)
            meanings = home.scope.get(name, ()) if home else ()
    match meanings:
        case [(_, ast.Subscript(value=ast.Name(id="Literal"), slice=ast.Tuple(elts=parts)))]:
            values = [part.value for part in parts if isinstance(part, ast.Constant)]
            sizes = frozenset(value for value in values if isinstance(value, int))
            return sizes if len(sizes) == len(parts) else None
    return None


def sizes_of_test(test: Answer) -> Sizes | None:
    """Read a test of a size; None if it does not just test its argument."""
    match test.cases_of_argument:
        case [StatedValue(value=value, guards=guards)] if test.argument:
            if all(test.argument in ast.unparse(guard) for guard in guards):
                return _tested(value, test)
    return None


def _tested(value: ast.expr, test: Answer) -> Sizes | None:
    argument = test.argument
    match value:
        case ast.BoolOp(op=ast.Or(), values=[none, rest]):
            is_none = ast.unparse(none) == f"{argument} is None"
            return _tested(rest, test) if is_none else None
        case ast.Compare(left=left, ops=[ast.In()], comparators=[right]):
            is_ours = ast.unparse(left) in {argument, f"int({argument})"}
            items = test.items(right) if is_ours else None
            sizes = frozenset(item for item in items or () if isinstance(item, int))
            return OneOf(sizes) if sizes else None
    pattern = rf"(?:{argument}|int\({argument}\))(?: % (?P<base>\d+) == 0| == (?P<exact>\d+))"
    size = re.fullmatch(pattern, ast.unparse(value))
    if size is None:
        return None
    return MultipleOf(int(size["base"])) if size["base"] else Exact(int(size["exact"]))
