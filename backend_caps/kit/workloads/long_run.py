"""A long run of one backend: ever other batches, of which no two have the same lengths for long.

Shapes: L the longest context, T tokens in a batch, Hq query heads, Hk key and value heads, D and Dv
their sizes.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor

from backend_caps.kit.rig import Rig
from backend_caps.kit.scenarios import (
    MOST_REQUESTS,
    VERIFIED,
    Forward,
    Scenario,
    dice_for,
)
from backend_caps.kit.scenes import Pools, Scene, Setting
from backend_caps.runtime.attention import AttentionBackend
from backend_caps.runtime.forward_batch import ForwardBatch

_FORWARDS = (Forward.DECODE, Forward.VERIFY)
_Shape = tuple[Forward, int, int]
_NUM_LONGEST = 6
"""Lengths that the longest context of a batch has; the others are below it, as the dice fall."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Room:
    """What all steps share: pools whose rows have all their slots, and the tokens they bring."""

    pools: Pools
    table_cpu: Tensor
    """[P, L] int64, host: the page table."""
    q: Tensor
    """[T, Hq, D], device: of the largest batch."""
    k: Tensor
    """[T, Hk, D], device."""
    v: Tensor
    """[T, Hk, Dv], device."""

    @classmethod
    def of(cls, setting: Setting, device: str) -> _Room:
        """Make pools with a row of pages for each request, and tokens."""
        generator = torch.Generator().manual_seed(setting.seed)
        layer, length = setting.layer, setting.max_context_len
        num_tokens = MOST_REQUESTS * VERIFIED
        width = -(-length // setting.page_size) * setting.page_size
        table = torch.zeros(setting.num_rows, length, dtype=torch.int64)
        for row in range(1, MOST_REQUESTS + 1):
            first = (row - 1) * width + setting.page_size
            table[row] = torch.arange(first, first + length)

        def drawn(count: int, heads: int, size: int) -> Tensor:
            shape = count, heads, size
            return torch.randn(shape, generator=generator).to(setting.dtype).to(device)

        sizes = (
            (layer.tp_k_head_num, layer.qk_head_dim),
            (layer.tp_k_head_num, layer.v_head_dim),
        )
        keys, values = (drawn(setting.num_slots, *size) for size in sizes)
        return cls(
            pools=Pools(table.int().to(device), keys, values, setting.page_size, layer),
            table_cpu=table,
            q=drawn(num_tokens, layer.tp_q_head_num, layer.qk_head_dim),
            k=drawn(num_tokens, *sizes[0]),
            v=drawn(num_tokens, *sizes[1]),
        )


class SteadyRun:
    """One backend that runs decode and verify steps, within `Rig.running`.

    Batch sizes and longest contexts come round again and again, as buckets do; the other lengths
    do not. So what is kept for a bucket is full after a round, and what is kept for a batch is not.

    Args:
        rig: backend and device.
        scenario: the sizes of model and cache.
        seed: of lengths and rows.
    """

    def __init__(self, rig: Rig, scenario: Scenario, seed: int) -> None:
        self._rig = rig
        self._setting = scenario.setting(seed)
        self._dice = dice_for(scenario, seed)
        self._room = _Room.of(self._setting, rig.device)
        build: Callable[..., AttentionBackend] = rig.subject.build
        self.backend = build(self._room.pools)
        """The one that runs."""
        self._round: list[_Shape] = []
        self.num_steps = 0
        """Steps that were run, those of `settle` aside."""

    @property
    def shapes(self) -> Sequence[_Shape]:
        """List the forwards, batch sizes and longest contexts of a round."""
        longest = self._setting.max_context_len
        lengths = torch.linspace(VERIFIED, longest, _NUM_LONGEST).long().tolist()
        without = self._rig.subject.without
        forwards = [own for own in _FORWARDS if own.value not in without]
        return list(product(forwards, range(1, MOST_REQUESTS + 1), lengths))

    def run(self, num_steps: int) -> None:
        """Run so many steps, each of another batch."""
        for _ in range(num_steps):
            if not self._round:
                self._round = self._dice.sample(self.shapes, len(self.shapes))
            self._step(self._round.pop(), self._dice)
        self.num_steps += num_steps

    def settle(self) -> None:
        """Run the same few steps, so that what is kept of the last batches is always the same."""
        dice = random.Random(0)  # noqa: S311 - no secrets
        for _ in range(3):
            self._step((Forward.DECODE, 2, self._setting.max_context_len), dice)

    def _step(self, shape: _Shape, dice: random.Random) -> None:
        forward, num_requests, longest = shape
        new = 1 if forward is Forward.DECODE else VERIFIED
        lengths = [dice.randint(new, longest) for _ in range(num_requests)]
        lengths[dice.randrange(num_requests)] = longest
        rows = dice.sample(range(1, MOST_REQUESTS + 1), num_requests)
        batch = _batch(forward, rows, lengths, new, self._room.table_cpu)
        scene = self._rig.supply(self._scene(batch, new)).on(self._rig.device)
        self.backend.init_forward_metadata(scene.batch)
        scene.forward(self.backend)

    def _scene(self, batch: ForwardBatch, new: int) -> Scene:
        """Put a batch into the pools; what is true of it nobody asks."""
        room, num_tokens = self._room, batch.num_tokens
        return Scene(
            pools=room.pools,
            layer=self._setting.layer,
            batch=batch,
            q=room.q[:num_tokens],
            k=room.k[:num_tokens],
            v=room.v[:num_tokens],
            contexts=(),
            counts=[new] * batch.batch_size,
            visible=(),
        )


def _batch(
    forward: Forward, rows: Sequence[int], lengths: Sequence[int], new: int, table_cpu: Tensor
) -> ForwardBatch:
    """Make a batch of so many new tokens a request, on the host."""
    pool_rows, seq_lens = torch.tensor(rows), torch.tensor(lengths)
    positions = (seq_lens[:, None] - new + torch.arange(new)).flatten()
    owners = pool_rows[:, None].expand(-1, new).flatten()
    return ForwardBatch(
        mode=forward.mode,
        input_ids=torch.zeros_like(positions),
        positions=positions,
        req_pool_indices=pool_rows,
        seq_lens=seq_lens,
        out_cache_loc=table_cpu[owners, positions],
        seq_lens_cpu=seq_lens.clone(),
        seq_lens_sum=sum(lengths),
    )
