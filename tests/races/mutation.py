"""Take one statement or expression out of a function, for the length of a `with` block.

The function's own source is parsed, the one node that reads as the mutant says is replaced, and the
result is put in place of the function's code. A node that is not there exactly once is an error: a
mutant of code that has changed must not pass for one that was caught.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from functools import reduce
from importlib import import_module
from pathlib import Path
from types import CodeType, FunctionType
from typing import TypeVar, cast

from backend_caps.errors import BackendCapsError
from tests.races.cases import Program

_Node = TypeVar("_Node", bound=ast.AST)


class Kind(Enum):
    """What a mutant takes away."""

    WAIT = "wait"
    """A stream, or the host, no longer waits."""
    RECORD = "record"
    """An event is not recorded, or too early."""
    KEEP_ALIVE = "keep-alive"
    """Memory is freed while device work wants it."""
    OUT_OF_PLACE = "out of place"
    """A value that somebody still reads is written to."""
    BARRIER = "barrier"
    """The scheduler writes what the running forward still reads."""
    SYNCHRONIZE = "synchronize"
    """The whole device is not waited for."""
    BOUND = "bound"
    """The host counts on less than the device may do."""
    STALE = "stale"
    """A value is of another step, request or stay than whoever reads it."""
    ORDER = "order"
    """Something comes before what it has to follow."""
    PLACE = "place"
    """Something stands beside where it is read."""

    @property
    def is_about_streams(self) -> bool:
        """Whether it changes what is ordered, and not only what is computed."""
        return self not in {Kind.BOUND, Kind.STALE, Kind.ORDER, Kind.PLACE}


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """One piece of source, what is put in its place, and what it is there for."""

    name: str
    kind: Kind
    file: str
    """The path in the repository."""
    function: str
    """Its qualified name."""
    source: str
    """A statement, several in a row, or an expression, as Python reads it."""
    replacement: str = "pass"
    protects: str
    """What goes wrong without it."""
    programs: tuple[Program, ...] = ()
    """What reaches it, where that does not follow from the file."""

    @property
    def module(self) -> str:
        """The module's dotted name."""
        return ".".join(Path(self.file).with_suffix("").parts)


@dataclass(eq=False, kw_only=True)
class StaleMutantError(BackendCapsError):
    """The code that a mutant changes is not there, or is there several times."""

    mutant: str
    function: str
    source: str
    num_found: int

    @property
    def message(self) -> str:
        """What was looked for, where, and how often it is there."""
        return (
            f"mutant {self.mutant!r} changes {self.source!r} in {self.function}, which has it "
            f"{self.num_found} times; exactly one was expected. Correct the mutant's source."
        )


@contextmanager
def mutated(mutant: Mutant) -> Iterator[None]:
    """Run with a mutant in place of the code, and put the code back.

    Raises:
        StaleMutantError: its source is not there exactly once.
    """
    function = find_function(mutant)
    before = function.__code__
    function.__code__ = mutated_code(mutant)
    try:
        yield
    finally:
        function.__code__ = before


def find_function(mutant: Mutant) -> FunctionType:
    """Return the function that a mutant changes, without decorators."""
    names = mutant.function.split(".")
    module: object = import_module(mutant.module)
    found = reduce(lambda owner, name: vars(owner)[name], names, module)
    if isinstance(found, classmethod | staticmethod):
        found = found.__func__
    if isinstance(found, property):
        found = found.fget
    return cast("FunctionType", inspect.unwrap(cast("Callable[..., object]", found)))


def mutated_code(mutant: Mutant) -> CodeType:
    """Compile the mutant's function; lines keep their numbers.

    Raises:
        StaleMutantError: its source is not there exactly once.
    """
    file = find_function(mutant).__code__.co_filename
    tree = ast.parse(Path(file).read_text("utf-8"))
    owner: ast.AST = tree
    for name in mutant.function.split("."):
        owner = _definition(owner, name)
    wanted = ast.parse(mutant.source).body
    num_found = _replace(owner, wanted, ast.parse(mutant.replacement).body)
    if num_found != 1:
        raise StaleMutantError(
            mutant=mutant.name,
            function=f"{mutant.file}:{mutant.function}",
            source=mutant.source,
            num_found=num_found,
        )
    module = compile(ast.fix_missing_locations(tree), file, "exec", dont_inherit=True)
    return reduce(_nested, mutant.function.split("."), module)


def _definition(owner: ast.AST, name: str) -> ast.AST:
    """Find a class or function by its name among the statements of another."""
    return next(
        node
        for node in ast.iter_child_nodes(owner)
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == name
    )


def _nested(code: CodeType, name: str) -> CodeType:
    return next(c for c in code.co_consts if isinstance(c, CodeType) and c.co_name == name)


def _replace(owner: ast.AST, wanted: list[ast.stmt], new: list[ast.stmt]) -> int:
    """Replace statements in a row or, where there are none, expressions or arguments; count."""
    num_found = _replace_statements(owner, wanted, new)
    if num_found or len(wanted) != 1:
        return num_found
    swap = _Swap(_within(wanted[0]), _within(new[0]))
    swap.visit(owner)
    return swap.num_found


def _within(statement: ast.stmt) -> ast.AST:
    """Read an expression, or the argument that `name=value` is within a call."""
    match statement:
        case ast.Expr(value=value):
            return value
        case ast.Assign(targets=[ast.Name(id=name)], value=value):
            return ast.keyword(arg=name, value=value)
    return statement


def _replace_statements(owner: ast.AST, wanted: list[ast.stmt], new: list[ast.stmt]) -> int:
    num_found = 0
    looked_for = [ast.dump(statement) for statement in wanted]
    for node in ast.walk(owner):
        for _, body in ast.iter_fields(node):
            if not isinstance(body, list) or not all(isinstance(own, ast.stmt) for own in body):
                continue
            for start in range(len(body) - len(wanted), -1, -1):
                found = body[start : start + len(wanted)]
                if [ast.dump(statement) for statement in found] == looked_for:
                    body[start : start + len(wanted)] = [_placed(own, found[0]) for own in new]
                    num_found += 1
    return num_found


class _Swap(ast.NodeTransformer):
    """Replace every node that equals another one."""

    def __init__(self, wanted: ast.AST, new: ast.AST) -> None:
        self._wanted = ast.dump(wanted)
        self._new = new
        self.num_found = 0

    def visit(self, node: ast.AST) -> ast.AST:
        """Replace this node, or what it is made of."""
        if ast.dump(node) == self._wanted:
            self.num_found += 1
            return _placed(self._new, node)
        self.generic_visit(node)
        return node


def _placed(new: _Node, old: ast.AST) -> _Node:
    for node in ast.walk(new):
        ast.copy_location(node, old)
    return new
