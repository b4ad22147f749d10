"""What a run leaves behind, once all that it made is gone."""

from __future__ import annotations

import gc
from collections.abc import Iterator

from backend_caps.simulator.simulation import Simulation
from tests.races.cases import Fault, Finding


def collect_cycles() -> None:
    """Free the cycles of this run: while collection is off, whatever it made is in the nursery."""
    gc.collect(0)


def findings_after(simulation: Simulation) -> Iterator[Finding]:
    """List the races of a run, and the device memory that is still in use after it."""
    collect_cycles()
    for race in simulation.races:
        yield Finding(fault=Fault.RACE, what=str(race))
    if simulation.num_live_blocks:
        what = f"{simulation.num_live_blocks} blocks of device memory are still in use"
        yield Finding(fault=Fault.LEAK, what=what)
