"""Debug checks around every call of a FutureMap: thorough, at any cost.

Consumed rows are poisoned, so that a second read of a row is found by its value. The poison is the
least int64, or NaN; -1 would not do, because it is `~0`, the sentinel of row 0. Row 0 is the
padding row: it may repeat, and may be read without having been written, so it is reset to 0 with
every poisoning. Overwriting an unread row is legal: its request was retracted or aborted.

Every check waits for the device.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from backend_caps.relay.errors import RelayError
from backend_caps.relay.layout import (
    RelayBatch,
    RelayColumns,
    RelayPayload,
    as_int64,
    require_shape,
)
from backend_caps.relay.streams import DeviceStreams

POISON = torch.iinfo(torch.int64).min


InputRows = tuple[Tensor | None, Tensor | None]
"""Pool rows that a forward reads, noted before `resolve_future` clears the batch's fields: those of
`input_ids` ([R] or [B], device), and those of `spec_info` ([B], device)."""


@dataclass(frozen=True, slots=True)
class DebugChecks:
    """The checks of a FutureMap in debug mode."""

    streams: DeviceStreams
    """The device's streams."""
    columns: RelayColumns
    """The columns that `publish` and `stash` write."""
    speculative: bool
    """Whether speculative steps relay through the map."""

    def __post_init__(self) -> None:
        columns = self.columns
        for column in (columns.seq_lens, columns.bonus_tokens, *columns.draft.values()):
            _poison(column.table, torch.arange(len(column.table), device=column.table.device))

    def before_publish(self, req_pool_indices: Tensor) -> None:
        """Require rows of the pool, each once."""
        self._check_rows("publish", req_pool_indices)

    def before_stash(self, req_pool_indices: Tensor, payload: RelayPayload) -> None:
        """Require rows of the pool, each once, and values of the layout's shapes for each."""
        self._check_rows("stash", req_pool_indices)
        num_rows = req_pool_indices.shape[0]
        for name, column in self.columns.draft.items():
            value: Tensor | None = getattr(payload, name)
            if value is not None:
                require_shape("stash", name, value, (num_rows, *column.table.shape[1:]))

    def before_commit(self, rows_cpu: Tensor, lens_cpu: Tensor, generation: Tensor) -> None:
        """Require rows of the pool, each once, and a length and a generation for each."""
        self._check_rows("commit_lengths", rows_cpu)
        require_shape("commit_lengths", "lens_cpu", lens_cpu, rows_cpu.shape)
        require_shape("commit_lengths", "generation", generation, rows_cpu.shape)

    def before_lengths(self, batch: RelayBatch) -> None:
        """Require one index on the host and the device, and rows published since the last read."""
        rows = _listed(batch.req_pool_indices)
        rows_cpu = _listed(batch.req_pool_indices_cpu)
        if rows != rows_cpu:
            raise RelayError(
                "index-mismatch",
                f"req_pool_indices is [{_text(rows)}] on the device and [{_text(rows_cpu)}] on the "
                "host; the same rows in the same order were expected. Filter, merge and pad both "
                "together.",
            )
        self._check_rows("resolve_seq_lens_cpu", batch.req_pool_indices)
        self._check_fresh("seq_lens", self.columns.seq_lens.table, batch.req_pool_indices)

    def after_lengths(self, batch: RelayBatch) -> None:
        """Check the bounds, and poison the rows, which the copy stream has finished reading."""
        if batch.seq_lens_cpu_upper_bound is not None:
            self._check_bounds(batch, batch.seq_lens_cpu_upper_bound)
        _poison(self.columns.seq_lens.table, batch.req_pool_indices)

    def before_inputs(self, batch: RelayBatch) -> InputRows:
        """Require pinned staging and values stashed since the last read; return their rows.

        Staged ids and a draft's state may come together.
        """
        tokens = batch.req_pool_indices if batch.input_ids_pending else None
        if batch.prefill_input_ids_cpu is not None:
            self._check_staging(batch.prefill_input_ids_cpu)
            tokens = batch.mix_running_indices
        reads_draft = self.speculative and batch.spec_info is not None
        draft = batch.req_pool_indices if reads_draft else None
        for rows in (tokens, draft):
            if rows is not None:
                self._check_rows("resolve_future", rows)
                self._check_fresh("bonus_tokens", self.columns.bonus_tokens.table, rows)
        if draft is not None and "topk_index" in self.columns.draft:
            candidates = self.columns.draft["topk_index"].table[:, 0]
            self._check_fresh("topk_index", candidates, draft)
        return tokens, draft

    def after_inputs(self, inputs: InputRows) -> None:
        """Poison the rows that were read."""
        tokens, draft = inputs
        for rows in (tokens, draft):
            if rows is not None:
                _poison(self.columns.bonus_tokens.table, rows)
        if draft is not None:
            for column in self.columns.draft.values():
                _poison(column.table, draft)

    def _check_rows(self, operation: str, req_pool_indices: Tensor) -> None:
        rows, num_rows = _listed(req_pool_indices), len(self.columns.seq_lens.table)
        outside = tuple(row for row in rows if not 0 <= row < num_rows)
        if outside:
            raise RelayError(
                "rows-out-of-range",
                f"{operation} was given {_rows(outside)}; 0 <= row < {num_rows} was "
                "expected. Pass req_pool_indices of this request pool.",
            )
        repeated = tuple(sorted(row for row, count in Counter(rows).items() if row and count > 1))
        if repeated:
            raise RelayError(
                "repeated-rows",
                f"{operation} was given {_rows(repeated)} more than once; only the padding row 0 "
                "may repeat. Give each request a row of its own.",
            )

    def _check_fresh(self, field: str, table: Tensor, rows: Tensor) -> None:
        values = _listed(table.index_select(0, rows))
        stale = tuple(
            row for row, value in zip(_listed(rows), values, strict=True) if row and value == POISON
        )
        if stale:
            writer = "publish" if field == "seq_lens" else "stash"
            raise RelayError(
                "stale-rows",
                f"{field} of {_rows(stale)} is read with nothing written since it was last read; "
                f"a value of the step before was expected. Call {writer} there first.",
            )

    def _check_bounds(self, batch: RelayBatch, bounds: Tensor) -> None:
        rows, seq_lens = _listed(batch.req_pool_indices), _listed(batch.seq_lens)
        low = [
            (row, bound, seq_len)
            for row, bound, seq_len in zip(rows, _listed(bounds), seq_lens, strict=True)
            if row and bound < seq_len
        ]
        if low:
            rows, bound, truth = zip(*low, strict=True)
            raise RelayError(
                "bound-below-length",
                f"the lengths [{_text(truth)}] of {_rows(rows)} are above their upper bounds "
                f"[{_text(bound)}]; a bound was expected never to be below. Open a row's "
                "generation by commit_lengths before its first resolve_seq_lens_cpu.",
            )

    def _check_staging(self, staged: Tensor) -> None:
        if self.streams.traits.has_pinned_memory and not self.streams.is_pinned(staged):
            raise RelayError(
                "pageable-staging",
                "prefill_input_ids_cpu is pageable; pinned memory was expected, or its copy to "
                f"{str(self.streams.device)!r} blocks the host. Allocate the staging with "
                "pin_memory=True.",
            )


def _poison(table: Tensor, rows: Tensor) -> None:
    """Fill rows with a value that no step produces, and the padding row with 0."""
    is_float = table.dtype.is_floating_point
    table[as_int64(rows)] = math.nan if is_float else torch.iinfo(table.dtype).min
    table[0] = 0


def _listed(tensor: Tensor) -> tuple[int, ...]:
    """Copy numbers to the host. Sync: the work that writes them."""
    return tuple(tensor.tolist())


def _rows(rows: Sequence[int]) -> str:
    return f"{'row' if len(rows) == 1 else 'rows'} {_text(rows)}"


def _text(rows: Sequence[int]) -> str:
    """List the first rows only: a batch may have thousands."""
    shown = ", ".join(str(row) for row in rows[:8])
    return shown if len(rows) <= 8 else f"{shown} and {len(rows) - 8} more"  # noqa: PLR2004
