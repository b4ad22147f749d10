"""The pools of a story, on the host: who has which row and page, and what stands there.

Shapes: P rows in the request pool, S slots in the KV cache, N of them, C tokens of a request's
context, T tokens in a batch, Hk key and value heads, D and Dv their sizes.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from backend_caps.kit.scenes import Pools, Setting, moved


@dataclass(slots=True, eq=False)
class Stay:
    """A request, from when it comes until it leaves."""

    row: int
    """Of the page table."""
    pages: list[int] = field(default_factory=list)
    """Of the KV cache."""
    length: int = 0
    """C."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """What an engine writes to the pools in front of a forward."""

    entries: Tensor
    """[3, N] int64, host: rows and positions of the page table, and the slots that go there."""
    slots: Tensor
    """[N] int64, host: what changes in the KV cache without a forward."""
    keys: Tensor
    """[N, Hk, D], host: poison where a slot is nobody's any more."""
    values: Tensor
    """[N, Hk, Dv], host: the same."""


class HostCache:
    """Rows and pages of requests, and the pools as they are in plain order.

    Args:
        setting: how large the pools are.
        dice: in which order rows and pages are given out at first. The last one that came back is
            the first one that goes out.
    """

    def __init__(self, setting: Setting, dice: random.Random) -> None:
        self._setting = setting
        layer, num_slots = setting.layer, setting.num_slots
        keys, values = (
            torch.full((num_slots, layer.tp_k_head_num, size), setting.poison, dtype=setting.dtype)
            for size in (layer.qk_head_dim, layer.v_head_dim)
        )
        table = torch.full(
            (setting.num_rows, setting.max_context_len), setting.stale_slot, dtype=torch.int32
        )
        self._pools = Pools(table, keys, values, setting.page_size, layer)
        pages = range(1, num_slots // setting.page_size)
        self._free_rows = dice.sample(range(1, setting.num_rows), setting.num_rows - 1)
        self._free_pages = dice.sample(pages, len(pages))
        self._entered: set[tuple[int, int]] = set()
        self._changed: set[int] = set()

    def pools(self) -> Pools:
        """Copy the pools as they are now."""
        return moved(self._pools, torch.Tensor.clone)

    def come(self) -> Stay:
        """Give a request a row."""
        return Stay(self._free_rows.pop())

    def leave(self, stay: Stay) -> None:
        """Take a request's row and pages back, and let its tokens be poison."""
        self.shorten(stay, 0)
        self._free_rows.append(stay.row)
        self._free_pages += stay.pages

    def grow(self, stay: Stay, count: int) -> Tensor:
        """Append tokens to a context, and enter the pages that it needs: their slots, [N]."""
        size, table = self._setting.page_size, self._pools.req_to_token
        start, stay.length = stay.length, stay.length + count
        while len(stay.pages) * size < stay.length:
            position = len(stay.pages) * size
            stay.pages.append(self._free_pages.pop())
            slots = torch.arange(size) + stay.pages[-1] * size
            width = min(size, table.shape[1] - position)
            table[stay.row, position : position + width] = slots[:width].int()
            self._entered |= {(stay.row, position + place) for place in range(width)}
        return self.slots(stay)[start:]

    def shorten(self, stay: Stay, length: int) -> None:
        """Forget a context's last tokens: its pages stay, and what stands there is poison."""
        slots, stay.length = self.slots(stay)[length:], length
        poison = self._pools.keys.new_tensor(self._setting.poison)
        self._pools.keys[slots] = self._pools.values[slots] = poison
        self._changed |= set(slots.tolist())

    def slots(self, stay: Stay) -> Tensor:
        """List where a context's tokens stand: [C] int64, host."""
        return self._pools.req_to_token[stay.row, : stay.length].long()

    def store(self, slots: Tensor, keys: Tensor, values: Tensor) -> None:
        """Store what a forward writes: [N], [N, Hk, D] and [N, Hk, Dv]."""
        self._pools.set_kv_buffer(None, slots, keys, values)

    def place(self, slots: Tensor, keys: Tensor, values: Tensor) -> None:
        """Store what no forward of the story writes."""
        self.store(slots, keys, values)
        self._changed |= set(slots.tolist())

    def context(self, stay: Stay) -> tuple[Tensor, Tensor]:
        """Copy keys [C, Hk, D] and values [C, Hk, Dv] of a request's tokens."""
        slots = self.slots(stay)
        return self._pools.keys[slots], self._pools.values[slots]

    def written(self) -> Written:
        """Tell what changed without a forward since this was asked last."""
        entered, changed = sorted(self._entered), sorted(self._changed)
        self._entered, self._changed = set(), set()
        rows, positions = torch.tensor(entered, dtype=torch.int64).view(-1, 2).unbind(1)
        slots = torch.tensor(changed, dtype=torch.int64)
        return Written(
            entries=torch.stack(
                [rows, positions, self._pools.req_to_token[rows, positions].long()]
            ),
            slots=slots,
            keys=self._pools.keys[slots],
            values=self._pools.values[slots],
        )


def rows_of(stays: Sequence[Stay]) -> Tensor:
    """List the rows of requests: [B] int64, host."""
    return torch.tensor([stay.row for stay in stays], dtype=torch.int64)
