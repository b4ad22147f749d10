"""Queues of device work, and the orders in which a device could run it.

What is launched on a stream runs after what was launched on it before, and nothing else orders it:
only a wait for a marker, which is a point in some stream's queue, holds it back.

A missing wait shows only in some orders. Two are systematic, and find most: nothing runs before the
host waits for it (lazy), or everything does but for one stream (starve). Random ones are seeded.
"""

from __future__ import annotations

import itertools
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from typing import Self

import torch

from backend_caps.simulator.errors import SimDeviceError, SimulatorError, Site, call_site

# Work on raw memory runs beside the modes that watch the host, and writes to tensors of inference
# mode and others, whichever mode the host is in by then.
no_dispatch = torch._C._DisableTorchDispatch  # noqa: SLF001 - what torch's own modes use
_inference = partial(torch._C._InferenceMode, True)  # noqa: FBT003, SLF001 - cheaper than the public one

Blocks = frozenset[int]
"""Serial numbers of memory blocks."""
NO_BLOCKS: Blocks = frozenset()


@dataclass(slots=True, eq=False)
class FoundBlocks:
    """Blocks that one launch finds when it runs, by addresses that it reads from memory."""

    launched_at: int
    """The moment of the launch."""
    reads: set[int] = field(default_factory=set)
    """Blocks that it has read."""
    writes: set[int] = field(default_factory=set)
    """Blocks that it has written."""
    is_complete: bool = False
    """Whether it has run."""


@dataclass(slots=True)
class Op:
    """Work that a launch put on a stream."""

    name: str
    """The operator's name."""
    work: Callable[..., object]
    """What it does to raw memory; keeps no tensor of the device alive."""
    reads: Blocks = NO_BLOCKS
    """Blocks that it reads; filled in only where races are looked for."""
    writes: Blocks = NO_BLOCKS
    """Blocks that it writes."""
    ticks: int = 1
    """What it costs on the simulated clock."""
    bytes_to_host: int = 0
    """What it brings to the host."""
    bytes_to_device: int = 0
    """What it brings from the host."""
    site: Site = field(default_factory=call_site)
    """Where it was launched: by default the line that makes it."""
    finds_blocks: bool = False
    """Whether `work` takes the `FoundBlocks` of a launch, which are its own at each replay."""


@dataclass(slots=True, eq=False)
class Marker:
    """A point in a stream's queue: what an event is bound to when it is recorded."""

    stream: int
    """The handle of the stream that it is in."""
    is_done: bool = False
    """Whether all work before it has run."""
    tick: int = 0
    """The simulated clock when it was passed."""
    serial: int = field(default_factory=itertools.count(1).__next__)
    """Names it to the race detector."""


@dataclass(slots=True)
class Wait:
    """Work after it runs once a marker is passed."""

    marker: Marker


Item = Op | Marker | Wait


@dataclass(slots=True, eq=False)
class Queue:
    """One stream's work that has not run."""

    handle: int
    """The stream that it is the queue of."""
    items: deque[Item] = field(default_factory=deque)
    """The work, oldest first."""


Findings = Callable[[], tuple[str, ...] | None]
"""Lists the races so far; None without `check_races`."""


class QueueEngine:
    """The queues of a device, which run as late as they may: the lazy order.

    Args:
        races: lists the races so far, for the error of work that fails.
    """

    def __init__(self, races: Findings) -> None:
        self._races = races
        self.queues: dict[int, Queue] = {}
        self.clock = 0

    def queue(self, handle: int) -> Queue:
        """Return a stream's queue."""
        if handle not in self.queues:
            self.queues[handle] = Queue(handle)
        return self.queues[handle]

    def append(self, handle: int, item: Item) -> None:
        """Put an item at the end of a stream's queue."""
        self.queue(handle).items.append(item)

    def mark(self, handle: int) -> Marker:
        """Put a marker at the end of a stream's queue, and return it."""
        marker = Marker(handle)
        queue = self.queue(handle)
        if queue.items:
            queue.items.append(marker)
        else:
            self._pass(marker)
        return marker

    def tail(self, handle: int) -> Marker:
        """Return the marker at the end of a stream's queue; put one there where there is none.

        A host that asks about a stream again and again asks about one point, and no question makes
        the queue longer.
        """
        items = self.queue(handle).items
        last = items[-1] if items else None
        return last if isinstance(last, Marker) else self.mark(handle)

    def is_blocked(self, queue: Queue) -> bool:
        """Return whether a queue has nothing that could run now."""
        first = queue.items[0] if queue.items else None
        return first is None or (first.__class__ is Wait and not first.marker.is_done)

    def run_next(self, queue: Queue) -> None:
        """Run the first item of a queue that is not blocked.

        Raises:
            SimDeviceError: the work failed; it is gone, and what comes after it can run.
        """
        item = queue.items.popleft()
        if item.__class__ is Op:
            self._run(item)
        elif item.__class__ is Marker:
            self._pass(item)

    def run_one(self, queue: Queue) -> None:
        """Run the first item of a queue that is not blocked, apart from everything else."""
        with no_dispatch(), _inference():
            self.run_next(queue)

    def run_to_block(self, queue: Queue) -> bool:
        """Run a queue until nothing of it could run; tell whether anything did."""
        has_run = False
        with no_dispatch(), _inference():
            while not self.is_blocked(queue):
                self.run_next(queue)
                has_run = True
        return has_run

    def after_launch(self) -> None:
        """Run what runs by itself, beside the host: nothing."""

    def wait_for(self, marker: Marker) -> None:
        """Run until a marker is passed: what it needs, and what that waits for."""
        needed = [marker]
        with no_dispatch(), _inference():
            while needed:
                queue = self.queue(needed[-1].stream)
                if needed[-1].is_done:
                    needed.pop()
                elif self.is_blocked(queue):
                    needed.append(_awaited(queue))
                else:
                    self.run_next(queue)

    def advance(self, marker: Marker) -> None:
        """Run a little, after a query of a marker that is not passed.

        It runs one operator that the marker needs, and the markers and waits before it, so enough
        queries let the marker be passed.
        """
        while not marker.is_done:
            queue = self.queue(marker.stream)
            if self.is_blocked(queue):
                marker = _awaited(queue)
                continue
            has_cost = isinstance(queue.items[0], Op)
            self.run_one(queue)
            if has_cost:
                return

    def abandon(self) -> None:
        """Drop what has not run, and mark its markers as passed: no wait for them follows."""
        for queue in self.queues.values():
            for item in queue.items:
                if isinstance(item, Marker):
                    self._pass(item)
            queue.items.clear()

    def _run(self, op: Op) -> None:
        self.clock += op.ticks
        try:
            op.work()
        except (RuntimeError, IndexError, ValueError, TypeError) as error:
            first_line = str(error).strip().partition("\n")[0]
            reason = first_line.rstrip(".") or type(error).__name__
            raise SimDeviceError(
                operator=op.name, site=str(op.site), reason=reason, races=self._races()
            ) from error

    def _pass(self, marker: Marker) -> None:
        marker.is_done = True
        marker.tick = self.clock


