"""A check: one question about a declaration, asked in many cases."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from backend_caps.kit.rig import Rig
from backend_caps.kit.scenarios import Scenario
from backend_caps.kit.subject import Subject
from backend_caps.simulator import Schedule, Site

EAGER = Schedule()
"""The order in which everything runs as soon as it can."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """How much is tried."""

    seeds: Sequence[int] = range(4)
    """What requests are drawn by, in each scenario."""
    num_steps: int = 1000
    """Steps of a check that looks for growth."""

    @classmethod
    def quick(cls) -> Effort:
        """Try a little of everything."""
        return cls(seeds=range(2), num_steps=100)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One try of a check; its name is enough to repeat it."""

    check: str
    """The check's code."""
    scenario: Scenario | None = None
    """What its batches are made of; None where it runs none."""
    schedule: Schedule = EAGER
    """The order in which the device's work runs."""
    seed: int = 0
    """What its requests are drawn by."""
    num_steps: int = 0
    """How long it goes on, where it looks for growth."""

    @property
    def name(self) -> str:
        """`CHECK/SCENARIO@SCHEDULE#SEED`."""
        scenario = "-" if self.scenario is None else self.scenario.name
        return f"{self.check}/{scenario}@{self.schedule}#{self.seed}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What a case found wrong."""

    what: str
    """What was seen and what was expected, with values; no full stop."""
    site: Site | None = None
    """The line of the backend that did it, where that is known."""


def raised(error: Exception) -> str:
    """Say in a fault what a backend raised: the kind, and the first line of its words."""
    words = str(error).partition("\n")[0]
    return f"raised {type(error).__name__}: {words}" if words else f"raised {type(error).__name__}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Hint:
    """A claim that may be too modest: nothing was seen that asks for it."""

    claim: str
    """The capability."""
    what: str
    """What was claimed, what was seen instead, and over what."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One question about a declaration.

    A check compares a backend with itself, with one thing changed: so one lie is found by one
    check. `numerics` alone compares with the definition of attention.
    """

    code: str
    """A stable name, such as `mirror-absent`."""
    claims: tuple[str, ...]
    """The capabilities that it is about; empty: what every backend owes the engine."""
    title: str
    """The question, as a statement that holds where it passes."""
    proves: str
    """What a pass means."""
    cannot: str
    """What it cannot find."""
    excuse: Callable[[Subject], str | None]
    """Says why it does not apply to what a backend claims; None: it applies."""
    cases: Callable[[Subject, Effort], Iterable[Case]]
    """Lists what it tries."""
    run: Callable[[Rig, Case], Iterable[Fault]]
    """Tries one case. What the backend raises is a fault too."""
    hints: Callable[[Subject, Sequence[Case], Rig], Iterable[Hint]] | None = None
    """Says what may be claimed beyond what is, by what its cases saw; where the check is excused,
    by none, so that a claim too modest to be checked is told too."""
    after: tuple[str, ...] = ()
    """Checks without whose pass this one says nothing."""
    unfit: Callable[[str], str | None] = lambda _device: None
    """Says why it cannot run on a device (`sim`, `cpu`, `cuda`); None: it can."""


def always(_subject: Subject) -> str | None:
    """Excuse nobody."""
    return None


def cases_of(
    code: str,
    scenarios: Iterable[Scenario],
    effort: Effort,
    schedules: Iterable[Schedule] = (EAGER,),
) -> Iterable[Case]:
    """Try each scenario in each order, by each seed."""
    schedules = tuple(schedules)
    for scenario in scenarios:
        for schedule in schedules:
            for seed in effort.seeds:
                yield Case(check=code, scenario=scenario, schedule=schedule, seed=seed)
