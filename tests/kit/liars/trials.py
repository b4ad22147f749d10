"""Trials of liars and honest backends before all checks, in several processes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from rich.console import Console

from backend_caps import discover
from backend_caps.kit import Effort, Subject, muffled, run_checks
from backend_caps.kit.checks import CHECKS
from backend_caps.report.check_catalog import checks_named
from tests.kit.honest_backends import HONEST_BACKENDS
from tests.kit.specimens import LIARS, SUBJECTS
from tests.process_pool import in_processes

SHIPPED = ("torch_native", "torch_padded", "flex_attention", "triton")
"""Plugins that come along and run on the simulated device."""
_INTERPRETED = ("triton",)
"""Of these, whose kernels are interpreted and take ten times as long: half the seeds."""


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
    seeds = {name: num_seeds - num_seeds // 2 * (name in _INTERPRETED) for name in names}
    work = [(name, check.code, seeds[name]) for check in CHECKS for name in names]
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
