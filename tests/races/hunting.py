"""Look for a run that shows a mutant."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from collections.abc import Set as AbstractSet
from itertools import count, islice
from pathlib import Path

from backend_caps.simulator.queues import OrderPolicy, Schedule
from tests.races.cases import Case, Fault, Program
from tests.races.catches import Catch, Catches
from tests.races.mutation import Mutant
from tests.races.running import run_mutated

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
    ("backend_caps/runtime/speculative/", (Program.DRAFTS,)),
    ("backend_caps/runtime/two_batch", (Program.DRAFTS,)),
    ("backend_caps/runtime/disaggregation", (Program.HANDOVERS,)),
    ("backend_caps/runtime/engine", (Program.ENDS, Program.REPLAYS, Program.ENGINE)),
    ("backend_caps/runtime/", (Program.REPLAYS, Program.ENGINE)),
)
_MOST_RUNS = 48
_MOST_CHECKED_RUNS = 10
_NUM_LARGE = 4
"""Schedules that engines are run under; many seeds find more than many schedules."""


def hunt(mutant: Mutant, folder: Path, first_seed: int = 0) -> Catches:
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
