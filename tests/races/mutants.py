"""The mutants: every wait, record, keep-alive, barrier and synchronize, and much of speculation.

`test_mutants` holds the table to the code: whatever waits there has a mutant here.
"""

from __future__ import annotations

from tests.races.handover_mutants import HANDOVER_MUTANTS
from tests.races.mutation import Kind, Mutant
from tests.races.relay_mutants import RELAY_MUTANTS
from tests.races.runtime_mutants import RUNTIME_MUTANTS
from tests.races.speculative_mutants import SPECULATIVE_MUTANTS

MUTANTS = (*RUNTIME_MUTANTS, *SPECULATIVE_MUTANTS, *HANDOVER_MUTANTS, *RELAY_MUTANTS)
"""The table."""

REDUNDANT = (
    Mutant(
        name="backends are swapped on an idle device",
        kind=Kind.SYNCHRONIZE,
        file="backend_caps/runtime/engine.py",
        function="Engine.swap_backends",
        source="""
self.streams.synchronize()
built = [own.built(new.uses) for own in self.all_backends]
""",
        replacement="built = [own.built(new.uses) for own in self.all_backends]",
        protects="nothing here: only a backend that writes to a pool when it is made needs it",
    ),
    Mutant(
        name="swapped backends are made before they are used",
        kind=Kind.SYNCHRONIZE,
        file="backend_caps/runtime/engine.py",
        function="Engine.swap_backends",
        source="self.streams.synchronize(); self.configuration = self.configuration.swapped(new)",
        replacement="self.configuration = self.configuration.swapped(new)",
        protects="nothing here: only a backend that makes buffers when it is made needs it",
    ),
)
"""What another wait does as well, or no backend of these runs needs: nothing shows it gone."""


def mutant_named(name: str) -> Mutant:
    """Return a mutant by its name.

    Raises:
        KeyError: there is none.
    """
    return {mutant.name: mutant for mutant in MUTANTS}[name]
