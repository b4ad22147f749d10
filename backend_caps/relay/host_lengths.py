"""What the host is told about lengths: nothing, a bound, or the lengths.

Each mode sets all three host fields of a batch, so that no value of an earlier step survives.

Shapes: B requests in a batch.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from backend_caps.relay.batch import RelayBatch
from backend_caps.relay.bounds import LengthBounds
from backend_caps.relay.host_copy import HostCopy

# A torch reduction costs 1.7 us however short it is; Python's sum is below that up to here.
_SHORT = 96


class HostLengths(Protocol):
    """One of the three modes of `HostSeqLens`."""

    def refresh(self, batch: RelayBatch) -> None:
        """Set the batch's host fields for the step that is about to be launched."""

    def count(self, batch: RelayBatch) -> None:
        """Take in a plain decode step, of which no lengths are relayed."""

    def commit(self, rows_cpu: Tensor, lens_cpu: Tensor, generation: Tensor) -> None:
        """Take in the exact lengths of a processed step."""

    def bytes_to_host(self, num_requests: int) -> int:
        """Return how much crosses to the host for a step of so many requests."""


class NoLengths:
    """NONE: lengths stay on the device."""

    def refresh(self, batch: RelayBatch) -> None:
        """Leave the host fields without a value."""
        batch.seq_lens_cpu = None
        batch.seq_lens_sum = None
        batch.seq_lens_cpu_upper_bound = None

    def count(self, batch: RelayBatch) -> None:
        """Need nothing of it."""

    def commit(self, rows_cpu: Tensor, lens_cpu: Tensor, generation: Tensor) -> None:
        """Need nothing of it."""

    def bytes_to_host(self, num_requests: int) -> int:  # noqa: ARG002
        """Return 0: nothing crosses."""
        return 0


class BoundedLengths:
    """UPPER_BOUND: what the host can say without asking the device."""

    def __init__(self, bounds: LengthBounds) -> None:
        self._bounds = bounds

    def refresh(self, batch: RelayBatch) -> None:
        """Set the bound, and count the step."""
        batch.seq_lens_cpu = None
        batch.seq_lens_sum = None
        batch.seq_lens_cpu_upper_bound = self._bounds.launch(batch.req_pool_indices_cpu)

    def count(self, batch: RelayBatch) -> None:
        """Count a step of the batch's decode rows, which are the last of a mixed batch."""
        rows_cpu = batch.req_pool_indices_cpu
        if batch.prefill_input_ids_cpu is not None:
            running = batch.mix_running_indices
            num_running = 0 if running is None else running.shape[0]
            rows_cpu = rows_cpu[rows_cpu.shape[0] - num_running :]
        self._bounds.count(rows_cpu)

    def commit(self, rows_cpu: Tensor, lens_cpu: Tensor, generation: Tensor) -> None:
        """Tighten the bound."""
        self._bounds.commit(rows_cpu, lens_cpu, generation)

    def bytes_to_host(self, num_requests: int) -> int:  # noqa: ARG002
        """Return 0: nothing crosses."""
        return 0


class ExactLengths:
    """EXACT: the lengths, which the host waits for."""

    def __init__(self, copy: HostCopy) -> None:
        self._copy = copy

    def refresh(self, batch: RelayBatch) -> None:
        """Set the mirror and its sum; the exact length is also the tightest bound."""
        lens_cpu = self._copy.copy(batch.req_pool_indices_cpu, batch.seq_lens)
        batch.seq_lens_cpu = lens_cpu
        batch.seq_lens_sum = _total(lens_cpu)
        batch.seq_lens_cpu_upper_bound = lens_cpu

    def count(self, batch: RelayBatch) -> None:
        """Need nothing of it."""

    def commit(self, rows_cpu: Tensor, lens_cpu: Tensor, generation: Tensor) -> None:
        """Need nothing of it."""

    def bytes_to_host(self, num_requests: int) -> int:
        """Return what the copy moves."""
        return self._copy.num_bytes(num_requests)


def _total(lens_cpu: Tensor) -> int:
    if lens_cpu.shape[0] <= _SHORT:
        return sum(lens_cpu.tolist())
    return int(lens_cpu.sum().item())
