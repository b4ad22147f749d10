"""The mutants: every wait, record, keep-alive, barrier and synchronize, and much of speculation.

`test_mutants` holds the table to the code: whatever waits there has a mutant here.
"""

from __future__ import annotations

from tests.races.handover_mutants import HANDOVER_MUTANTS
from tests.races.mutation import Mutant
from tests.races.relay_mutants import RELAY_MUTANTS
from tests.races.runtime_mutants import RUNTIME_MUTANTS
from tests.races.speculative_mutants import SPECULATIVE_MUTANTS

MUTANTS = (*RUNTIME_MUTANTS, *SPECULATIVE_MUTANTS, *HANDOVER_MUTANTS, *RELAY_MUTANTS)
"""The table."""

REDUNDANT: tuple[Mutant, ...] = ()
"""What another wait does as well, or no backend of these runs needs: nothing shows it gone."""


def mutant_named(name: str) -> Mutant:
    """Return a mutant by its name.

    Raises:
        KeyError: there is none.
    """
    return {mutant.name: mutant for mutant in MUTANTS}[name]
