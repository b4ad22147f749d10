"""The mutants: every wait, record, keep-alive, barrier and synchronize, and much of speculation.

`test_mutants` holds the table to the code: whatever waits there has a mutant in the files of
`data/`.
"""

from __future__ import annotations

import tomllib
from pathlib import Path

from tests.races.cases import Program
from tests.races.mutation import Kind, Mutant

_FOLDER = Path(__file__).with_name("data")


def _read(part: str) -> tuple[Mutant, ...]:
    """Read the mutants of one part of the code."""
    tables = tomllib.loads((_FOLDER / f"{part}.toml").read_text("utf-8"))["mutant"]
    return tuple(
        Mutant(
            **{
                **own,
                "kind": Kind(own["kind"]),
                "programs": tuple(map(Program, own.get("programs", ()))),
            }
        )
        for own in tables
    )


HANDOVER_MUTANTS = _read("handover")
"""Those of prompts that another engine takes over."""
MUTANTS = (*_read("runtime"), *_read("speculative"), *HANDOVER_MUTANTS, *_read("relay"))
"""The table."""


def mutant_named(name: str) -> Mutant:
    """Return a mutant by its name.

    Raises:
        KeyError: there is none.
    """
    return {mutant.name: mutant for mutant in MUTANTS}[name]
