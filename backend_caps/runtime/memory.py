"""Where requests stand: rows of the page table, pages of the KV cache.

The host alone hands pages out, and knows the owner of each; the device has the table that
attention reads. Page 0 and row 0 are padding: no request gets them, so a padded row of a batch
reads and writes padding.

Shapes: P rows in the request pool, W entries in a row, S slots in the KV cache, N layers, T tokens
in a batch, Hk key and value heads, D and Dv their sizes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from backend_caps.relay import FutureMap, StepStreams
from backend_caps.relay.streams import DeviceStreams
from backend_caps.resolution.plan import Plan
from backend_caps.runtime.errors import OutOfPagesError, check_size
from backend_caps.runtime.model.config import LlamaConfig
from backend_caps.runtime.model.layers import AttentionLayer
from backend_caps.runtime.model.llama import LlamaModel
from backend_caps.runtime.options import DTYPES
from backend_caps.runtime.staging import Staging


class ReqToTokenPool:
    """The page table: for every row, the slot of each of its tokens.

    Args:
        max_requests: the rows that requests can have; row 0 comes on top.
        max_context_len: the tokens of the longest request.
        page_size: tokens a page; rows are as wide as whole pages.
        device: where the table is.
        lookahead: slots behind the longest request that speculative steps write to.
    """

    def __init__(
        self,
        *,
        max_requests: int,
        max_context_len: int,
        page_size: int,
        device: torch.device,
        lookahead: int = 0,
    ) -> None:
        check_size("max_requests", max_requests)
        check_size("max_context_len", max_context_len)
        check_size("page_size", page_size)
        self.max_context_len = max_context_len
        self.page_size = page_size
        self.lookahead = lookahead
        width = num_pages_of(max_context_len + lookahead, page_size) * page_size
        self.req_to_token = torch.zeros(max_requests + 1, width, dtype=torch.int32, device=device)
        """[P, W] int32, device: the slot of each token; row 0 is the padding row."""
        self._free = list(range(max_requests, 0, -1))
        self._num_stays = 0

    @property
    def pool_size(self) -> int:
        """P: every row, row 0 included."""
        return self.req_to_token.shape[0]

    @property
    def num_free(self) -> int:
        """Rows that no request has."""
        return len(self._free)

    @property
    def num_taken(self) -> int:
        """Rows that requests have."""
        return self.pool_size - 1 - len(self._free)

    def alloc(self) -> tuple[int, int]:
        """Take a row, and number the stay in it: (row, generation).

        No two stays have the same number, in whatever rows they are.
        """
        assert self._free, "rows are taken only where `num_free` says that there are any"
        row = self._free.pop()
        self._num_stays += 1
        return row, self._num_stays

    def free(self, row: int) -> None:
        """Give a row back."""
        assert row not in self._free, f"row {row} is free already"
        assert 0 < row < self.pool_size, f"row {row} is no request's"
        self._free.append(row)


Layout: TypeAlias = tuple[tuple[int, ...], torch.dtype]
"""A tensor's shape and dtype."""


