"""What `make soak` does behind the traces: the whole grid of speculation, over 200 prompts."""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory

import click
import torch
from rich.console import Console
from rich.progress import track
from transformers.utils.logging import disable_progress_bar

from tests.runtime.engines import leaks, run
from tests.runtime.speculative.grid import Way, grid, make_engine
from tests.runtime.speculative.oracle import Targets, ask_transformers

_NUM_JOBS = 200


@click.command(help=__doc__)
@click.option("--seed", default=0, show_default=True, help="Draws the axes that must not matter.")
@click.option("--num-ways", default=None, type=int, help="Go so many ways, drawn from all.")
def main(seed: int, num_ways: int | None) -> None:
    """Exit with 1 where a way gives another token than transformers, or keeps memory."""
    console = Console()
    draw = random.Random(seed)  # noqa: S311 - a choice of inputs, not a secret
    ways = grid(draw)
    chosen = ways if num_ways is None else draw.sample(ways, num_ways)
    num_wrong = 0
    with TemporaryDirectory() as folder:
        for way, findings in _found(chosen, Path(folder), console):
            num_wrong += bool(findings)
            if findings:
                console.print(f"[red]{way}[/]", *findings[:3], sep="\n  ")
    console.print(f"{len(chosen) - num_wrong} of {len(chosen)} ways give the target's tokens.")
    sys.exit(1 if num_wrong else 0)


def _found(
    ways: Sequence[Way], folder: Path, console: Console
) -> Iterator[tuple[Way, Sequence[str]]]:
    """Go ways in as many processes as there are cores, of one thread each."""
    with ProcessPoolExecutor(
        os.cpu_count(),
        mp_context=get_context("spawn"),
        initializer=torch.set_num_threads,
        initargs=(1,),
    ) as pool:
        way_of = {pool.submit(_findings, way, folder): way for way in ways}
        finished = as_completed(way_of)
        for done in track(finished, "ways", total=len(ways), console=console, transient=True):
            error = done.exception()
            yield way_of[done], done.result() if error is None else [repr(error)]


def _findings(way: Way, folder: Path) -> Sequence[str]:
    """Go a way, and say what is wrong."""
    targets = _targets(folder)
    target = targets.of(way.algorithm)
    engine = make_engine(targets, way)
    outputs = run(engine, target.jobs)
    wrong = [
        f"job {place}: {output} instead of {right}"
        for place, (output, right) in enumerate(zip(outputs, target.tokens, strict=True))
        if output != right
    ]
    kept = leaks(engine)
    return wrong if kept == (0, 0) else [*wrong, f"rows and pages kept: {kept}"]


@cache
def _targets(folder: Path) -> Targets:
    """Ask transformers once a process."""
    disable_progress_bar()  # type: ignore[no-untyped-call] # transformers types it not
    return ask_transformers(folder / str(os.getpid()), _NUM_JOBS)


if __name__ == "__main__":
    main()
