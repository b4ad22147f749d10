"""What `make liars` does: liars, and honest backends, before all checks."""

from __future__ import annotations

import sys
import time

import click
from rich import box
from rich.console import Console
from rich.table import Table

from tests.kit.liars.trials import Trial, try_honest, try_liars
from tests.kit.specimens import LIARS

_WIDTH = 150
"""Where the output is no terminal."""


@click.command(help=__doc__)
@click.option(
    "--seeds", default=2, show_default=True, help="How often honest backends are drawn for."
)
def main(seeds: int) -> None:
    """Exit with 1 where a liar is not found by its check alone, or an honest one is failed."""
    started, console = time.perf_counter(), Console(highlight=False)
    if not console.is_terminal:
        console.width = _WIDTH
    liars = try_liars(console)
    console.print(liars_table(liars))
    honest = try_honest(seeds, console)
    console.print(honest_table(honest))
    wrong = [own.name for own in LIARS if [*liars[own.name].findings] != [own.check]]
    wrong += [name for name, runs in honest.items() if any(run.findings for run in runs)]
    for name in wrong:
        for trial in [liars[name]] if name in liars else honest[name]:
            for code, found in trial.findings.items():
                told = f"{trial.name} by {code}: {found[0]}"
                console.print(told, markup=False, soft_wrap=True)
    num = len(LIARS) + len(honest)
    took = time.perf_counter() - started
    console.print(f"{num - len(wrong)} of {num} are told rightly, in {took:.0f} s")
    sys.exit(1 if wrong else 0)


def liars_table(trials: dict[str, Trial]) -> Table:
    """Draw what found each liar."""
    drawn = _table("liar", "lie", "seen", "expected", "found by", "verdict")
    for own in LIARS:
        found = [*trials[own.name].findings]
        is_right = found == [own.check]
        verdict = "found" if is_right else "missed" if own.check not in found else "not alone"
        style = "green" if is_right else "red"
        by = ", ".join(found) or "nothing"
        drawn.add_row(own.name, own.behaviour, own.seen, own.check, by, f"[{style}]{verdict}[/]")
    return drawn


def honest_table(trials: dict[str, list[Trial]]) -> Table:
    """Draw what was found of honest backends: nothing is right."""
    drawn = _table("honest backend", "cases", "seconds", "found by", "verdict")
    for name, runs in trials.items():
        found = ", ".join(code for run in runs for code in run.findings)
        verdict = "[red]falsely failed[/]" if found else "[green]held[/]"
        cases, seconds = sum(run.num_cases for run in runs), sum(run.seconds for run in runs)
        drawn.add_row(name, f"{cases}", f"{seconds:.0f}", found or "nothing", verdict)
    return drawn


def _table(*columns: str) -> Table:
    drawn = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in columns:
        drawn.add_column(name, overflow="fold")
    return drawn


if __name__ == "__main__":
    main()
