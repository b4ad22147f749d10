"""A case: one thing to run, under one schedule; and what is wrong with a run.

A line of text names a case, and replays it.
"""

from __future__ import annotations

import gc
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Self

from backend_caps.simulator import OrderPolicy, Schedule, Simulation


class Program(Enum):
    """What is run on the simulated device."""

    ENGINE = "engine"
    """The engine, on a random trace of requests."""
    REPLAYS = "replays"
    """The engine, on a random trace whose decode steps are replayed graphs."""
    DRAFTS = "drafts"
    """The engine with speculation, on a random trace."""
    HANDOVERS = "handovers"
    """Two engines on a random trace: one runs the prompts, the other goes on."""
    ENDS = "ends"
    """The engine, on a random trace of which a step fails, or deleted while a step runs."""
    SPECULATIVE = "speculative"
    """An overlapped speculative loop around a FutureMap, with a worker that makes lengths up."""
    MIXED = "mixed"
    """An overlapped plain loop around a FutureMap, with prompts and decode rows in one step."""
    CAPTURES = "captures"
    """Graphs that are captured and replayed without an engine around them."""
    PROFILES = "profiles"
    """The engine, behind a profile of chunk sizes in which a forward fails."""


class Fault(Enum):
    """How a run shows that something is missing."""

    RACE = "race"
    """The sanitizer reports two accesses that nothing orders."""
    POISON = "poison"
    """The host reads what nobody has written, or what was freed."""
    VALUE = "wrong value"
    """A token, a length or a draft's value is not what the plain loop on the CPU has."""
    DRAFT = "wrong draft"
    """The target accepts more or less of a draft than of the same one in the plain loop."""
    DEVICE = "device error"
    """An operator fails on the simulated device, as by an index that is poison."""
    HOST = "host error"
    """The host's own checks fail on what the device gave it."""
    LEAK = "leak"
    """Rows, pages, blocks or events are not given back, or work is left over."""
    ENDLESS = "endless"
    """Requests do not end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that is wrong with a run."""

    fault: Fault
    what: str
    """In words."""

    def __str__(self) -> str:
        return f"{self.fault.value}: {self.what}"


def collect_cycles() -> None:
    """Free the cycles of this run: while collection is off, whatever it made is in the nursery."""
    gc.collect(0)


def findings_after(simulation: Simulation) -> Iterator[Finding]:
    """List the races of a run, and the device memory that is still in use after it."""
    collect_cycles()
    for race in simulation.races:
        yield Finding(fault=Fault.RACE, what=str(race))
    if simulation.num_live_blocks:
        what = f"{simulation.num_live_blocks} blocks of device memory are still in use"
        yield Finding(fault=Fault.LEAK, what=what)


_RACES = "check_races"
_NUM_STREAMS = 4
"""The default stream and the three that steps run on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One run: program, seed and schedule are all that it depends on."""

    program: Program
    seed: int
    schedule: Schedule
    checks_races: bool = False
    """Feed the sanitizer; freed memory is then not handed out again."""

    def __str__(self) -> str:
        words = [self.program.value, str(self.seed), str(self.schedule)]
        return " ".join([*words, _RACES] if self.checks_races else words)

    @classmethod
    def drawn(cls, seed: int, policy: OrderPolicy | None = None) -> Self:
        """Draw a trace of the engine and its schedule, of a policy or of any.

        Half of the runs look for races, and the others hand memory out again.
        """
        return cls._drawn(seed, policy, (Program.ENGINE, Program.REPLAYS))

    @classmethod
    def drafting(cls, seed: int, policy: OrderPolicy | None = None) -> Self:
        """Draw a trace of the engine with speculation, and its schedule, in the same way."""
        return cls._drawn(seed, policy, (Program.DRAFTS,))

    @classmethod
    def _drawn(cls, seed: int, policy: OrderPolicy | None, programs: Sequence[Program]) -> Self:
        rng = random.Random(seed)  # noqa: S311 - a trace, not a secret
        program = rng.choice(programs)
        drawn = rng.choice(tuple(OrderPolicy))
        checks_races = rng.random() < 0.5
        chosen = drawn if policy is None else policy
        numbers = {OrderPolicy.STARVE: seed % _NUM_STREAMS, OrderPolicy.RANDOM: seed}
        schedule = Schedule(chosen, numbers.get(chosen, 0))
        return cls(program=program, seed=seed, schedule=schedule, checks_races=checks_races)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read the line that a case prints as.

        Raises:
            ValueError: it is none.
        """
        program, seed, schedule, *rest = text.split()
        if rest not in ([], [_RACES]):
            message = f"{text!r} ends in {' '.join(rest)!r}; {_RACES} or nothing was expected"
            raise ValueError(message)
        return cls(
            program=Program(program),
            seed=int(seed),
            schedule=Schedule.parse(schedule),
            checks_races=bool(rest),
        )

    @property
    def replay_line(self) -> str:
        """The command that runs it again."""
        return f"python -m tests.races.replay {self}"
