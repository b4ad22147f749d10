"""Branches, loops, calls and reductions: operations that hold others.

A branch that all programs take alike is one of Python's. Where they part, each side runs with its
own programs; a loop goes on with those that have not left it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import torch
from torch import Tensor

from backend_caps.simulator.kernels.arithmetic import together
from backend_caps.simulator.kernels.blocks import reduction, scan
from backend_caps.simulator.kernels.errors import KernelFaultError
from backend_caps.simulator.kernels.frames import (
    Body,
    Builder,
    Frame,
    Results,
    Step,
    joined,
    pick,
    uniform_value,
    values_used,
)
from backend_caps.simulator.kernels.ir import Operation

_MOST_TURNS = 1 << 20
"""Turns of a loop in half a minute: a kernel that takes more of them does not end."""


class Loop:
    """The programs that are still in a loop.

    Args:
        frame: the programs that entered it.
        used: the values that the loop uses.
        values: what it carries from turn to turn.
    """

    def __init__(self, frame: Frame, used: Sequence[int], values: Sequence[Tensor]) -> None:
        self.frame = frame
        self.programs = torch.arange(frame.count)
        self.values = list(values)
        self._used = used
        self._ends: list[tuple[Tensor, Results]] = []

    def keep(self, stays: Tensor) -> None:
        """Let the others end, with the values that are carried."""
        if len(stays) == 1 and len(self.programs) > 1:
            stays = stays.expand(len(self.programs))
        if stays.all():
            return
        places = (~stays).nonzero()[:, 0]
        self._end(places)
        places = stays.nonzero()[:, 0]
        self.frame = self.frame.part(places, self._used)
        self.programs = self.programs[places]
        self.values = [pick(value, places) for value in self.values]

    def finish(self, operation: Operation, frame: Frame) -> None:
        """Give the loop's results to the programs that entered it."""
        if not self._ends:
            for result, value in zip(operation.results, self.values, strict=True):
                frame.values[result] = value
            return
        if len(self.programs):
            self._end(torch.arange(len(self.programs)))
        _put_joined(frame, operation, self._ends)

    def _end(self, places: Tensor) -> None:
        self._ends.append((self.programs[places], [pick(value, places) for value in self.values]))


def _most(counts: Tensor, operation: Operation) -> int:
    """Return the turns of the program that takes most."""
    most = int(counts.max())
    if most > _MOST_TURNS:
        text = f"would take {most:,} turns of a loop"
        raise KernelFaultError(
            operation.site, f"{text}; a bound from memory that nothing has written gives so many"
        )
    return most


def _put_joined(frame: Frame, operation: Operation, ends: Sequence[tuple[Tensor, Results]]) -> None:
    for place, (result, kind) in enumerate(zip(operation.results, operation.kinds, strict=True)):
        parts = [(programs, values[place]) for programs, values in ends]
        frame.values[result] = joined(parts, kind, frame.count)


def branch(builder: Builder, operation: Operation) -> Step:
    """Make the step of a branch."""
    bodies = [builder.body(region[0]) for region in operation.regions]
    used = [values_used(region) for region in operation.regions]
    (condition,) = operation.operands[:1]

    def step(frame: Frame) -> None:
        chosen = frame.values[condition]
        choice = uniform_value(chosen)
        if choice is not None:
            if choice or len(bodies) > 1:
                found = bodies[0 if choice else 1].run(frame)
                for result, value in zip(operation.results, found, strict=True):
                    frame.values[result] = value
            return
        ends = []
        for body, own, these in zip(bodies, used, (chosen, ~chosen), strict=False):
            programs = these.nonzero()[:, 0]
            ends.append((programs, body.run(frame.part(programs, own))))
        _put_joined(frame, operation, ends)

    return step


