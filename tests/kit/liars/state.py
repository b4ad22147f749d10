"""Liars about state: what a forward leaves changed, and what padding changes.

A first batch without padding comes out right in each.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from backend_caps_torch_native import TorchPadded
from torch import Tensor

from backend_caps.protocols import ModelRunner
from backend_caps.runtime.attention import AttentionBackend
from backend_caps.runtime.forward_batch import ForwardBatch
from backend_caps.runtime.model.layers import AttentionLayer
from tests.kit.liars.liar import Liar, liar
from tests.kit.liars.padded import Padded


class _Forward(Padded):
    """Have the pools, and make something of a forward."""

    def __init__(self, site: ModelRunner) -> None:
        super().__init__(site)
        self._table = site.req_to_token_pool.req_to_token
        self._kv_pool = site.token_to_kv_pool

    def before(self, batch: ForwardBatch) -> ForwardBatch:
        """Do what comes before a forward."""
        return batch

    def after(self, batch: ForwardBatch) -> None:
        """Do what comes behind it."""

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        layer: AttentionLayer,
        batch: ForwardBatch,
        *,
        save_kv_cache: bool = True,
    ) -> Tensor:
        """Attend between the two."""
        batch = self.before(batch)
        output = super().forward(q, k, v, layer, batch, save_kv_cache=save_kv_cache)
        self.after(batch)
        return output


class LengthsInPlace(_Forward):
    """Leaves the batch alone, it says, and adds the next token to its lengths in place."""

    def after(self, batch: ForwardBatch) -> None:
        """Make ready for the next step."""
        batch.seq_lens.add_(1)


class BoundInPlace(_Forward):
    """Leaves the batch alone, it says, and rounds the host's lengths up to pages in place."""

    def after(self, batch: ForwardBatch) -> None:
        """Round them."""
        if batch.seq_lens_cpu is not None:
            batch.seq_lens_cpu.add_(15).div_(16, rounding_mode="floor").mul_(16)


class SortedTable(_Forward):
    """Leaves the page table alone, it says, and sorts its batch's rows for faster reads."""

    def after(self, batch: ForwardBatch) -> None:
        """Sort them."""
        rows = batch.req_pool_indices
        self._table[rows] = self._table[rows].sort(descending=True).values


class PageOverrun(_Forward):
    """Leaves others' KV alone, it says, and fills one slot more where a token ends its page."""

    def after(self, batch: ForwardBatch) -> None:
        """Fill it behind the forward, so that this one is right."""
        slots, keys = batch.out_cache_loc, self._kv_pool.get_key_buffer(0)
        behind = torch.where(slots % 16 == 15, slots + 1, 0).clamp(max=len(keys) - 1)
        keys[behind] = keys[slots]


class SavesAnyway(Padded):
    """Takes `save_kv_cache=False`, and saves."""

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        layer: AttentionLayer,
        batch: ForwardBatch,
        *,
        save_kv_cache: bool = True,
    ) -> Tensor:
        """Ignore it."""
        del save_kv_cache
        return super().forward(q, k, v, layer, batch, save_kv_cache=True)


class RoundedKeys(_Forward):
    """Stores keys as they were given, it says, and rounds them as a smaller cache would."""

    def after(self, batch: ForwardBatch) -> None:
        """Round them behind the forward, so that this one is right."""
        keys, slots = self._kv_pool.get_key_buffer(0), batch.out_cache_loc
        keys[slots] = keys[slots].to(torch.float16).to(keys.dtype)


class NewTokensApart(Padded):
    """Takes `save_kv_cache=False`, and attends to what is stored without the batch's own."""

    def __init__(self, site: ModelRunner) -> None:
        super().__init__(site)
        self._kv_pool = site.token_to_kv_pool

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        layer: AttentionLayer,
        batch: ForwardBatch,
        *,
        save_kv_cache: bool = True,
    ) -> Tensor:
        """Hide them, and put them back."""
        if save_kv_cache:
            return super().forward(q, k, v, layer, batch, save_kv_cache=True)
        values, slots = self._kv_pool.get_value_buffer(0), batch.out_cache_loc
        stored = values[slots]
        values[slots] = 0
        output = super().forward(q, k, v, layer, batch, save_kv_cache=False)
        values[slots] = stored
        return output


