"""What `make soak` does: thousands of traces, for as long as one likes."""

from __future__ import annotations

import sys
from time import monotonic

import click
from rich.console import Console

from tests.races.cases import Case, Program
from tests.races.mutant_search import schedules_of
from tests.races.search import loop_cases, told_clean

_AT_ONCE = 200


@click.command(help=__doc__)
@click.option("--num-cases", default=2000, show_default=True, help="Traces, at least.")
@click.option("--minutes", default=0.0, show_default=True, help="Go on for so long, at least.")
@click.option("--first-seed", default=1000, show_default=True, help="Where the seeds begin.")
def main(num_cases: int, minutes: float, first_seed: int) -> None:
    """Exit with 1 where a run is not clean."""
    console = Console()
    is_clean = told_clean(_as_in_the_search(200), console)
    end_s = monotonic() + 60 * minutes
    num_run = 0
    while num_run < num_cases or monotonic() < end_s:
        seeds = range(first_seed + num_run, first_seed + num_run + _AT_ONCE)
        cases = [Case.drawn(seed) if seed % 2 else Case.drafting(seed) for seed in seeds]
        is_clean = told_clean(cases, console) and is_clean
        num_run += _AT_ONCE
    sys.exit(0 if is_clean else 1)


def _as_in_the_search(num_seeds: int) -> list[Case]:
    """List the runs by which mutants are looked for, for code that is as it should be."""
    engine = [
        Case(
            program=program,
            seed=seed,
            schedule=(schedules := schedules_of(program, seed))[seed % len(schedules)],
            checks_races=bool(seed // 2 % 2),
        )
        for program in (Program.ENGINE, Program.REPLAYS, Program.DRAFTS)
        for seed in range(num_seeds)
    ]
    return [*engine, *loop_cases(range(num_seeds // 10))]


if __name__ == "__main__":
    main()
