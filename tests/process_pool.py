"""Work in several processes, with a line on the terminal that says how far it has come."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from typing import TypeVar

import torch
from rich.console import Console
from rich.progress import track

_In = TypeVar("_In")
_Out = TypeVar("_Out")


def in_processes(
    work: Callable[[_In], _Out], inputs: Iterable[_In], console: Console, title: str
) -> Iterator[_Out]:
    """Yield results as they come, of as many processes as there are cores, of one thread each."""
    with ProcessPoolExecutor(
        os.cpu_count(), get_context("spawn"), torch.set_num_threads, (1,)
    ) as pool:
        waiting = [pool.submit(work, each) for each in inputs]
        for done in track(
            as_completed(waiting), title, total=len(waiting), console=console, transient=True
        ):
            yield done.result()
