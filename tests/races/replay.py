"""Run one case again: `python -m tests.races.replay engine 123 starve:2`."""

from __future__ import annotations

import sys

import click
import torch

from tests.races.cases import Case, Program
from tests.races.engine_runs import trace_of
from tests.races.engine_setup import model_folder
from tests.races.mutants import mutant_named
from tests.races.runs import COMPARED, run_mutated, run_raising


@click.command(help=__doc__)
@click.argument("words", nargs=-1, required=True)
@click.option("--mutant", default=None, help="Run it with this mutant in place.")
def main(words: tuple[str, ...], mutant: str | None) -> None:
    """Print what is wrong with a case; whatever it raises comes with its traceback."""
    case = Case.parse(" ".join(words))
    if case.program in COMPARED or case.program is Program.ENDS:
        click.echo(repr(trace_of(case)))
    with model_folder() as folder:
        found = (
            run_raising(case, folder)
            if mutant is None
            else run_mutated(mutant_named(mutant), case, folder)
        )
    click.echo("\n".join(map(str, found)) or "clean")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
