"""What the relay carries: a step's batch, its payload, and a column a field on the device.

The batch has SGLang's names, and two fields that a `ScheduleBatch` does not have:
`input_ids_pending` and `seq_lens_cpu_upper_bound`. The layout is known before the first step, never
read off a payload. A column has one row for each row of the pool.

Shapes: P rows in the request pool, B requests in a batch, T prompt tokens staged, R decode rows
mixed in after them, K draft candidates, H hidden features.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from backend_caps.relay.errors import RelayError


class SpecInfo(Protocol):
    """The draft worker's state of a batch in speculative decode; `resolve_future` fills it."""

    topk_p: Tensor | None
    """[B, K] float32, device."""
    topk_index: Tensor | None
    """[B, K] int64, device."""
    bonus_tokens: Tensor | None
    """[B] int64, device: the token that each request's step starts from."""
    hidden_states: Tensor | None
    """[B, H], device; left as it is where the layout carries none."""


class RelayBatch(Protocol):
    """One step's batch, as the scheduler built it."""

    req_pool_indices: Tensor
    """[B] int64 or int32, device: the pool row of each request."""
    req_pool_indices_cpu: Tensor
    """[B] int64 or int32, host: the same rows in the same order."""
    seq_lens: Tensor
    """[B] int64, device: tokens committed before this step."""
    seq_lens_cpu: Tensor | None
    """[B] int64, host: the mirror of `seq_lens`, or None where the plan needs no mirror."""
    seq_lens_sum: int | None
    """The mirror's sum."""
    seq_lens_cpu_upper_bound: Tensor | None
    """[B] int64, host: never below `seq_lens`, row 0 aside, or None where the plan needs none."""
    input_ids: Tensor | None
    """[B] or [T + R] int64, device: tokens, or sentinels while `input_ids_pending`."""
    input_ids_pending: bool
    """Whether `input_ids` are sentinels; a host flag, so that reading it needs no sync."""
    prefill_input_ids_cpu: Tensor | None
    """[T] int64, pinned host: prompt tokens that cross at forward entry."""
    mix_running_indices: Tensor | None
    """[R] int64 or int32, device: pool rows of the decode rows after the prompt tokens."""

    @property
    def spec_info(self) -> SpecInfo | None:
        """The draft worker's state; None outside speculative decode."""


def require_input_ids(batch: RelayBatch) -> Tensor:
    """Return the tokens that a forward reads; raise while they are not resolved.

    Sync: none; which ids are pending is known on the host.

    Raises:
        RelayError: `resolve_future` has not run for this batch.
    """
    if batch.prefill_input_ids_cpu is not None:
        pending = f"{batch.prefill_input_ids_cpu.numel()} prompt tokens are staged on the host"
    elif batch.input_ids_pending:
        pending = f"{batch.req_pool_indices.numel()} decode rows hold sentinels"
    elif batch.input_ids is None:
        pending = "input_ids is None and nothing is staged"
    else:
        return batch.input_ids
    raise RelayError(
        "pending-input-ids",
        f"the batch's input_ids are not tokens yet: {pending}. A forward reads tokens only. "
        "Call FutureMap.resolve_future(batch) on the forward stream first.",
    )


@dataclass(frozen=True, slots=True)
class DraftShape:
    """Shape of the draft state that is relayed from one step to the next.

    Raises:
        RelayError: a size is below 1, or `hidden_size` and `dtype` come without each other.
    """

    topk: int
    """Candidates that a draft step keeps for each request."""
    hidden_size: int | None = None
    """Features of the hidden state; None where the draft reads none."""
    dtype: torch.dtype | None = None
    """The hidden state's dtype."""
    accept_tokens: int | None = None
    """The most tokens that one step can accept, the bonus token included."""

    def __post_init__(self) -> None:
        for field in ("topk", "hidden_size", "accept_tokens"):
            size: int | None = getattr(self, field)
            if size is not None and size < 1:
                raise _misshapen(field, size, "at least 1")
        if self.hidden_size is not None and self.dtype is None:
            raise _misshapen("dtype", None, f"the dtype of the {self.hidden_size} hidden features")
        if self.hidden_size is None and self.dtype is not None:
            raise _misshapen("hidden_size", None, f"the number of {self.dtype} features")


