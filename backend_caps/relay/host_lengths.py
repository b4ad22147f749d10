"""Host sequence lengths by mode: none, an upper bound, or an exact copy.

Each mode sets all three host fields of a batch, so that no value of an earlier step remains.

The schedule stream waits for the running forward's last read of shared buffers, so a host wait on
it would be a wait for that forward. Lengths are published earlier, between verify and draft-extend.
Hence exact lengths are copied on a private stream that waits for the publish event alone.

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
_NO_GENERATION = -1


class LengthBounds:
    """Keep an upper bound of every row's length, by counting steps instead of copying.

    The host learns a step's lengths only when its result is processed, a step or more after the
    next one was launched. Until then the host has two numbers of a row: the last length that was
    processed, and how many steps were launched. With at most A tokens accepted by a step,

        bound = last committed length + A x (steps launched - steps committed)

    Rows are reused while steps are in flight, so lengths are tagged by generation:

    * A **generation** is one request's stay in a row. The scheduler numbers them: a later stay in
      the same row has the larger number. The relay assigns none.
    * `commit` with a larger generation than the row's **opens** it: the length is what the request
      has committed before its first step (for a new one its whole prompt, whatever was prefilled of
      it by then), and no step is in flight. It comes before the generation's first `launch`.
    * `launch` is a speculative step of the row's open generation, `count` a plain decode step of
      it: that one adds a token too.
    * `commit` with the row's generation is a processed step of it. It ends one step in flight if
      the length grew, as every step's length does, since every step accepts at least one token. A
      prefill is no step, so its result need not be committed once the generation is open. If it
      is, the whole prompt's length does not grow, and nothing changes.
    * `commit` with a smaller generation is of a request that has left the row; nothing changes.

    So the bound never falls below the truth: let the committed length be the one after step j.
    Every counted commit moved it to a later step's, so at most j commits were counted, so at least
    (launched - j) steps are counted as in flight, and each added at most A. A commit that comes
    twice does not grow and is not counted; one that comes late or never leaves the bound too high
    by A. Row 0 is the padding row and has no bound of its own.

    The context's length is no bound. In an overlapped loop the device passes it before the host
    has processed the result that ends the request, so steps that start above it are launched. The
    width of a row of `req_to_token` is one: beyond it other memory would be overwritten.

    Args:
        pool_size: P, row 0 included.
        accept_tokens: the most tokens that one step can accept, the bonus token included.
        max_context_len: the width of a row of `req_to_token`, which no step starts above; None
            where it is unknown.
    """

    def __init__(self, pool_size: int, accept_tokens: int, max_context_len: int | None) -> None:
        self._accept_tokens = accept_tokens
        self._max_context_len = max_context_len
        self._committed = torch.zeros(pool_size, dtype=torch.int64, device="cpu")
        self._in_flight = torch.zeros(pool_size, dtype=torch.int64, device="cpu")
        self._generation = torch.full_like(self._in_flight, _NO_GENERATION)

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
        """Apply exact lengths: of requests that enter their rows, or of a processed step.

        A request enters with its whole prompt's length; a prefill is no step.

        rows_cpu    [B] int64 or int32, host  unique rows; row 0 may repeat
        lens_cpu    [B] int64, host  tokens committed per request
        generation  [B] int64, host  the stay in its row that each length is of
        """
        stored = self._generation[rows_cpu]
        committed = self._committed[rows_cpu]
        in_flight = self._in_flight[rows_cpu]
        opens = generation > stored
        grows = (generation == stored) & (lens_cpu > committed)
        remaining = (in_flight - grows.to(torch.int64)).clamp_(min=0).masked_fill_(opens, 0)
        self._generation[rows_cpu] = torch.maximum(generation, stored)
        self._committed[rows_cpu] = torch.where(opens | grows, lens_cpu, committed)
        self._in_flight[rows_cpu] = remaining


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
    """NONE: lengths stay on the device. Base class of the other modes."""

    stream: StreamLike | None = None
    """The private copy stream; None where lengths cross on the current stream, or not at all."""

    def refresh(self, batch: RelayBatch) -> None:
        """Set all three host fields of the next step to None."""
        batch.seq_lens_cpu = None
        batch.seq_lens_sum = None
        batch.seq_lens_cpu_upper_bound = None

    def count(self, batch: RelayBatch) -> None:
        """Count a plain decode step, whose lengths are not relayed."""

    def commit(self, rows_cpu: Tensor, lens_cpu: Tensor, generation: Tensor) -> None:
        """Apply the exact lengths of a processed step."""

    def bytes_to_host(self, num_requests: int) -> int:  # noqa: ARG002
        """Return how many bytes a step of so many requests copies to the host."""
        return 0


class BoundedLengths(HostLengths):
    """UPPER_BOUND: a bound that the host computes without a copy from the device."""

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
    """EXACT: a copy of the lengths, for which the host waits."""

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
        """Return the bytes of the lengths of `num_requests`."""
        return num_requests * _LENGTH_BYTES


class BlockingCopy(ExactLengths):
    """Copy the gathered lengths: for devices without streams or pinned memory.

    On the CPU `bytes_to_host` counts bytes that are not copied.
    """

    def copy(self, req_pool_indices_cpu: Tensor, seq_lens: Tensor) -> Tensor:  # noqa: ARG002
        """Return the gathered lengths; on the CPU, the same tensor.

        Sync: the current stream. Exact: exact.
        """
        return seq_lens.cpu()


class PrivateCopy(ExactLengths):
    """Copy on a private stream, after the last publish.

    Args:
        streams: the device's streams.
        column: [P] int64, device, the published lengths.
        published: the event after which the column is complete.
    """

    def __init__(self, streams: DeviceStreams, column: Tensor, published: EventLike) -> None:
        self.stream: StreamLike = streams.private_stream()
        self._streams = streams
        self._column = column
        self._published = published
        self._make_buffers(column.shape[0])

    @abstractmethod
    def _make_buffers(self, num_rows: int) -> None:
        """Allocate the buffers for copies of up to `num_rows` rows."""


class ColumnCopy(PrivateCopy):
    """Copy the pool's whole column in one DMA, and select the batch's rows on the host."""

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
        """Return the bytes of the whole column; 0 without requests."""
        return super().bytes_to_host(self._column.shape[0]) if num_requests else 0

    def _make_buffers(self, num_rows: int) -> None:
        self._column_pinned = self._streams.empty_pinned(num_rows)


class RowsCopy(PrivateCopy):
    """Gather the batch's rows on the device, for a pool whose column is too long to copy.

    The index is uploaded from the host: the batch's device index is written on the schedule stream,
    for which the private stream does not wait.
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
        # A copy, because the next step overwrites the pinned buffer.
        return lens_pinned.clone()

    def _make_buffers(self, num_rows: int) -> None:
        """Allocate buffers for the pool's rows, or for more where padding repeats row 0."""
        with self._streams.using(self.stream), torch.inference_mode(mode=False):
            self._rows = self._column.new_empty(num_rows)
            self._lens = self._column.new_empty(num_rows)
            self._rows_pinned = self._streams.empty_pinned(num_rows)
            self._lens_pinned = self._streams.empty_pinned(num_rows)


def host_copy(streams: DeviceStreams, column: Tensor, published: EventLike) -> ExactLengths:
    """Choose the copy by the device's traits and the length of the column."""
    if not (streams.traits.has_streams and streams.traits.has_pinned_memory):
        return BlockingCopy()
    if column.shape[0] <= MAX_COLUMN_ROWS:
        return ColumnCopy(streams, column, published)
    return RowsCopy(streams, column, published)
