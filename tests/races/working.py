"""Run many cases, or hunt many mutants, in several processes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import TypeVar

import torch
from rich.console import Console
from rich.progress import track

from tests.races.cases import Case, Finding
from tests.races.catches import Catches
from tests.races.hunting import hunt
from tests.races.mutation import Mutant
from tests.races.running import run_case
from tests.races.setting import model_folder

_In = TypeVar("_In")
_Out = TypeVar("_Out")


def failures(
    cases: Sequence[Case], console: Console, told: str
) -> list[tuple[Case, tuple[Finding, ...]]]:
    """Run cases, and return those with findings, in their order."""
    with model_folder() as folder:
        found = _in_processes(partial(_run, folder=folder), cases, console, told)
        return sorted(((c, f) for c, f in found if f), key=lambda pair: cases.index(pair[0]))


def hunts(
    mutants: Sequence[Mutant], first_seed: int, console: Console, told: str
) -> dict[str, Catches]:
    """Hunt mutants, and return what shows each, by name, in their order."""
    names = [mutant.name for mutant in mutants]
    with model_folder() as folder:
        work = partial(_hunt, folder=folder, first_seed=first_seed)
        found = dict(_in_processes(work, mutants, console, told))
    return {name: found[name] for name in names}


def _run(case: Case, folder: Path) -> tuple[Case, tuple[Finding, ...]]:
    return case, run_case(case, folder)


def _hunt(mutant: Mutant, folder: Path, first_seed: int) -> tuple[str, Catches]:
    return mutant.name, hunt(mutant, folder, first_seed)


def _in_processes(
    work: Callable[[_In], _Out], inputs: Iterable[_In], console: Console, told: str
) -> Iterator[_Out]:
    """Work in as many processes as there are cores, of one thread each."""
    context = get_context("spawn")
    with ProcessPoolExecutor(
        os.cpu_count(), mp_context=context, initializer=torch.set_num_threads, initargs=(1,)
    ) as pool:
        waiting = [pool.submit(work, each) for each in inputs]
        for done in track(
            as_completed(waiting), told, total=len(waiting), console=console, transient=True
        ):
            yield done.result()