class PaddingToSlotOne(_Forward):
    """Claims graphs, and writes padded tokens behind the slot that is theirs."""

    def before(self, batch: ForwardBatch) -> ForwardBatch:
        """Spread them, so that no slot is written twice."""
        slots = batch.out_cache_loc
        return replace(batch, out_cache_loc=torch.where(slots == 0, 1, slots))


class SplitByMean(Padded):
    """Claims graphs, and splits contexts in four by their mean, which padding brings down."""

    def init_forward_metadata_in_graph(self, batch: ForwardBatch) -> None:
        """Cut behind the fourth split."""
        mean = batch.seq_lens.sum() // batch.batch_size
        cut = replace(batch, seq_lens=batch.seq_lens.minimum(4 * mean))
        super().init_forward_metadata_in_graph(cut)


class ScaledByBatch(TorchPadded):
    """Claims graphs, and scales queries by the largest of the batch, padding's too."""

    def _attend(self, q: Tensor, keys: Tensor, values: Tensor, scaling: float) -> Tensor:
        largest = q.abs().amax()
        return super()._attend(q / largest * largest, keys, values, scaling)


class MetadataBySize(Padded):
    """Owes each batch its metadata, and keeps those of the first batch of a size."""

    def __init__(self, site: ModelRunner) -> None:
        super().__init__(site)
        self._site, self._of_size = site, dict[tuple[int, int], AttentionBackend]()

    def init_forward_metadata(self, batch: ForwardBatch) -> None:
        """Prepare where the size is new."""
        size = batch.batch_size, batch.num_tokens
        if size not in self._of_size:
            self._of_size[size] = TorchPadded(self._site)
            self._of_size[size].init_forward_metadata(batch)
        self._backend = self._of_size[size]


class FirstLongest(Padded):
    """Owes each batch its whole context, and cuts at the longest of its first one."""

    _longest: Tensor | None = None

    def seen(self, batch: ForwardBatch) -> ForwardBatch:
        """Cut there."""
        self._longest = batch.seq_lens.max() if self._longest is None else self._longest
        return replace(batch, seq_lens=batch.seq_lens.minimum(self._longest))


def _touches(kind: type[AttentionBackend], *, seen: str) -> Liar:
    return liar(kind, seen=seen, check="inputs-untouched", graph_replay=frozenset())


def _padding(kind: type[AttentionBackend], *, seen: str, **claims: object) -> Liar:
    return liar(kind, seen=seen, check="padding-harmless", **claims)


def _keeps(kind: type[AttentionBackend], *, seen: str) -> Liar:
    return liar(kind, seen=seen, check="batches-apart", graph_replay=frozenset())


LIARS: tuple[Liar, ...] = (
    _touches(LengthsInPlace, seen="modelled on sglang#31369"),
    _touches(BoundInPlace, seen="modelled on sglang#26738"),
    _touches(SortedTable, seen="modelled on sglang#26380"),
    _touches(PageOverrun, seen="modelled on sglang#18803"),
    _touches(SavesAnyway, seen="modelled on diffusers#12605"),
    _touches(RoundedKeys, seen="modelled on a cache of another dtype"),
    _touches(NewTokensApart, seen="modelled on diffusers#12605"),
    _padding(PaddingToSlotOne, seen="modelled on sglang#22958"),
    _padding(SplitByMean, seen="modelled on sglang#22958"),
    _padding(ScaledByBatch, seen="modelled on torchtitan#3709", batch_invariant=False),
    _keeps(MetadataBySize, seen="modelled on sglang#30435"),
    _keeps(FirstLongest, seen="modelled on sglang#30435"),
)
