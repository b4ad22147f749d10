"""What the host gets of lengths: nothing, a bound, or a copy that waits for no forward.

Each mode sets all three host fields of a batch, so that no value of an earlier step survives.

The schedule stream carries the barrier that keeps it behind the running forward's reads, so a host
wait on it is a wait for that forward to end. A publish comes earlier, between verify and
draft-extend. Hence a copy on a stream of its own, behind the publish event and nothing else.

Shapes: P rows in the request pool, B requests in a batch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from backend_caps.relay.errors import RelayError
from backend_caps.relay.layout import RelayBatch
from backend_caps.relay.streams import DeviceStreams, EventLike, StreamLike

# One DMA of a column of 64 KiB costs less than the three launches that fetch single rows.
MAX_COLUMN_ROWS = 8192
_LENGTH_BYTES = torch.int64.itemsize


# Below every generation that a scheduler numbers, so that generation 0 opens a row.
_NOBODY = -1


class LengthBounds:
    """Keep an upper bound of every row's length, by counting steps instead of copying.

    The host learns a step's lengths only when its result is processed, a step or more after the
    next one was launched. Until then it knows two things of a row: the last length that was
    processed, and how many steps were launched. With at most A tokens accepted by a step,

        bound = last committed length + A x (steps launched - steps committed)

    The protocol has two calls, and rows are recycled while steps are in flight, so each names whom
    it speaks of:

    * A **generation** is one request's stay in a row. The scheduler numbers them: a later stay in
      the same row has the larger number. The relay never makes one up.
    * `commit` with a larger generation than the row's **opens** it: the length is what the request
      has committed before its first step (for a new one its whole prompt, whatever was prefilled of
      it by then), and no step is in flight. It comes before the generation's first `launch`.
    * `launch` is a speculative step of the row's open generation, `count` a plain decode step of
      it: that one adds a token too.
    * `commit` with the row's generation is a processed step of it. It ends one step in flight if
      the length grew, as every step's length does, since every step accepts at least one token. A
      prefill is no step: its result is not committed once the generation is open. Where it is all
      the same, the whole prompt's length does not grow, and changes nothing.
    * `commit` with a smaller generation is of a request that has left the row, and changes nothing.

    So the bound never falls below the truth: let the committed length be the one after step j.
    Every counted commit moved it to a later step's, so at most j commits were counted, so at least
    (launched - j) steps are counted as in flight, and each added at most A. A commit that comes
    twice does not grow and is not counted; one that comes late or never leaves the bound too high
    by A. Row 0 is the padding row and has no bound of its own.

    The context's length is no bound. In an overlapped loop the device passes it before the host
    knows that the request is done, and steps that start above it are launched. What no length
    exceeds is the width of a row of `req_to_token`: beyond it memory would be overwritten.

    Args:
        pool_size: P, row 0 included.
        accept_tokens: the most tokens that one step can accept, the bonus token included.
        max_context_len: the width of a row of `req_to_token`, which no step starts above; None
            where nobody knows.
    """

    def __init__(self, pool_size: int, accept_tokens: int, max_context_len: int | None) -> None:
        self._accept_tokens = accept_tokens
        self._max_context_len = max_context_len
        self._committed = torch.zeros(pool_size, dtype=torch.int64, device="cpu")
        self._in_flight = torch.zeros(pool_size, dtype=torch.int64, device="cpu")
        self._generation = torch.full_like(self._in_flight, _NOBODY)

    def launch(self, rows_cpu: Tensor) -> Tensor:
        """Count a step of these rows, and return the bounds of the lengths it starts from.

        rows_cpu  [B] int64 or int32, host  unique rows; row 0 may repeat

        Exact: an upper bound of each row's committed length before this step.
        """
        committed = self._committed.index_select(0, rows_cpu)
        bounds = torch.add(committed, self.count(rows_cpu), alpha=self._accept_tokens)
        return bounds if self._max_context_len is None else bounds.clamp_(max=self._max_context_len)

    def count(self, rows_cpu: Tensor) -> Tensor:
        """Count a step of these rows, and return how many were in flight before it.

        rows_cpu  [B] int64 or int32, host  unique rows; row 0 may repeat
        """
        in_flight = self._in_flight.index_select(0, rows_cpu)
        self._in_flight[rows_cpu] = in_flight + 1
        self._in_flight[0] = 0
        return in_flight

    def commit(self, rows_cpu: Tensor, lens_cpu: Tensor, generation: Tensor) -> None:
        """Take in exact lengths: of requests that enter their rows, or of a processed step.

        A request enters with its whole prompt's length; results of its prefill are no steps.

        rows_cpu    [B] int64 or int32, host  unique rows; row 0 may repeat
        lens_cpu    [B] int64, host  tokens committed per request
        generation  [B] int64, host  the stay in its row that each length is of
        """
        stored = self._generation[rows_cpu]
        committed = self._committed[rows_cpu]
        in_flight = self._in_flight[rows_cpu]
        opens = generation > stored
        grows = (generation == stored) & (lens_cpu > committed)
        left = (in_flight - grows.to(torch.int64)).clamp_(min=0).masked_fill_(opens, 0)
        self._generation[rows_cpu] = torch.maximum(generation, stored)
        self._committed[rows_cpu] = torch.where(opens | grows, lens_cpu, committed)
        self._in_flight[rows_cpu] = left


# What SGLang 0.5.13 adds to the context for the width of a row (mem_cache/common.py), beside the
# tokens of a step.
_EXTRA_WIDTH = 4


def row_width(context_length: int | None, accept_tokens: int | None) -> int | None:
    """Return the width of a row of `req_to_token`.

    No step starts above it: with one step in flight while the host learns of the crossing, a step
    starts at most `accept_tokens` above the context.
    """
    if context_length is None or accept_tokens is None:
        return None
    return context_length + _EXTRA_WIDTH + accept_tokens


def unknown_accept_tokens() -> RelayError:
    """Return the error of an upper bound without the most tokens that a step can accept."""
    return RelayError(
        "accept-tokens",
        "host_seq_lens is 'upper_bound' and the most tokens that a step can accept is unknown; "
        "a speculative map needs it for the bound. Give DraftShape(accept_tokens=...) or "
        "--speculative-num-draft-tokens.",
    )


class HostLengths:
    """NONE: lengths stay on the device. The other modes override what they do otherwise."""

    stream: StreamLike | None = None
    """The private stream that lengths cross on; None: the current one, or they do not cross."""

    def refresh(self, batch: RelayBatch) -> None:
        """Set all three host fields, for the step that is about to be launched: to None."""
        batch.seq_lens_cpu = None
        batch.seq_lens_sum = None
        batch.seq_lens_cpu_upper_bound = None

    def count(self, batch: RelayBatch) -> None:
        """Count a plain decode step, of which no lengths are relayed."""

    def commit(self, rows_cpu: Tensor, lens_cpu: Tensor, generation: Tensor) -> None:
        """Apply the exact lengths of a processed step."""

    def bytes_to_host(self, num_requests: int) -> int:  # noqa: ARG002
        """Return how many bytes a step of so many requests copies to the host."""
        return 0


class BoundedLengths(HostLengths):
    """UPPER_BOUND: what the host can say without asking the device."""

    def __init__(self, bounds: LengthBounds) -> None:
        self._bounds = bounds

    def refresh(self, batch: RelayBatch) -> None:
        """Set the bound, and count the step."""
        super().refresh(batch)
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


# A torch reduction costs 1.7 us however short it is; Python's sum is below that up to here.
_SHORT = 96


class ExactLengths(HostLengths, ABC):
    """EXACT: the lengths, which the host waits for."""

    @abstractmethod
    def copy(self, req_pool_indices_cpu: Tensor, seq_lens: Tensor) -> Tensor:
        """Return the lengths of the last publish.

        Args:
            req_pool_indices_cpu: [B] int64, host, the batch's rows of the pool.
            seq_lens: [B] int64, device, the lengths that were gathered for them.

        Returns:
            [B] int64, host; pageable, or `seq_lens` itself where the device is the host.
        """

    def refresh(self, batch: RelayBatch) -> None:
        """Set the mirror and its sum; the exact length is also the tightest bound."""
        lens_cpu = self.copy(batch.req_pool_indices_cpu, batch.seq_lens)
        batch.seq_lens_cpu = lens_cpu
        is_short = lens_cpu.shape[0] <= _SHORT
        batch.seq_lens_sum = sum(lens_cpu.tolist()) if is_short else int(lens_cpu.sum())
        batch.seq_lens_cpu_upper_bound = lens_cpu

    def bytes_to_host(self, num_requests: int) -> int:
        """Count the lengths of so many requests."""
        return num_requests * _LENGTH_BYTES


class BlockingCopy(ExactLengths):
    """Copy what was gathered on the device: for devices without streams or pinned memory.

    On a device that is the host, the bytes that it counts stay where they are.
    """

    def copy(self, req_pool_indices_cpu: Tensor, seq_lens: Tensor) -> Tensor:  # noqa: ARG002
        """Return the gathered lengths; on a device that is the host, the very tensor.

        Sync: the current stream. Exact: exact.
        """
        return seq_lens.cpu()


class PrivateCopy(ExactLengths):
    """Copy on a private stream, behind the last publish.

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

    @abstractmethod
    def _make_buffers(self, num_rows: int) -> None:
        """Make the memory that copies of up to so many rows cross in."""


