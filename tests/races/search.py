"""What `make races` does: traces under every policy, and a search for a run of every mutant."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import click
from rich.console import Console

from backend_caps.simulator.queues import OrderPolicy
from tests.process_pool import in_processes
from tests.races.cases import Case, Finding, Program
from tests.races.engine_setup import model_folder
from tests.races.mutant_search import Catch, Catches, find_catches, schedules_of, write_catches
from tests.races.mutants import MUTANTS
from tests.races.mutation import Mutant
from tests.races.runs import run_case

_LOOPS = tuple(Program)[3:]


@click.command(help=__doc__)
@click.option("--num-cases", default=100, show_default=True, help="Traces of each policy, twice.")
@click.option("--first-seed", default=0, show_default=True, help="Where the seeds begin.")
@click.option("--write", is_flag=True, help="Keep what shows each mutant, for tests and page.")
def main(num_cases: int, first_seed: int, *, write: bool) -> None:
    """Exit with 1 where a trace is not clean, or a mutant is shown by nothing."""
    console = Console()
    seeds = range(first_seed, first_seed + num_cases)
    draws = (Case.drawn, Case.drafting)
    cases = [drawn(seed, policy) for drawn in draws for policy in OrderPolicy for seed in seeds]
    cases += loop_cases(range(first_seed, first_seed + num_cases // 10))
    is_clean = told_clean(cases, console)
    found = find_all(first_seed, console)
    click.echo(_table(found))
    if write:
        write_catches(found)
    missed = [name for name, own in found.items() if own.first is None]
    if missed:
        console.print(f"[red]{len(missed)} mutants are shown by nothing: {', '.join(missed)}")
    sys.exit(0 if is_clean and not missed else 1)


def loop_cases(seeds: range) -> list[Case]:
    """List runs of the small programs, each under every schedule."""
    return [
        Case(program=program, seed=seed, schedule=schedule, checks_races=bool(seed % 2))
        for program in _LOOPS
        for seed in seeds
        for schedule in schedules_of(program, seed)
    ]


def told_clean(cases: list[Case], console: Console) -> bool:
    """Run cases of the code as it is; print a line that replays each one that is not clean."""
    failed = failures(cases, console, "traces")
    for case, findings in failed:
        console.print(f"[red]{case.replay_line}[/]", *map(str, findings[:3]), sep="\n  ")
    console.print(f"{len(cases) - len(failed)} of {len(cases)} runs are clean.")
    return not failed


def failures(
    cases: Sequence[Case], console: Console, told: str
) -> list[tuple[Case, tuple[Finding, ...]]]:
    """Run cases, and return those with findings, in their order."""
    with model_folder() as folder:
        found = in_processes(partial(_run, folder=folder), cases, console, told)
        return sorted(((c, f) for c, f in found if f), key=lambda pair: cases.index(pair[0]))


def find_all(first_seed: int, console: Console) -> dict[str, Catches]:
    """Search for what shows each mutant, and return it by name, in their order."""
    with model_folder() as folder:
        work = partial(_find, folder=folder, first_seed=first_seed)
        found = dict(in_processes(work, MUTANTS, console, "mutants"))
    return {mutant.name: found[mutant.name] for mutant in MUTANTS}


def _run(case: Case, folder: Path) -> tuple[Case, tuple[Finding, ...]]:
    return case, run_case(case, folder)


def _find(mutant: Mutant, folder: Path, first_seed: int) -> tuple[str, Catches]:
    return mutant.name, find_catches(mutant, folder, first_seed)


def _table(found: dict[str, Catches]) -> str:
    """Draw the table in columns as wide as what they hold, for logs too."""
    rows = [("mutant", "takes away", "wrong by", "run", "race by", "run")]
    for mutant in MUTANTS:
        own = found[mutant.name]
        shown = (*_cells(own.by_effect), *_cells(own.by_sanitizer))
        rows.append((mutant.name, mutant.kind.value, *shown))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)
    return "\n".join(lines)


def _cells(catch: Catch | None) -> tuple[str, str]:
    if catch is None:
        return "-", ""
    return f"{catch.fault.value}: {catch.case}", str(catch.num_runs)


if __name__ == "__main__":
    main()
