"""Values of programs in lock step, and blocks of operations that run on them.

A value holds what it is in every program, so an operation is one of torch's however many programs
there are. Where programs part, each group goes on with its own part of the values.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from backend_caps.simulator.errors import Site
from backend_caps.simulator.kernels.ir import Block, Kind, Operation
from backend_caps.simulator.kernels.memory import Access, Memory
from backend_caps.simulator.kernels.roots import PointerRoots, Roots
from backend_caps.simulator.trace_function import note_block

Grid = tuple[int, int, int]
"""How many programs there are along each axis."""


@dataclass(slots=True, eq=False)
class Frame:
    """Values of a group of programs."""

    values: list[Tensor]
    """By number; those that are not computed yet are of no use."""
    ids: Sequence[Tensor]
    """[N] int32: the programs' places in the grid, by axis."""
    grid: Grid
    """The whole grid."""
    memory: Memory
    """What pointers point to."""

    @property
    def count(self) -> int:
        """How many programs it has."""
        return len(self.ids[0])

    def part(self, programs: Tensor, used: Sequence[int]) -> Frame:
        """Return a frame of some programs, with the values that they go on to use."""
        values = list(self.values)
        for number in used:
            values[number] = pick(values[number], programs)
        ids = [each[programs] for each in self.ids]
        return Frame(values, ids, self.grid, self.memory)


def pick(value: Tensor, programs: Tensor) -> Tensor:
    """Return what a value is in some programs."""
    return value if value.shape[0] == 1 else value.index_select(0, programs)


def joined(parts: Sequence[tuple[Tensor, Tensor]], kind: Kind, count: int) -> Tensor:
    """Put together what groups of programs have; a group's is one for all or one for each."""
    whole = torch.empty((count, *kind.shape), dtype=kind.held)
    for programs, value in parts:
        whole[programs] = value
    return whole


Step = Callable[[Frame], None]
Results = list[Tensor]


@dataclass(slots=True, eq=False)
class Body:
    """A block that is ready to run."""

    arguments: Sequence[int]
    """The values that it is entered with."""
    steps: Sequence[Step]
    """What its operations do, but for the last one."""
    last: Operation
    """How it goes on."""
    lines: frozenset[Site]
    """The lines of its operations, with those that call them."""

    def run(self, frame: Frame, arguments: Sequence[Tensor] = ()) -> Results:
        """Run the operations, and return the values that the last one gives on."""
        note_block(self)
        values = frame.values
        for number, value in zip(self.arguments, arguments, strict=True):
            values[number] = value
        for step in self.steps:
            step(frame)
        return [values[each] for each in self.last.operands]


def values_used(blocks: Sequence[Block]) -> list[int]:
    """List the values that a region uses and does not define."""
    used: set[int] = set()
    defined: set[int] = set()
    _collect(blocks, used, defined)
    return sorted(used - defined)


def _collect(blocks: Sequence[Block], used: set[int], defined: set[int]) -> None:
    for block in blocks:
        defined.update(block.arguments)
        for operation in block.operations:
            used.update(operation.operands)
            used.update(value for _, values in operation.targets for value in values)
            defined.update(operation.results)
            for region in operation.regions:
                _collect(region, used, defined)


def uniform_value(condition: Tensor) -> bool | None:
    """Return the one value that a condition has in all programs; None where they differ."""
    if len(condition) == 1:
        return bool(condition)
    count = int(condition.sum())
    return None if 0 < count < len(condition) else count > 0


class Callee(Protocol):
    """A function that a kernel calls."""

    @property
    def accesses(self) -> Sequence[Access]:
        """What it does to memory."""

    def run(self, arguments: Sequence[Tensor], frame: Frame) -> list[tuple[Tensor, Results]]:
        """Run a group of programs; return which ended together, with what they return."""


class Builder(Protocol):
    """Makes the steps of a function, for operations that hold others or touch memory."""

    @property
    def kinds(self) -> Mapping[int, Kind]:
        """The types of the function's values."""

    @property
    def roots(self) -> PointerRoots:
        """Where its pointers come from."""

    @property
    def accesses(self) -> list[Access]:
        """What it does to memory, as far as its steps are made."""

    def body(self, block: Block) -> Body:
        """Make a block ready to run."""

    def callee(self, name: str, roots: Sequence[Roots]) -> Callee:
        """Make a function of the module ready to run, with the roots of what it is given."""