def counted_loop(builder: Builder, operation: Operation) -> Step:
    """Make the step of a loop with bounds."""
    body = builder.body(operation.regions[0][0])
    used = values_used(operation.regions[0])
    low, high, stride, *initials = operation.operands

    def step(frame: Frame) -> None:
        values = frame.values
        start, end, by = (values[each].to(torch.int64) for each in (low, high, stride))
        if int(by.min()) <= 0:
            raise KernelFaultError(operation.site, f"steps a loop by {int(by.min())}")
        counts = torch.div(end - start + by - 1, by, rounding_mode="floor").clamp_(min=0)
        most = _most(counts, operation)
        entered = Loop(frame, used, [values[each] for each in initials])
        begin, by_number = values[low], values[stride]
        is_ragged = len(counts) > 1 and int(counts.min()) < most
        for number in range(most):
            if is_ragged:
                entered.keep(pick(counts, entered.programs) > number)
            index = pick(begin, entered.programs) + number * pick(by_number, entered.programs)
            entered.values = body.run(entered.frame, [index, *entered.values])
        entered.finish(operation, frame)

    return step


def loop(builder: Builder, operation: Operation) -> Step:
    """Make the step of a loop with a condition."""
    before, after = (builder.body(region[0]) for region in operation.regions)
    used = sorted({*values_used(operation.regions[0]), *values_used(operation.regions[1])})

    def step(frame: Frame) -> None:
        entered = Loop(frame, used, [frame.values[each] for each in operation.operands])
        for _ in range(_MOST_TURNS):
            condition, *entered.values = before.run(entered.frame, entered.values)
            entered.keep(condition)
            if not len(entered.programs):
                entered.finish(operation, frame)
                return
            entered.values = after.run(entered.frame, entered.values)
        text = f"has not left a loop after {_MOST_TURNS:,} turns"
        raise KernelFaultError(operation.site, f"{text}; it may wait for another program")

    return step


def combination(builder: Builder, operation: Operation) -> Step:
    """Make the step of a reduction or a scan."""
    block = operation.regions[0][0]
    body, combine_in = builder.body(block), _combined_at_once
    if any(each.regions or each.name == "tt.call" for each in block.operations):
        combine_in = _combined_apart
    make = reduction if operation.name == "tt.reduce" else scan
    compute = make(operation, builder.kinds)

    def step(frame: Frame) -> None:
        combine = partial(combine_in, body, frame)
        found = compute(combine, [frame.values[each] for each in operation.operands])
        for result, value in zip(operation.results, found, strict=True):
            frame.values[result] = value

    return step


def _combined_at_once(
    body: Body, frame: Frame, left: Sequence[Tensor], right: Sequence[Tensor]
) -> Results:
    """Combine elements of blocks by operations on whole blocks."""
    return body.run(frame, [*left, *right])


def _combined_apart(
    body: Body, frame: Frame, left: Sequence[Tensor], right: Sequence[Tensor]
) -> Results:
    """Combine elements that may part: each pair is a program of its own."""
    given = together(*left, *right)
    elements = [value.reshape(-1) for value in given]
    ids = [torch.zeros(len(elements[0]), dtype=torch.int32)] * len(frame.ids)
    own = Frame(list(frame.values), ids, frame.grid, frame.memory)
    found = body.run(own, elements)
    return [value.expand(len(elements[0])).reshape(given[0].shape) for value in found]


def call(builder: Builder, operation: Operation) -> Step:
    """Make the step of a call of a function that is not compiled in."""
    name = operation.words.partition("(")[0].removeprefix("@").strip('"')
    callee = builder.callee(name, [builder.roots.of(value) for value in operation.operands])
    builder.accesses.extend(callee.accesses)

    def step(frame: Frame) -> None:
        ends = callee.run([frame.values[each] for each in operation.operands], frame)
        _put_joined(frame, operation, ends)

    return step


CONTROL: Mapping[str, Callable[[Builder, Operation], Step]] = {
    "scf.for": counted_loop,
    "scf.if": branch,
    "scf.while": loop,
    "tt.call": call,
    "tt.reduce": combination,
    "tt.scan": combination,
}
"""What makes the steps of operations that hold others."""