class ColumnCopy(PrivateCopy):
    """Copy the pool's whole column in one DMA, and pick the batch's rows on the host."""

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

    def bytes_to_host(self, num_requests: int) -> int:
        """Count the whole column, whatever the batch."""
        return super().bytes_to_host(self._column.shape[0]) if num_requests else 0

    def _make_buffers(self, num_rows: int) -> None:
        self._column_pinned = self._streams.empty_pinned(num_rows)


class RowsCopy(PrivateCopy):
    """Gather the batch's rows on the device, for a pool whose column is too long to copy.

    The index is uploaded from the host's: the batch's device index is written by the schedule
    stream, for which the private stream does not wait.
    """

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

    def _make_buffers(self, num_rows: int) -> None:
        """Make room for a batch: for a pool's rows, or more where padding repeats row 0."""
        with self._streams.using(self.stream), torch.inference_mode(mode=False):
            self._rows = self._column.new_empty(num_rows)
            self._lens = self._column.new_empty(num_rows)
            self._rows_pinned = self._streams.empty_pinned(num_rows)
            self._lens_pinned = self._streams.empty_pinned(num_rows)


def host_copy(streams: DeviceStreams, column: Tensor, published: EventLike) -> ExactLengths:
    """Choose the copy by what the device has and by the length of the column."""
    if not (streams.traits.has_streams and streams.traits.has_pinned_memory):
        return BlockingCopy()
    if column.shape[0] <= MAX_COLUMN_ROWS:
        return ColumnCopy(streams, column, published)
    return RowsCopy(streams, column, published)
