"""Copies of the published lengths to the host, without waiting for a forward.

The schedule stream carries the barrier that keeps it behind the running forward's reads, so a host
wait on it is a wait for that forward to end. A publish comes earlier, between verify and
draft-extend. Hence a stream of its own, behind the publish event and behind nothing else.

Shapes: P rows in the request pool, B requests in a batch.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from backend_caps.relay.streams import DeviceStreams, EventLike, StreamLike

# One DMA of a column of 64 KiB costs less than the three launches that fetch single rows.
MAX_COLUMN_ROWS = 8192
_LENGTH_BYTES = torch.int64.itemsize


class HostCopy(Protocol):
    """A way to bring a batch's lengths to the host."""

    def copy(self, req_pool_indices_cpu: Tensor, seq_lens: Tensor) -> Tensor:
        """Return the lengths [B] of a batch's rows, in host memory that nobody else writes to."""

    def num_bytes(self, num_requests: int) -> int:
        """Return how much crosses to the host for a batch of so many requests."""


class BlockingCopy:
    """Copy what was gathered on the device: for devices without streams or pinned memory."""

    def copy(self, req_pool_indices_cpu: Tensor, seq_lens: Tensor) -> Tensor:  # noqa: ARG002
        """Return the gathered lengths; on a device that is the host, the very tensor.

        Sync: the current stream. Exact: exact.
        """
        return seq_lens.cpu()

    def num_bytes(self, num_requests: int) -> int:
        """Count the gathered lengths; on a device that is the host they stay where they are."""
        return num_requests * _LENGTH_BYTES


class ColumnCopy:
    """Copy the pool's whole column in one DMA, and pick the batch's rows on the host.

    Args:
        streams: the device's streams.
        column: [P] int64, device, the published lengths.
        published: the event behind which the column is whole.
    """

    def __init__(self, streams: DeviceStreams, column: Tensor, published: EventLike) -> None:
        self.stream = streams.private_stream()
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


class RowsCopy:
    """Gather the batch's rows on the device, for a pool whose column is too long to copy.

    The index is uploaded from the host's: the batch's device index is written by the schedule
    stream, for which the private stream does not wait.

    Args:
        streams: the device's streams.
        column: [P] int64, device, the published lengths.
        published: the event behind which the column is whole.
    """

    def __init__(self, streams: DeviceStreams, column: Tensor, published: EventLike) -> None:
        self.stream = streams.private_stream()
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


def host_copy(streams: DeviceStreams, column: Tensor, published: EventLike) -> HostCopy:
    """Choose the copy by what the device has and by the length of the column."""
    if not (streams.traits.has_streams and streams.traits.has_pinned_memory):
        return BlockingCopy()
    if column.shape[0] <= MAX_COLUMN_ROWS:
        return ColumnCopy(streams, column, published)
    return RowsCopy(streams, column, published)


def private_stream_of(copy: HostCopy) -> StreamLike | None:
    """Return the stream that a copy runs on, where it has one of its own."""
    return copy.stream if isinstance(copy, ColumnCopy | RowsCopy) else None
