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
    Mutant(
        name="barrier of the plain loop",
        kind=Kind.BARRIER,
        file="backend_caps/runtime/scheduler.py",
        function="Scheduler.step_plain",
        source="self._launcher.barrier(step)",
        protects="nothing: the host waits for the step's tokens before it builds the next batch",
    ),
    Mutant(
        name="barrier of an idle step",
        kind=Kind.BARRIER,
        file="backend_caps/runtime/scheduler.py",
        function="Scheduler.step_idle",
        source="self._launcher.barrier(step)",
        protects="nothing: a step without requests reads nothing that the scheduler writes",
    ),
    Mutant(
        name="profiled forward waits for schedule",
        kind=Kind.WAIT,
        file="backend_caps/runtime/pipeline/profile.py",
        function="ChunkProfiler._time_forward",
        source="self._on.forward.wait_stream(self._on.schedule)",
        protects="nothing: the device is synchronized before the forward",
    ),
)
"""What another wait does as well: nothing shows that it is gone."""


def mutant_named(name: str) -> Mutant:
    """Return a mutant by its name.

    Raises:
        KeyError: there is none.
    """
    return {mutant.name: mutant for mutant in MUTANTS}[name]
