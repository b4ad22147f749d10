"""Liars and honest backends before all checks, in several processes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from multiprocessing import get_context
from typing import TypeVar

import torch
from rich.console import Console
from rich.progress import track

from backend_caps import discover
from backend_caps.kit import Effort, Subject, checks_named, muffled, run_checks
from backend_caps.kit.checks import CHECKS
from tests.kit.honest.everyone import HONEST_ODD
from tests.kit.liars.everyone import LIARS

SHIPPED = ("torch_native", "torch_padded", "flex_attention", "triton")
"""Plugins that come along and run on the simulated device."""
_INTERPRETED = ("triton",)
"""Of these, whose kernels are interpreted and take ten times as long: half the seeds."""
_In = TypeVar("_In")
_Out = TypeVar("_Out")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """What one backend's claims came to, before some checks."""

    name: str
    findings: dict[str, tuple[str, ...]]
    """What was found, by the check that found it, with the command that shows it again."""
    num_cases: int
    seconds: float


def try_liars(console: Console) -> dict[str, Tried]:
    """Try each liar before all checks, and return what was found, by name."""
    names = [own.name for own in LIARS]
    return {own.name: own for own in _in_processes(_try_liar, names, console, "liars")}


def try_honest(num_seeds: int, console: Console) -> dict[str, list[Tried]]:
    """Try each honest backend in so many seeds, and return what was found, by name."""
    names = [*SHIPPED, *(own.name for own in HONEST_ODD)]
    seeds = {name: num_seeds - num_seeds // 2 * (name in _INTERPRETED) for name in names}
    work = [(name, check.code, seeds[name]) for check in CHECKS for name in names]
    found: dict[str, list[Tried]] = {name: [] for name in names}
    for tried in _in_processes(_try_honest, work, console, "honest"):
        found[tried.name].append(tried)
    return found


def _try_liar(name: str) -> Tried:
    (own,) = (own for own in LIARS if own.name == name)
    return _try(own.subject, [check.code for check in CHECKS], Effort.quick())


def _try_honest(work: tuple[str, str, int]) -> Tried:
    name, code, num_seeds = work
    return _try(_honest(name), [code], replace(Effort.quick(), seeds=range(num_seeds)))


def _honest(name: str) -> Subject:
    odd = {own.name: own.subject for own in HONEST_ODD}
    return odd[name] if name in odd else Subject.of(discover()[name])


def _try(subject: Subject, codes: Sequence[str], effort: Effort) -> Tried:
    with muffled():
        results = run_checks(subject, checks_named(CHECKS, codes), effort=effort)
    found: dict[str, tuple[str, ...]] = {}
    for own in results.checks:
        if own.findings:
            found[own.check.code] = tuple(f"{f.fault.what}; {f.replay}" for f in own.findings)
    return Tried(
        name=subject.name,
        findings=found,
        num_cases=sum(len(own.cases) for own in results.checks),
        seconds=sum(own.seconds for own in results.checks),
    )


def _in_processes(
    work: Callable[[_In], _Out], inputs: Iterable[_In], console: Console, told: str
) -> Iterator[_Out]:
    """Work in as many processes as there are cores, of one thread each."""
    with ProcessPoolExecutor(
        os.cpu_count(), get_context("spawn"), torch.set_num_threads, (1,)
    ) as pool:
        waiting = [pool.submit(work, each) for each in inputs]
        for done in track(
            as_completed(waiting), told, total=len(waiting), console=console, transient=True
        ):
            yield done.result()
