"""Look for a run that shows a mutant, and keep in `catches.json` what `make races` finds."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from itertools import count, islice
from pathlib import Path

from backend_caps.simulator.queues import OrderPolicy, Schedule
from tests.races.cases import Case, Fault, Program
from tests.races.mutation import Mutant
from tests.races.runs import run_mutated

_FILE = Path(__file__).with_name("catches.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class Catch:
    """A run that shows a mutant, where the same run of the code as it is shows nothing."""

    case: Case
    fault: Fault
    """The first thing that is wrong."""
    num_runs: int | None = None
    """Runs of the search, this one included; nobody keeps it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Catches:
    """Who shows one mutant."""

    by_effect: Catch | None
    """A run whose results are wrong, with memory that is handed out again."""
    by_sanitizer: Catch | None
    """A run with a reported race."""

    @property
    def first(self) -> Catch | None:
        """The run that is repeated to show the mutant again."""
        return self.by_effect or self.by_sanitizer


def read_catches() -> Mapping[str, Catches]:
    """Read what the last search found, by the mutants' names."""
    document = json.loads(_FILE.read_text("utf-8"))
    return {
        name: Catches(by_effect=_read(own["by_effect"]), by_sanitizer=_read(own["by_sanitizer"]))
        for name, own in document.items()
    }


def write_catches(found: Mapping[str, Catches]) -> None:
    """Keep what a search found."""
    document = {
        name: {"by_effect": _written(own.by_effect), "by_sanitizer": _written(own.by_sanitizer)}
        for name, own in found.items()
    }
    _FILE.write_text(json.dumps(document, indent=2) + "\n", "utf-8")


def _read(stored: Mapping[str, str] | None) -> Catch | None:
    if stored is None:
        return None
    return Catch(case=Case.parse(stored["case"]), fault=Fault(stored["fault"]))


def _written(catch: Catch | None) -> Mapping[str, str] | None:
    return None if catch is None else {"case": str(catch.case), "fault": catch.fault.value}


_STARVED = (1, 3, 4, 5, 0)
"""Schedule, host copy, then the streams that loops and relay add, and the default one."""
SCHEDULES = (
    Schedule(OrderPolicy.LAZY),
    Schedule(OrderPolicy.STARVE, 2),  # the forward stream
    Schedule(OrderPolicy.RANDOM, 1),
    *(Schedule(OrderPolicy.STARVE, handle) for handle in _STARVED),
    Schedule(OrderPolicy.EAGER),
    Schedule(OrderPolicy.RANDOM, 2),
)
"""Those first that find most."""
_NUM_STREAMS = {
    Program.SPECULATIVE: 5,
    Program.MIXED: 5,
    Program.CAPTURES: 2,
    Program.HANDOVERS: 10,
}
"""Streams of a program, the default one included; an engine has four, and more."""
_SMALL = frozenset({Program.SPECULATIVE, Program.MIXED, Program.CAPTURES})
"""Programs without an engine, which take little time."""
_NUM_EXACT = 2
"""Of four speculative loops, those whose relay adds a stream of its own."""
_PROGRAMS = (
    ("backend_caps/relay/", (Program.SPECULATIVE, Program.MIXED)),
    ("backend_caps/runtime/graphs/capture", (Program.CAPTURES,)),
    ("backend_caps/runtime/chunk_sizes", (Program.PROFILES,)),
    ("backend_caps/runtime/speculati", (Program.DRAFTS,)),  # speculation.py and speculative/
    ("backend_caps/runtime/two_batch", (Program.DRAFTS,)),
    ("backend_caps/runtime/configuration", (Program.DRAFTS,)),
    ("backend_caps/runtime/disaggregation", (Program.HANDOVERS,)),
    ("backend_caps/runtime/engine", (Program.ENDS, Program.REPLAYS, Program.ENGINE)),
    ("backend_caps/runtime/", (Program.REPLAYS, Program.ENGINE)),
)
_MOST_RUNS = 48
_MOST_CHECKED_RUNS = 10
_NUM_LARGE = 4
"""Schedules that engines are run under; many seeds find more than many schedules."""


def find_catches(mutant: Mutant, folder: Path, first_seed: int = 0) -> Catches:
    """Run a mutant until a result is wrong, and until a race is reported.

    Args:
        mutant: what to look for.
        folder: the model's.
        first_seed: where the search begins.
    """
    plain = _cases(mutant, first_seed)
    # What orders what hardly depends on when it runs, so one schedule is enough.
    checked = _checked_cases(mutant, first_seed)
    num_checked = _MOST_CHECKED_RUNS if mutant.kind.is_about_streams else 0
    effects = frozenset(Fault) - {Fault.RACE}
    return Catches(
        by_effect=_first(mutant, islice(plain, _MOST_RUNS), effects, folder),
        by_sanitizer=_first(mutant, islice(checked, num_checked), {Fault.RACE}, folder),
    )


def schedules_of(program: Program, seed: int) -> tuple[Schedule, ...]:
    """List the schedules that a program has the streams for."""
    num_streams = _NUM_STREAMS.get(program, 4)
    num_streams += program is Program.SPECULATIVE and seed % 4 < _NUM_EXACT
    return tuple(
        own for own in SCHEDULES if own.policy is not OrderPolicy.STARVE or own.seed < num_streams
    )


def programs_of(mutant: Mutant) -> tuple[Program, ...]:
    """List the programs that reach a mutant's code, and in which nothing else protects it."""
    by_file = (programs for folder, programs in _PROGRAMS if mutant.file.startswith(folder))
    return mutant.programs or next(by_file)


def _cases(mutant: Mutant, first_seed: int) -> Iterator[Case]:
    for seed in count(first_seed):
        for program in programs_of(mutant):
            schedules = schedules_of(program, seed)
            num_schedules = len(schedules) if program in _SMALL else _NUM_LARGE
            if not mutant.kind.is_about_streams:
                num_schedules = 1  # it is wrong under each of them
            for schedule in schedules[:num_schedules]:
                yield Case(program=program, seed=seed, schedule=schedule)


def _checked_cases(mutant: Mutant, first_seed: int) -> Iterator[Case]:
    for seed in count(first_seed):
        for program in programs_of(mutant):
            yield Case(program=program, seed=seed, schedule=SCHEDULES[0], checks_races=True)


def _first(
    mutant: Mutant, cases: Iterable[Case], faults: AbstractSet[Fault], folder: Path
) -> Catch | None:
    for num_runs, case in enumerate(cases, start=1):
        for finding in run_mutated(mutant, case, folder):
            if finding.fault in faults:
                return Catch(case=case, fault=finding.fault, num_runs=num_runs)
    return None
