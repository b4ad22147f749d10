"""In which of the orders that a device could choose work runs.

A missing wait shows only in some orders. Two are systematic, and find most: nothing runs before the
host waits for it (lazy), or everything does but for one stream (starve). Random ones are seeded.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from enum import Enum
from typing import Protocol, Self

from backend_caps.simulator.errors import ScheduleError
from backend_caps.simulator.queues import Marker, Queue, QueueEngine


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
        return f"{self.policy.value}:{self.seed}" if self._is_numbered else self.policy.value

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read the word that a schedule prints as.

        Raises:
            ScheduleError: it is none.
        """
        name, _, number = text.partition(":")
        for policy in OrderPolicy:
            if policy.value == name and (number.isdecimal() or not number):
                schedule = cls(policy, int(number or 0))
                if str(schedule) == text:
                    return schedule
        raise ScheduleError(text=text)

    @property
    def starved(self) -> int | None:
        """The handle of the stream that starves; None where none does."""
        return self.seed if self.policy is OrderPolicy.STARVE else None

    @property
    def _is_numbered(self) -> bool:
        return self.policy in {OrderPolicy.STARVE, OrderPolicy.RANDOM}


def systematic_schedules(num_streams: int) -> tuple[Schedule, ...]:
    """Return eager, lazy, and each stream starved in turn; stream 0 is the default stream."""
    starved = (Schedule(OrderPolicy.STARVE, handle) for handle in range(num_streams))
    return (Schedule(OrderPolicy.EAGER), Schedule(OrderPolicy.LAZY), *starved)


class Adversary(Protocol):
    """Run the work of an engine, in an order that the device could choose."""

    def after_launch(self, engine: QueueEngine) -> None:
        """Run what runs by itself, beside the host."""

    def wait_for(self, engine: QueueEngine, marker: Marker) -> None:
        """Run until a marker is passed."""

    def advance(self, engine: QueueEngine, marker: Marker) -> None:
        """Run a little, for a host that asked whether a marker is passed and was told no.

        Asked often enough, it lets the marker be passed.
        """


class EagerAdversary:
    """Run whatever can run, but for one stream where one starves."""

    def __init__(self, starved: int | None = None) -> None:
        self._starved = starved

    def after_launch(self, engine: QueueEngine) -> None:
        """Run every other stream until it is blocked."""
        has_run = True
        while has_run:
            has_run = False
            for queue in tuple(engine.queues.values()):
                if queue.items and queue.handle != self._starved:
                    has_run |= engine.run_to_block(queue)

    def wait_for(self, engine: QueueEngine, marker: Marker) -> None:
        """Run what the marker needs, and then what that lets run."""
        engine.run_to(marker)
        self.after_launch(engine)

    def advance(self, engine: QueueEngine, marker: Marker) -> None:
        """Run one operator that the marker needs, and then what that lets run."""
        engine.run_towards(marker)
        self.after_launch(engine)


class LazyAdversary:
    """Run only what the host waits for."""

    def after_launch(self, engine: QueueEngine) -> None:
        """Run nothing."""

    def wait_for(self, engine: QueueEngine, marker: Marker) -> None:
        """Run what the marker needs."""
        engine.run_to(marker)

    def advance(self, engine: QueueEngine, marker: Marker) -> None:
        """Run one operator that the marker needs."""
        engine.run_towards(marker)


class RandomAdversary:
    """Run a random number of items of random streams."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)  # noqa: S311 - a schedule keeps no secrets
        # Some runs are nearly lazy and others nearly eager.
        self._most = self._random.choice((1, 2, 4, 8))

    def after_launch(self, engine: QueueEngine) -> None:
        """Run up to a few items."""
        for _ in range(self._random.randrange(self._most + 1)):
            if not self._run_one(engine):
                return

    def wait_for(self, engine: QueueEngine, marker: Marker) -> None:
        """Run random items until the marker is passed."""
        while not marker.is_done:
            has_run = self._run_one(engine)
            assert has_run, f"stream {marker.stream} waits for itself"

    def advance(self, engine: QueueEngine, marker: Marker) -> None:
        """Run one random item, and one operator that the marker needs."""
        self._run_one(engine)
        engine.run_towards(marker)

    def _run_one(self, engine: QueueEngine) -> bool:
        runnable: list[Queue] = [q for q in engine.queues.values() if not engine.is_blocked(q)]
        if not runnable:
            return False
        engine.run_one(self._random.choice(runnable))
        return True


def adversary_of(schedule: Schedule) -> Adversary:
    """Make what runs the work as a schedule says."""
    match schedule.policy:
        case OrderPolicy.EAGER:
            return EagerAdversary()
        case OrderPolicy.LAZY:
            return LazyAdversary()
        case OrderPolicy.STARVE:
            return EagerAdversary(schedule.seed)
        case OrderPolicy.RANDOM:
            return RandomAdversary(schedule.seed)
