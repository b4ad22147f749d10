"""Storage of the relay on the device: one column a field, one row a pool row.

Shapes: P rows in the request pool, B requests in a batch.
"""

from __future__ import annotations

import torch
from torch import Tensor

from backend_caps.relay.batch import SpecInfo
from backend_caps.relay.layout import RelayField, RelayLayout, RelayPayload


def as_int64(tensor: Tensor) -> Tensor:
    """Return the tensor itself where it is int64: a conversion that is none still costs a call."""
    return tensor if tensor.dtype is torch.int64 else tensor.to(torch.int64)


def without_graph(tensor: Tensor) -> Tensor:
    """Return a tensor that autograd does not follow: a column would keep every step's graph."""
    return tensor.detach() if tensor.requires_grad else tensor


class NumberColumn:
    """A column of one int64 a row."""

    def __init__(self, pool_size: int, device: torch.device) -> None:
        self.table = torch.zeros(pool_size, dtype=torch.int64, device=device)

    def store(self, rows: Tensor, values: Tensor) -> None:
        """Write `values` [B] to `rows` [B] int64."""
        self.table.scatter_(0, rows, as_int64(values))

    def load(self, rows: Tensor) -> Tensor:
        """Read `rows` [B] into memory of their own."""
        return self.table.index_select(0, rows)


# Below this many words a row, viewing the payload costs more than the copy gains.
_MIN_WORDS = 8


class RowColumn:
    """A column of a vector a row, copied in `word`s where a row is a good whole number of them.

    A copy does not care what it copies, and its cost is in the number of elements.
    """

    def __init__(
        self, field: RelayField, pool_size: int, device: torch.device, word: torch.dtype | None
    ) -> None:
        self.table = torch.zeros(pool_size, *field.row_shape, dtype=field.dtype, device=device)
        self._word = word if word is not None and _is_whole(field.row_bytes, word) else None
        self._words = self.table if self._word is None else self.table.view(self._word)

    def store(self, rows: Tensor, values: Tensor) -> None:
        """Write `values` [B, ...] to `rows` [B] int64."""
        values = without_graph(values)
        if values.dtype is not self.table.dtype:
            values = values.to(self.table.dtype)
        self._words.index_copy_(0, rows, self._in_words(values))

    def load(self, rows: Tensor) -> Tensor:
        """Read `rows` [B] into memory of their own."""
        return self.table.index_select(0, rows)

    def _in_words(self, values: Tensor) -> Tensor:
        if self._word is None:
            return values
        # A single row of a wider tensor counts as contiguous, and still has that tensor's stride.
        strays = (values.storage_offset() | values.stride(0)) * values.itemsize
        if not values.is_contiguous() or strays % self._word.itemsize:
            values = values.clone(memory_format=torch.contiguous_format)
        return values.view(self._word)


def _is_whole(row_bytes: int, word: torch.dtype) -> bool:
    num_words, rest = divmod(row_bytes, word.itemsize)
    return num_words >= _MIN_WORDS and not rest


class DraftColumns:
    """The columns of a draft worker's state."""

    def __init__(
        self, layout: RelayLayout, pool_size: int, device: torch.device, word: torch.dtype | None
    ) -> None:
        columns = {field.name: RowColumn(field, pool_size, device, word) for field in layout.draft}
        self.tables = {name: column.table for name, column in columns.items()}
        self._topk_p = columns["topk_p"]
        self._topk_index = columns["topk_index"]
        self._hidden_states = columns.get("hidden_states")

    def store(self, rows: Tensor, payload: RelayPayload) -> None:
        """Write what the payload has to `rows` [B] int64."""
        if payload.topk_p is not None:
            self._topk_p.store(rows, payload.topk_p)
        if payload.topk_index is not None:
            self._topk_index.store(rows, payload.topk_index)
        if payload.hidden_states is not None and self._hidden_states is not None:
            self._hidden_states.store(rows, payload.hidden_states)

    def load(self, rows: Tensor, spec_info: SpecInfo) -> None:
        """Read `rows` [B] into `spec_info`."""
        spec_info.topk_p = self._topk_p.load(rows)
        spec_info.topk_index = self._topk_index.load(rows)
        if self._hidden_states is not None:
            spec_info.hidden_states = self._hidden_states.load(rows)