class TokenToKVPool:
    """The KV cache: keys and values of every slot, layer by layer.

    Args:
        num_slots: S, the padding page included.
        num_layers: layers of the model.
        num_heads: Hk.
        head_dim: D.
        v_head_dim: Dv.
        dtype: of keys and values.
        device: where they are.
    """

    def __init__(
        self,
        *,
        num_slots: int,
        num_layers: int,
        num_heads: int,
        head_dim: int,
        v_head_dim: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        def buffers(size: int) -> list[Tensor]:
            shape = (num_slots, num_heads, size)
            return [torch.zeros(shape, dtype=dtype, device=device) for _ in range(num_layers)]

        self.num_slots = num_slots
        self._keys = buffers(head_dim)
        self._values = buffers(v_head_dim)

    @property
    def num_bytes(self) -> int:
        """Device memory of all layers."""
        return sum(own.nbytes for own in (*self._keys, *self._values))

    def get_key_buffer(self, layer_id: int) -> Tensor:
        """Return a layer's keys [S, Hk, D], device."""
        return self._keys[layer_id]

    def get_value_buffer(self, layer_id: int) -> Tensor:
        """Return a layer's values [S, Hk, Dv], device."""
        return self._values[layer_id]

    def set_kv_buffer(self, layer: AttentionLayer, loc: Tensor, k: Tensor, v: Tensor) -> None:
        """Store keys and values of a forward's tokens.

        loc  [T] int64, device  their slots; slot 0 may repeat
        k    [T, Hk, D], device  converted to the cache's dtype
        v    [T, Hk, Dv], device  converted to the cache's dtype

        Stream: the current one. Sync: none. Keeps: nothing; both are copied from. Capture: yes.
        """
        keys, values = self._keys[layer.layer_id], self._values[layer.layer_id]
        keys.index_put_((loc,), k.to(keys.dtype))
        values.index_put_((loc,), v.to(values.dtype))

    def layouts(self, num_tokens: int) -> Sequence[Layout]:
        """Return the layouts of keys and of values of so many tokens, as `load` returns them."""
        return [
            ((len(own), num_tokens, *own[0].shape[1:]), own[0].dtype)
            for own in (self._keys, self._values)
        ]

    def load(self, slots: Tensor) -> tuple[Tensor, Tensor]:
        """Read keys and values of all N layers.

        slots    [T] int64, device
        returns  [N, T, Hk, D], device
                 [N, T, Hk, Dv], device

        Stream: the current one. Sync: none. Allocates: the result, and a layer more.
        Keeps: nothing. Capture: yes.
        """
        keys, values = (
            torch.stack([buffer.index_select(0, slots) for buffer in buffers])
            for buffers in (self._keys, self._values)
        )
        return keys, values

    def store(self, slots: Tensor, keys: Tensor, values: Tensor) -> None:
        """Write what `load` returned, of this pool or of one of the same layout.

        slots   [T] int64, device  unique
        keys    [N, T, Hk, D], device
        values  [N, T, Hk, Dv], device

        Stream: the current one. Sync: none. Keeps: nothing; both are copied from. Capture: yes.
        """
        for buffers, layers in ((self._keys, keys), (self._values, values)):
            for buffer, layer in zip(buffers, layers.unbind(), strict=True):
                buffer.index_copy_(0, slots, layer)

    def move(self, sources: Tensor, targets: Tensor) -> None:
        """Move keys and values of all layers between slots.

        sources  [T] int64, device
        targets  [T] int64, device  unique; what is read is read before anything is written

        Stream: the current one. Sync: none. Allocates: what is moved, a layer at a time.
        Keeps: nothing. Capture: yes.
        """
        for buffer in (*self._keys, *self._values):
            buffer.index_put_((targets,), buffer.index_select(0, sources))


class PagePool:
    """The pages of the KV cache that no request has. On the host; page 0 is none of them.

    The last one that came back is the first one that goes out, so that a page that is used again
    too soon is used again at once.
    """

    def __init__(self, num_pages: int) -> None:
        self.num_pages = num_pages
        self._free = list(range(num_pages, 0, -1))
        self._is_free = [False] + [True] * num_pages

    @property
    def num_free(self) -> int:
        """Pages that no request has."""
        return len(self._free)

    def alloc(self, count: int) -> list[int]:
        """Take pages.

        Raises:
            OutOfPagesError: there are not that many; none is taken.
        """
        left = len(self._free) - count
        if left < 0:
            raise OutOfPagesError(wanted=count, free=len(self._free), pages=self.num_pages)
        taken = self._free[left:][::-1]
        del self._free[left:]
        for page in taken:
            self._is_free[page] = False
        return taken

    def free(self, pages: Sequence[int]) -> None:
        """Give pages back."""
        for page in pages:
            assert 0 < page <= self.num_pages, f"page {page} is no request's"
            assert not self._is_free[page], f"page {page} is free already"
            self._is_free[page] = True
        self._free.extend(reversed(pages))


class RequestMemory:
    """Rows and pages of every request, and the one writer of the page table.

    Args:
        rows: the request pool.
        pages: the KV cache's free pages.
        staging: carries new entries of the table to the device.
    """

    def __init__(self, rows: ReqToTokenPool, pages: PagePool, staging: Staging) -> None:
        self.rows = rows
        self.pages = pages
        self.page_size = rows.page_size
        self.staging = staging
        self._of_row: list[list[int]] = [[] for _ in range(rows.pool_size)]
        table = rows.req_to_token
        self._within_page = torch.arange(self.page_size, device=table.device)

    def num_pages(self, row: int) -> int:
        """Count the pages that a row has."""
        return len(self._of_row[row])

    def pages_missing(self, rows: Sequence[int], lengths: Sequence[int]) -> list[int]:
        """Count the pages that each row lacks for so many tokens."""
        of_row, size = self._of_row, self.page_size
        return [
            max(0, -(-length // size) - len(of_row[row]))
            for row, length in zip(rows, lengths, strict=True)
        ]

    def grow(self, rows: Sequence[int], lengths: Sequence[int]) -> None:
        """Give each row the pages that it lacks for its length, and enter them in the table.

        Stream: enqueued on the current stream, which must be the schedule stream: the running
        forward may read the table, and the schedule stream is behind its last read.
        Sync: none. Allocates: the upload of three numbers a page.

        Raises:
            OutOfPagesError: there are too few pages; no row gets any.
        """
        missing = zip(rows, self.pages_missing(rows, lengths), strict=True)
        growing = [row for row, count in missing for _ in range(count)]
        if not growing:
            return
        size, pages = self.page_size, self.pages.alloc(len(growing))
        starts: list[int] = []
        for row, page in zip(growing, pages, strict=True):
            own = self._of_row[row]
            starts.append(len(own) * size)
            own.append(page)
        packed = self.staging.upload((growing, starts, [page * size for page in pages]))
        device_rows, device_starts, slots = packed[:, :, None].unbind()
        table = self.rows.req_to_token
        entries = (slots + self._within_page).to(table.dtype)
        table[device_rows, device_starts + self._within_page] = entries

    def release(self, row: int) -> None:
        """Give a row and its pages back.

        Steps that read them may be under way: their next owner writes to the table behind the
        barrier of the schedule stream, and to the KV cache behind them on the forward stream.
        """
        pages = self._of_row[row]
        self._of_row[row] = []
        self.pages.free(pages)
        self.rows.free(row)

    def slots_of(self, rows: Tensor, positions: Tensor) -> Tensor:
        """Look up where tokens stand.

        rows       [T] int64, device
        positions  [T] int64, device
        returns    [T] int64, device

        Stream: the current one, which must be the schedule stream. Sync: none.
        """
        return self.rows.req_to_token[rows, positions].to(torch.int64)


def num_pages_of(num_tokens: int, page_size: int) -> int:
    """Count the pages that hold so many tokens."""
    return -(-num_tokens // page_size)


@dataclass(frozen=True, slots=True)
class Pools:
    """What backends are built from (`BackendSite`)."""

    req_to_token_pool: ReqToTokenPool
    token_to_kv_pool: TokenToKVPool


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """What all steps of an engine share."""

    memory: RequestMemory
    """Rows and pages of its requests."""
    pools: Pools
    """The page table, and the target's KV cache."""
    relay: FutureMap
    """Carries lengths, tokens and the draft's state to the next step."""
    step_streams: StepStreams
    """The streams of steps."""

    @property
    def staging(self) -> Staging:
        """What carries host numbers to the device."""
        return self.memory.staging

    @property
    def streams(self) -> DeviceStreams:
        """The device's streams."""
        return self.memory.staging.streams


FULL_CONTEXTS = 8
"""Full contexts that the KV cache has room for, where no option says how many tokens it holds."""


def make_pool(plan: Plan, config: LlamaConfig, target: LlamaModel, num_slots: int) -> TokenToKVPool:
    """Make the KV cache of a model: the target, or a draft of it in the same slots.

    Args:
        plan: says what it holds.
        config: the model's shape.
        target: says where it is, and what it holds where the plan does not.
        num_slots: S, the padding page included.
    """
    return TokenToKVPool(
        num_slots=num_slots,
        num_layers=config.num_hidden_layers,
        num_heads=config.num_key_value_heads,
        head_dim=config.head_dim,
        v_head_dim=config.head_dim,
        dtype=DTYPES.get(plan.flags.kv_cache_dtype, target.dtype),
        device=target.device,
    )
