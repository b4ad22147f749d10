"""Kernels that are ready to run, all programs in lock step.

A GPU runs a kernel's programs beside each other, in any order. Here every operation is done in all
of them before the next one, in as many as a processor's cache has room for. So they may not wait
for each other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Self

import torch
from torch import Tensor

from backend_caps.simulator.errors import Site
from backend_caps.simulator.kernels.arithmetic import computation
from backend_caps.simulator.kernels.blocks import BUILDERS
from backend_caps.simulator.kernels.control import CONTROL
from backend_caps.simulator.kernels.errors import KernelTextError
from backend_caps.simulator.kernels.frames import (
    Body,
    Frame,
    Grid,
    Results,
    Step,
    pick,
    uniform_value,
    values_used,
)
from backend_caps.simulator.kernels.ir import Block, Function, Operation
from backend_caps.simulator.kernels.memory import Access, Memory
from backend_caps.simulator.kernels.reader import read_module
from backend_caps.simulator.kernels.roots import PointerRoots, Roots
from backend_caps.simulator.kernels.steps import STEPS

_MOST_ELEMENTS = 1 << 17
"""Elements of a value up to which programs run at once: what stays in a processor's cache."""
_NOTHING = torch.zeros(1)
"""Stands for a value that is not computed."""


def _computed(operation: Operation, compute: Callable[..., Tensor]) -> Step:
    (result,), operands = operation.results, operation.operands
    first, second = (*operands, 0, 0)[:2]

    def step_of_one(frame: Frame) -> None:
        values = frame.values
        values[result] = compute(values[first])

    def step_of_two(frame: Frame) -> None:
        values = frame.values
        values[result] = compute(values[first], values[second])

    def step(frame: Frame) -> None:
        values = frame.values
        values[result] = compute(*[values[each] for each in operands])

    return {1: step_of_one, 2: step_of_two}.get(len(operands), step)


@dataclass(slots=True)
class _Group:
    """Programs that are about to run a block."""

    label: str
    frame: Frame
    programs: Tensor
    """[N] int64: which they are, of those that entered the function."""
    arguments: Sequence[Tensor]


