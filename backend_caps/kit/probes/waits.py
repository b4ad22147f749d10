"""Where the host waits for the device."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from backend_caps.simulator import Simulation, Site

_CUDA_WORDS = "synchronizing CUDA operation"
_CUDA_WARNS = 1
_CUDA_IS_SILENT = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class HostWait:
    """A wait, and where."""

    cause: str
    """The operator or the method that waited."""
    site: Site
    """The line that called it."""


@contextmanager
def host_waits(simulation: Simulation | None) -> Iterator[list[HostWait]]:
    """Collect the waits of a `with` block, in the list that it gives, once the block has ended.

    Args:
        simulation: the one that runs; None is CUDA, where torch's own watch sees what blocks
            within an operator and who waits for a stream, and neither waits for events or the whole
            device nor what other libraries do.
    """
    found: list[HostWait] = []
    if simulation is None:
        with _cuda_waits(found):
            yield found
        return
    seen = len(simulation.hidden_syncs), len(simulation.host_waits)
    yield found
    waits = simulation.hidden_syncs[seen[0] :] + simulation.host_waits[seen[1] :]
    found += [HostWait(cause=own.cause, site=own.site) for own in waits]


@contextmanager
def _cuda_waits(found: list[HostWait]) -> Iterator[None]:
    """Collect what torch's own watch warns of."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode(_CUDA_WARNS)
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode(_CUDA_IS_SILENT)
    found += [
        HostWait(cause="an operator or a stream", site=Site(own.filename, own.lineno))
        for own in told
        if _CUDA_WORDS in str(own.message)
    ]