def _awaited(queue: Queue) -> Marker:
    """Return the marker that a blocked queue waits for."""
    first = queue.items[0] if queue.items else None
    assert isinstance(first, Wait), f"stream {queue.handle} lost a marker"
    return first.marker


class OrderPolicy(Enum):
    """A way to choose what runs next."""

    EAGER = "eager"
    """All that can run does, at each launch."""
    LAZY = "lazy"
    """Nothing runs before the host waits, and then only what that wait needs."""
    STARVE = "starve"
    """One stream is lazy, and the others are eager."""
    RANDOM = "random"
    """At each launch, some of what can run does."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """A policy with its number: one word, by which a run is replayed."""

    policy: OrderPolicy = OrderPolicy.EAGER
    """How the order is chosen."""
    seed: int = 0
    """The seed of a random order, or the handle of the stream that starves."""

    def __str__(self) -> str:
        is_numbered = self.policy in {OrderPolicy.STARVE, OrderPolicy.RANDOM}
        return f"{self.policy.value}:{self.seed}" if is_numbered else self.policy.value

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read the word that a schedule prints as.

        Raises:
            SimulatorError: it is none.
        """
        name, _, number = text.partition(":")
        for policy in OrderPolicy:
            if policy.value == name and (number.isdecimal() or not number):
                schedule = cls(policy, int(number or 0))
                if str(schedule) == text:
                    return schedule
        raise SimulatorError(
            "schedule",
            f"{text!r} is no schedule; expected eager, lazy, starve:<stream> or random:<seed>. "
            f"Copy the word that the failing run printed.",
        )

    @property
    def starved(self) -> int | None:
        """The handle of the stream that starves; None where none does."""
        return self.seed if self.policy is OrderPolicy.STARVE else None


def systematic_schedules(num_streams: int) -> tuple[Schedule, ...]:
    """Return eager, lazy, and each stream starved in turn; stream 0 is the default stream."""
    starved = (Schedule(OrderPolicy.STARVE, handle) for handle in range(num_streams))
    return (Schedule(OrderPolicy.EAGER), Schedule(OrderPolicy.LAZY), *starved)


class EagerEngine(QueueEngine):
    """The order in which whatever can run does, but for one stream where one starves."""

    def __init__(self, races: Findings, starved: int | None) -> None:
        super().__init__(races)
        self._starved = starved

    def after_launch(self) -> None:
        """Run every other stream until it is blocked."""
        has_run = True
        while has_run:
            has_run = False
            for queue in tuple(self.queues.values()):
                if queue.items and queue.handle != self._starved:
                    has_run |= self.run_to_block(queue)

    def wait_for(self, marker: Marker) -> None:
        """Run what the marker needs, and then what that lets run."""
        super().wait_for(marker)
        self.after_launch()

    def advance(self, marker: Marker) -> None:
        """Run one operator that the marker needs, and then what that lets run."""
        super().advance(marker)
        self.after_launch()


class RandomEngine(QueueEngine):
    """The order in which a random number of items of random streams run."""

    def __init__(self, races: Findings, seed: int) -> None:
        super().__init__(races)
        self._random = random.Random(seed)  # noqa: S311 - a schedule keeps no secrets
        # Some runs are nearly lazy and others nearly eager.
        self._most = self._random.choice((1, 2, 4, 8))

    def after_launch(self) -> None:
        """Run up to a few items."""
        for _ in range(self._random.randrange(self._most + 1)):
            if not self._run_any():
                return

    def wait_for(self, marker: Marker) -> None:
        """Run random items until the marker is passed."""
        while not marker.is_done:
            has_run = self._run_any()
            assert has_run, f"stream {marker.stream} waits for itself"

    def advance(self, marker: Marker) -> None:
        """Run one random item, and one operator that the marker needs."""
        self._run_any()
        super().advance(marker)

    def _run_any(self) -> bool:
        runnable = [own for own in self.queues.values() if not self.is_blocked(own)]
        if runnable:
            self.run_one(self._random.choice(runnable))
        return bool(runnable)


def engine_of(schedule: Schedule, races: Findings) -> QueueEngine:
    """Make the queues that run in a schedule's order."""
    match schedule.policy:
        case OrderPolicy.LAZY:
            return QueueEngine(races)
        case OrderPolicy.RANDOM:
            return RandomEngine(races, schedule.seed)
        case _:
            return EagerEngine(races, schedule.starved)