def _misshapen(field: str, value: object, expected: str) -> RelayError:
    return RelayError(
        "draft-shape",
        f"DraftShape has {field}={value!r}; {expected} was expected. "
        "Give the shape that the draft worker stashes.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayField:
    """One value of a request that crosses from a step to the next."""

    name: str
    """The payload's and `spec_info`'s name for it."""
    row_shape: tuple[int, ...] = ()
    """The shape of one request's value; empty for a number."""
    dtype: torch.dtype = torch.int64
    """How it is stored; other dtypes are converted when they are stashed."""

    @property
    def row_bytes(self) -> int:
        """The memory that one request's value takes."""
        return math.prod(self.row_shape) * self.dtype.itemsize


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayLayout:
    """The fields that a `FutureMap` carries, each with a row for every row of the pool."""

    seq_lens: RelayField = RelayField(name="seq_lens")
    """Tokens committed per request; what `publish` stores."""
    bonus_tokens: RelayField = RelayField(name="bonus_tokens")
    """The last token of each request; what `stash` stores in every mode."""
    draft: tuple[RelayField, ...] = ()
    """What `stash` stores beside the token for a draft worker."""

    @classmethod
    def from_draft(cls, draft: DraftShape | None) -> RelayLayout:
        """Lay out the relay for a draft worker; None is plain decode, or a draft without state."""
        if draft is None:
            return cls()
        fields = (
            RelayField(name="topk_p", row_shape=(draft.topk,), dtype=torch.float32),
            RelayField(name="topk_index", row_shape=(draft.topk,)),
        )
        if draft.hidden_size is None or draft.dtype is None:
            return cls(draft=fields)
        hidden = RelayField(name="hidden_states", row_shape=(draft.hidden_size,), dtype=draft.dtype)
        return cls(draft=(*fields, hidden))

    @property
    def fields(self) -> tuple[RelayField, ...]:
        """Every field, lengths and tokens first."""
        return (self.seq_lens, self.bonus_tokens, *self.draft)

    @property
    def row_bytes(self) -> int:
        """The device memory that one row of the pool takes in the relay."""
        return sum(field.row_bytes for field in self.fields)


@dataclass(slots=True)
class RelayPayload:
    """Carry one step's results into the relay.

    A field of the layout that is None keeps what its rows hold; one that the layout does not have
    is not relayed.
    """

    bonus_tokens: Tensor
    """[B], device: the token that each request's next step starts from."""
    topk_p: Tensor | None = None
    """[B, K], device: probabilities of the draft's candidates."""
    topk_index: Tensor | None = None
    """[B, K], device: the candidates."""
    hidden_states: Tensor | None = None
    """[B, H], device: the hidden state that the draft continues from."""


def require_shape(operation: str, field: str, value: Tensor, expected: tuple[int, ...]) -> None:
    """Require one value for each row; `scatter_` would silently take a part of others.

    Raises:
        RelayError: the shape is another.
    """
    if value.shape != expected:
        raise RelayError(
            "row-count",
            f"{operation} was given {field} of shape {tuple(value.shape)}; {tuple(expected)} was "
            "expected. Pass one row for each of req_pool_indices, shaped as the layout says.",
        )


def as_int64(tensor: Tensor) -> Tensor:
    """Convert to int64; skip the call for an int64 tensor, because a no-op `to` costs time too."""
    return tensor if tensor.dtype is torch.int64 else tensor.to(torch.int64)


def without_graph(tensor: Tensor) -> Tensor:
    """Detach from autograd: else a column would keep the autograd graph of every step alive."""
    return tensor.detach() if tensor.requires_grad else tensor


class Column:
    """A field's values, one for each row of the pool."""

    table: Tensor
    """[P, ...], device: the values."""

    def load(self, rows: Tensor) -> Tensor:
        """Return a copy of the values of `rows` [B]."""
        return self.table.index_select(0, rows)


class NumberColumn(Column):
    """A column of one int64 a row."""

    def __init__(self, pool_size: int, device: torch.device) -> None:
        self.table = torch.zeros(pool_size, dtype=torch.int64, device=device)

    def store(self, rows: Tensor, values: Tensor) -> None:
        """Write `values` [B] to `rows` [B] int64."""
        self.table.scatter_(0, rows, as_int64(values))


# Below this many words a row, viewing the payload costs more than the copy gains.
_MIN_WORDS = 8


class RowColumn(Column):
    """A column of a vector a row, copied in `word`s where a row is enough whole words.

    A copy's cost is in the number of elements, so wide words are cheaper than the row's own dtype.
    """

    def __init__(
        self, field: RelayField, pool_size: int, device: torch.device, word: torch.dtype | None
    ) -> None:
        self.table = torch.zeros(pool_size, *field.row_shape, dtype=field.dtype, device=device)
        self._word = word
        if word is not None:
            num_words, rest = divmod(field.row_bytes, word.itemsize)
            self._word = word if num_words >= _MIN_WORDS and not rest else None
        self._words = self.table if self._word is None else self.table.view(self._word)

    def store(self, rows: Tensor, values: Tensor) -> None:
        """Write `values` [B, ...] to `rows` [B] int64."""
        values = without_graph(values)
        if values.dtype is not self.table.dtype:
            values = values.to(self.table.dtype)
        self._words.index_copy_(0, rows, self._in_words(values))

    def _in_words(self, values: Tensor) -> Tensor:
        """View values in words; copy them first where torch cannot view them so."""
        if self._word is None:
            return values
        # `view(dtype)` needs offset and strides of whole words. One row of a wider tensor counts as
        # contiguous, and still has that tensor's stride.
        strays = (values.storage_offset() | values.stride(0)) * values.itemsize
        if not values.is_contiguous() or strays % self._word.itemsize:
            values = values.clone(memory_format=torch.contiguous_format)
        return values.view(self._word)


class RelayColumns:
    """The columns of a layout.

    Args:
        layout: the fields.
        pool_size: P, the rows of each column.
        device: where they are.
        word: the unit that rows are copied in; None copies in their own dtype.
    """

    def __init__(
        self, layout: RelayLayout, pool_size: int, device: torch.device, word: torch.dtype | None
    ) -> None:
        self.seq_lens = NumberColumn(pool_size, device)
        self.bonus_tokens = NumberColumn(pool_size, device)
        self.draft = {each.name: RowColumn(each, pool_size, device, word) for each in layout.draft}

    def store_draft(self, rows: Tensor, payload: RelayPayload) -> None:
        """Write the payload's draft state, except fields that are None, to `rows` [B] int64."""
        for name, column in self.draft.items():
            values: Tensor | None = getattr(payload, name)
            if values is not None:
                column.store(rows, values)

    def load_draft(self, rows: Tensor, spec_info: SpecInfo) -> None:
        """Read a draft worker's state of `rows` [B] into `spec_info`."""
        for name, column in self.draft.items():
            setattr(spec_info, name, column.load(rows))
