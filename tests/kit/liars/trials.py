"""What `make liars` does: liars, and honest backends, before all checks."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import click
from rich import box
from rich.console import Console
from rich.table import Table

from backend_caps import discover
from backend_caps.kit import Effort, Subject, muffled, run_checks
from backend_caps.kit.checks import CHECKS
from backend_caps.report.check_catalog import checks_named
from tests.kit.honest_backends import HONEST_BACKENDS
from tests.kit.specimens import LIARS, SUBJECTS
from tests.process_pool import in_processes

SHIPPED = ("torch_native", "torch_padded", "flex_attention", "triton")
"""Plugins that come along and run on the simulated device."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """What one backend's claims came to, before some checks."""

    name: str
    findings: dict[str, tuple[str, ...]]
    """What was found, by the check that found it, with the command that shows it again."""
    num_cases: int
    seconds: float


def try_liars(console: Console) -> dict[str, Trial]:
    """Try each liar before all checks, and return what was found, by name."""
    names = [own.name for own in LIARS]
    return {own.name: own for own in in_processes(_try_liar, names, console, "liars")}


def try_honest(num_seeds: int, console: Console) -> dict[str, list[Trial]]:
    """Try each honest backend in so many seeds, and return what was found, by name."""
    names = [*SHIPPED, *(own.name for own in HONEST_BACKENDS)]
    work = [(name, check.code, num_seeds) for check in CHECKS for name in names]
    found: dict[str, list[Trial]] = {name: [] for name in names}
    for trial in in_processes(_try_honest, work, console, "honest"):
        found[trial.name].append(trial)
    return found


def _try_liar(name: str) -> Trial:
    return _try(SUBJECTS[name], [check.code for check in CHECKS], Effort.quick())


def _try_honest(work: tuple[str, str, int]) -> Trial:
    name, code, num_seeds = work
    return _try(_honest(name), [code], replace(Effort.quick(), seeds=range(num_seeds)))


def _honest(name: str) -> Subject:
    return SUBJECTS[name] if name in SUBJECTS else Subject.of(discover()[name])


def _try(subject: Subject, codes: Sequence[str], effort: Effort) -> Trial:
    with muffled():
        results = run_checks(subject, checks_named(CHECKS, codes), effort=effort)
    return Trial(
        name=subject.name,
        findings={
            own.check.code: tuple(f"{each.fault.what}; {each.replay}" for each in own.findings)
            for own in results.checks
            if own.findings
        },
        num_cases=sum(len(own.cases) for own in results.checks),
        seconds=sum(own.seconds for own in results.checks),
    )


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
                line = f"{trial.name} by {code}: {found[0]}"
                console.print(line, markup=False, soft_wrap=True)
    num = len(LIARS) + len(honest)
    took = time.perf_counter() - started
    console.print(f"{num - len(wrong)} of {num} are judged rightly, in {took:.0f} s")
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
