"""What the host gets of lengths: nothing, a bound, or a copy that waits for no forward.

Each mode sets all three host fields of a batch, so that no value of an earlier step survives.

The schedule stream carries the barrier that keeps it behind the running forward's reads, so a host
wait on it is a wait for that forward to end. A publish comes earlier, between verify and
draft-extend. Hence a copy on a stream of its own, behind the publish event and nothing else.

Shapes: P rows in the request pool, B requests in a batch.
"""

from __future__ import annotations

import torch
from torch import Tensor

from backend_caps.relay.bounds import LengthBounds
from backend_caps.relay.layout import RelayBatch
from backend_caps.relay.streams import DeviceStreams, EventLike, StreamLike

# One DMA of a column of 64 KiB costs less than the three launches that fetch single rows.
MAX_COLUMN_ROWS = 8192
_LENGTH_BYTES = torch.int64.itemsize


class BlockingCopy:
    """Copy what was gathered on the device: for devices without streams or pinned memory."""

    stream: StreamLike | None = None
    """The private stream that the copy runs on; None: the current one."""

    def copy(self, req_pool_indices_cpu: Tensor, seq_lens: Tensor) -> Tensor:  # noqa: ARG002
        """Return the gathered lengths; on a device that is the host, the very tensor.

        Sync: the current stream. Exact: exact.
        """
        return seq_lens.cpu()

    def num_bytes(self, num_requests: int) -> int:
        """Count the gathered lengths; on a device that is the host they stay where they are."""
        return num_requests * _LENGTH_BYTES


class ColumnCopy(BlockingCopy):
    """Copy the pool's whole column in one DMA, and pick the batch's rows on the host.

    Args:
        streams: the device's streams.
        column: [P] int64, device, the published lengths.
        published: the event behind which the column is whole.
    """

    def __init__(self, streams: DeviceStreams, column: Tensor, published: EventLike) -> None:
        self.stream: StreamLike = streams.private_stream()
        self._streams = streams
        self._column = column
        self._published = published
        self._column_pinned = streams.empty_pinned(column.shape[0])

    def copy(self, req_pool_indices_cpu: Tensor, seq_lens: Tensor) -> Tensor:
        """Return the lengths of the last publish.

        Stream: the private one. Sync: the private stream alone. Exact: exact.
        """
        if not req_pool_indices_cpu.numel():
            return seq_lens.new_empty(0, device="cpu")
        self.stream.wait_event(self._published)
        with self._streams.using(self.stream):
            self._column_pinned.copy_(self._column, non_blocking=True)
        self.stream.synchronize()
        return self._column_pinned.index_select(0, req_pool_indices_cpu)

    def num_bytes(self, num_requests: int) -> int:
        """Count the whole column, whatever the batch."""
        return self._column.shape[0] * _LENGTH_BYTES if num_requests else 0


class RowsCopy(BlockingCopy):
    """Gather the batch's rows on the device, for a pool whose column is too long to copy.

    The index is uploaded from the host's: the batch's device index is written by the schedule
    stream, for which the private stream does not wait.

    Args:
        streams: the device's streams.
        column: [P] int64, device, the published lengths.
        published: the event behind which the column is whole.
    """

    def __init__(self, streams: DeviceStreams, column: Tensor, published: EventLike) -> None:
        self.stream: StreamLike = streams.private_stream()
        self._streams = streams
        self._column = column
        self._published = published
        self._make_buffers(column.shape[0])

    def copy(self, req_pool_indices_cpu: Tensor, seq_lens: Tensor) -> Tensor:
        """Return the lengths of the last publish.

        Stream: the private one. Sync: the private stream alone. Exact: exact.
        """
        if not req_pool_indices_cpu.numel():
            return seq_lens.new_empty(0, device="cpu")
        num_rows = req_pool_indices_cpu.shape[0]
        if num_rows > self._rows.shape[0]:
            self._make_buffers(num_rows)
        rows, lens = self._rows[:num_rows], self._lens[:num_rows]
        rows_pinned, lens_pinned = self._rows_pinned[:num_rows], self._lens_pinned[:num_rows]
        rows_pinned.copy_(req_pool_indices_cpu)
        with self._streams.using(self.stream):
            rows.copy_(rows_pinned, non_blocking=True)
            self.stream.wait_event(self._published)
            torch.index_select(self._column, 0, rows, out=lens)
            lens_pinned.copy_(lens, non_blocking=True)
        self.stream.synchronize()
        return lens_pinned.clone()

    def num_bytes(self, num_requests: int) -> int:
        """Count the batch's rows; their index goes the other way."""
        return num_requests * _LENGTH_BYTES

    def _make_buffers(self, num_rows: int) -> None:
        """Make room for a batch: for a pool's rows, or more where padding repeats row 0."""
        with self._streams.using(self.stream), torch.inference_mode(mode=False):
            self._rows = self._column.new_empty(num_rows)
            self._lens = self._column.new_empty(num_rows)
            self._rows_pinned = self._streams.empty_pinned(num_rows)
            self._lens_pinned = self._streams.empty_pinned(num_rows)


def host_copy(streams: DeviceStreams, column: Tensor, published: EventLike) -> BlockingCopy:
    """Choose the copy by what the device has and by the length of the column."""
    if not (streams.traits.has_streams and streams.traits.has_pinned_memory):
        return BlockingCopy()
    if column.shape[0] <= MAX_COLUMN_ROWS:
        return ColumnCopy(streams, column, published)
    return RowsCopy(streams, column, published)


# A torch reduction costs 1.7 us however short it is; Python's sum is below that up to here.
_SHORT = 96


class NoLengths:
    """NONE: lengths stay on the device. The base of the other modes."""

    def refresh(self, batch: RelayBatch) -> None:
        """Set the batch's host fields for the step that is about to be launched: to None."""
        batch.seq_lens_cpu = None
        batch.seq_lens_sum = None
        batch.seq_lens_cpu_upper_bound = None

    def count(self, batch: RelayBatch) -> None:
        """Take in a plain decode step, of which no lengths are relayed."""

    def commit(self, rows_cpu: Tensor, lens_cpu: Tensor, generation: Tensor) -> None:
        """Take in the exact lengths of a processed step."""

    def bytes_to_host(self, num_requests: int) -> int:  # noqa: ARG002
        """Return how much crosses to the host for a step of so many requests."""
        return 0


class BoundedLengths(NoLengths):
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


class ExactLengths(NoLengths):
    """EXACT: the lengths, which the host waits for."""

    def __init__(self, copy: BlockingCopy) -> None:
        self._copy = copy

    def refresh(self, batch: RelayBatch) -> None:
        """Set the mirror and its sum; the exact length is also the tightest bound."""
        lens_cpu = self._copy.copy(batch.req_pool_indices_cpu, batch.seq_lens)
        batch.seq_lens_cpu = lens_cpu
        batch.seq_lens_sum = _total(lens_cpu)
        batch.seq_lens_cpu_upper_bound = lens_cpu

    def bytes_to_host(self, num_requests: int) -> int:
        """Return what the copy moves."""
        return self._copy.num_bytes(num_requests)


def _total(lens_cpu: Tensor) -> int:
    if lens_cpu.shape[0] <= _SHORT:
        return sum(lens_cpu.tolist())
    return int(lens_cpu.sum().item())