class ExecutableFunction:
    """A function that is ready to run.

    Args:
        function: the function.
        functions: what it may call, by name.
        roots: where its pointers come from; by default, each of its arguments is a root.

    Raises:
        KernelTextError: it has an operation that is not known here.
    """

    def __init__(
        self,
        function: Function,
        functions: Mapping[str, Function],
        roots: PointerRoots | None = None,
    ) -> None:
        self.arguments = function.arguments
        """Its arguments, as values of its own."""
        self.kinds = function.kinds
        """The types of its values."""
        self.roots = PointerRoots(function) if roots is None else roots
        """Where its pointers come from."""
        self.accesses: list[Access] = []
        """What it does to memory."""
        self._functions = functions
        self._constants: dict[int, Tensor] = {}
        self._bodies = {block.label: self.body(block) for block in function.blocks}
        self._first = function.blocks[0].label
        shared = {value for block in function.blocks for value in values_used([block])}
        self._shared = sorted(shared)
        self._initial = [self._constants.get(number, _NOTHING) for number in range(len(self.kinds))]

    def run(self, arguments: Sequence[Tensor], frame: Frame) -> list[tuple[Tensor, Results]]:
        """Run a group of programs to their ends.

        Args:
            arguments: the function's.
            frame: the programs, with their grid and memory.

        Returns:
            Which programs ended together, of those of the frame, with what they return there.
        """
        values = list(self._initial)
        for number, value in zip(self.arguments, arguments, strict=True):
            values[number] = value
        own = Frame(values, frame.ids, frame.grid, frame.memory)
        waiting = [_Group(self._first, own, torch.arange(frame.count), ())]
        ends = []
        while waiting:
            group = waiting.pop()
            body = self._bodies[group.label]
            outcome = body.run(group.frame, group.arguments)
            if body.last.name == "tt.return":
                ends.append((group.programs, outcome))
            else:
                waiting += self._onward(group, body.last, outcome)
        return ends

    def _onward(self, group: _Group, last: Operation, outcome: Results) -> list[_Group]:
        """Return where a group of programs goes on."""
        frame = group.frame
        targets = [(to, [frame.values[each] for each in given]) for to, given in last.targets]
        choice = True if last.name == "cf.br" else uniform_value(outcome[0])
        if choice is not None:
            to, given = targets[0 if choice else 1]
            return [_Group(to, frame, group.programs, given)]
        groups = []
        for (to, given), chosen in zip(targets, (outcome[0], ~outcome[0]), strict=True):
            part = chosen.nonzero()[:, 0]
            own = [pick(value, part) for value in given]
            groups.append(_Group(to, frame.part(part, self._shared), group.programs[part], own))
        return groups

    def body(self, block: Block) -> Body:
        """Make a block ready to run."""
        *operations, last = block.operations
        steps = [self._step(operation) for operation in operations]
        lines = frozenset[Site]().union(*(operation.lines for operation in block.operations))
        return Body(block.arguments, [step for step in steps if step is not None], last, lines)

    def callee(self, name: str, roots: Sequence[Roots]) -> ExecutableFunction:
        """Make a function of the module ready to run, with the roots of what it is given."""
        function = self._functions[name]
        given = dict(zip(function.arguments, roots, strict=True))
        inner = PointerRoots(function, given, self.roots.sizes)
        return ExecutableFunction(function, self._functions, inner)

    def _step(self, operation: Operation) -> Step | None:
        """Return what an operation does when it runs; None where it only gives a constant."""
        compute = computation(operation, self.kinds)
        if compute is None and operation.name in BUILDERS:
            compute = BUILDERS[operation.name](operation, self.kinds)
        if compute is not None:
            if self._constants.keys() >= set(operation.operands):
                operands = [self._constants[each] for each in operation.operands]
                self._constants[operation.results[0]] = compute(*operands)
                return None
            return _computed(operation, compute)
        make = STEPS.get(operation.name) or CONTROL.get(operation.name)
        if make is None:
            raise KernelTextError(f"operation {operation.name!r}, at {operation.site}")
        return make(self, operation)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """A kernel that is ready to run, on memory of the host."""

    function: Function
    """Its arguments, and what it is called."""
    graph: ExecutableFunction
    programs_at_once: int
    accessed: Mapping[str, frozenset[int]]
    """The arguments that it `reads` and `writes` through, as values of the function."""
    finds_memory: bool
    """Whether it accesses memory by addresses that it reads from memory."""

    @classmethod
    def read(cls, text: str, name: str, libraries: Sequence[str] = ()) -> Self:
        """Make a kernel of its module's text.

        Args:
            text: the module, as Triton prints it.
            name: the kernel's name in it.
            libraries: folders whose lines findings pass over for those of their callers.

        Raises:
            KernelTextError: it has what is not known here.
        """
        functions = read_module(text, libraries)
        function = functions[name]
        graph = ExecutableFunction(function, functions)
        accessed: dict[str, frozenset[int]] = dict.fromkeys(("reads", "writes"), frozenset())
        for access in graph.accesses:
            accessed[access.verb] |= access.roots or frozenset()
        largest = max(math.prod(kind.shape) for kind in function.kinds.values())
        at_once = max(1, _MOST_ELEMENTS // largest)
        return cls(
            function=function,
            graph=graph,
            programs_at_once=at_once,
            accessed=accessed,
            finds_memory=any(access.roots is None for access in graph.accesses),
        )

    def run(self, arguments: Sequence[Tensor], grid: Grid, memory: Memory) -> None:
        """Run all programs of a grid.

        Args:
            arguments: each of shape [1]; pointers are addresses.
            grid: the programs along each axis.
            memory: what the pointers point to, by the arguments' values in the function.
        """
        total = math.prod(grid)
        for first in range(0, total, self.programs_at_once):
            last = min(first + self.programs_at_once, total)
            self.graph.run(arguments, Frame([], _places(first, last, grid), grid, memory))


@lru_cache(maxsize=256)
def _places(first: int, last: int, grid: Grid) -> Sequence[Tensor]:
    """Return some programs' places in a grid, by axis."""
    numbers = torch.arange(first, last)
    ids = (numbers % grid[0], numbers // grid[0] % grid[1], numbers // (grid[0] * grid[1]))
    return [each.to(torch.int32) for each in ids]
