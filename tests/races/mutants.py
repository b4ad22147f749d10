"""The mutants: every wait, record, keep-alive, out-of-place value, barrier and synchronize.

`test_mutants` holds the table to the code: whatever waits there has a mutant here.
"""

from __future__ import annotations

from tests.races.mutation import Kind, Mutant
from tests.races.relay_mutants import RELAY_MUTANTS
from tests.races.runtime_mutants import RUNTIME_MUTANTS

MUTANTS = (*RUNTIME_MUTANTS, *RELAY_MUTANTS)
"""The table."""

REDUNDANT = (
    Mutant(
        name="engine is made before it is used",
        kind=Kind.SYNCHRONIZE,
        file="backend_caps/runtime/engine.py",
        function="Engine.__init__",
        source="self.streams.synchronize()",
        protects="nothing: its FutureMap is made behind weights and pools, and synchronizes",
    ),
)
"""What another wait does as well: nothing shows that it is gone."""


def mutant_named(name: str) -> Mutant:
    """Return a mutant by its name.

    Raises:
        KeyError: there is none.
    """
    return {mutant.name: mutant for mutant in MUTANTS}[name]
