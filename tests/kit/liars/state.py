"""Liars about state: what a forward leaves changed, and what padding changes.

A first batch without padding comes out right in each.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from backend_caps_torch_native import TorchPadded
from torch import Tensor

from backend_caps.kit.scenarios import MOST_REQUESTS
from backend_caps.protocols import ModelRunner
from backend_caps.runtime import AttentionBackend, ForwardBatch
from tests.kit.liars.bases import Padded
from tests.kit.specimen import NO_GRAPHS, liar, specimens_of


@liar("inputs-untouched", seen="modelled on sglang#31369", **NO_GRAPHS)
class LengthsInPlace(Padded):
    """Leaves the batch alone, it says, and adds the next token to its lengths in place."""

    def after(self, batch: ForwardBatch, output: Tensor) -> Tensor:
        """Make ready for the next step."""
        batch.seq_lens.add_(1)
        return output


@liar("inputs-untouched", seen="modelled on sglang#26738", **NO_GRAPHS)
class BoundInPlace(Padded):
    """Leaves the batch alone, it says, and rounds the host's lengths up to pages in place."""

    def after(self, batch: ForwardBatch, output: Tensor) -> Tensor:
        """Round them."""
        if batch.seq_lens_cpu is not None:
            batch.seq_lens_cpu.add_(15).div_(16, rounding_mode="floor").mul_(16)
        return output


@liar("inputs-untouched", seen="modelled on sglang#26380", **NO_GRAPHS)
class SortedTable(Padded):
    """Leaves the page table alone, it says, and sorts its batch's rows for faster reads."""

    def after(self, batch: ForwardBatch, output: Tensor) -> Tensor:
        """Sort them."""
        rows = batch.req_pool_indices
        self._table[rows] = self._table[rows].sort(descending=True).values
        return output


@liar("inputs-untouched", seen="modelled on sglang#18803", **NO_GRAPHS)
class PageOverrun(Padded):
    """Leaves others' KV alone, it says, and fills one slot more where a token ends its page."""

    def after(self, batch: ForwardBatch, output: Tensor) -> Tensor:
        """Fill it behind the forward, so that this one is right."""
        slots, keys = batch.out_cache_loc, self._kv_pool.get_key_buffer(0)
        behind = torch.where(slots % 16 == 15, slots + 1, 0).clamp(max=len(keys) - 1)
        keys[behind] = keys[slots]
        return output


@liar("inputs-untouched", seen="modelled on diffusers#12605", **NO_GRAPHS)
class SavesAnyway(Padded):
    """Takes `save_kv_cache=False`, and saves."""

    def saved(self, batch: ForwardBatch, *, save_kv_cache: bool) -> bool:
        """Ignore it."""
        del batch, save_kv_cache
        return True


@liar("inputs-untouched", seen="modelled on a cache of another dtype", **NO_GRAPHS)
class RoundedKeys(Padded):
    """Stores keys as they were given, it says, and rounds them as a smaller cache would."""

    def after(self, batch: ForwardBatch, output: Tensor) -> Tensor:
        """Round them behind the forward, so that this one is right."""
        keys, slots = self._kv_pool.get_key_buffer(0), batch.out_cache_loc
        keys[slots] = keys[slots].to(torch.float16).to(keys.dtype)
        return output


@liar("inputs-untouched", seen="modelled on diffusers#12605", **NO_GRAPHS)
class NewTokensApart(Padded):
    """Takes `save_kv_cache=False`, and attends to what is stored without the batch's own."""

    def saved(self, batch: ForwardBatch, *, save_kv_cache: bool) -> bool:
        """Hide those that are stored."""
        values, slots = self._kv_pool.get_value_buffer(0), batch.out_cache_loc
        self._stored = None if save_kv_cache else values[slots]
        if not save_kv_cache:
            values[slots] = 0
        return save_kv_cache

    def after(self, batch: ForwardBatch, output: Tensor) -> Tensor:
        """Put them back."""
        if self._stored is not None:
            self._kv_pool.get_value_buffer(0)[batch.out_cache_loc] = self._stored
        return output


@liar("padding-harmless", seen="modelled on sglang#22958")
class PaddingToSlotOne(Padded):
    """Claims graphs, and writes padded tokens behind the slot that is theirs."""

    def before(self, batch: ForwardBatch) -> ForwardBatch:
        """Spread them, so that no slot is written twice."""
        slots = batch.out_cache_loc
        return replace(batch, out_cache_loc=torch.where(slots == 0, 1, slots))


# Four times the mean is above every context of at most four requests.
@liar(
    "padding-harmless",
    seen="modelled on sglang#22958",
    takes=lambda own: own.max_requests == MOST_REQUESTS,
)
class SplitByMean(Padded):
    """Claims graphs, and splits contexts in four by their mean, which padding brings down."""

    def init_forward_metadata_in_graph(self, batch: ForwardBatch) -> None:
        """Cut behind the fourth split."""
        mean = batch.seq_lens.sum() // batch.batch_size
        cut = replace(batch, seq_lens=batch.seq_lens.minimum(4 * mean))
        super().init_forward_metadata_in_graph(cut)


@liar("padding-harmless", seen="modelled on torchtitan#3709", batch_invariant=False)
class ScaledByBatch(TorchPadded):
    """Claims graphs, and scales queries by the largest of the batch, padding's too."""

    def _attend(self, q: Tensor, keys: Tensor, values: Tensor, scaling: float) -> Tensor:
        largest = q.abs().amax()
        return super()._attend(q / largest * largest, keys, values, scaling)


@liar("batches-apart", seen="modelled on sglang#30435", **NO_GRAPHS)
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


@liar("batches-apart", seen="modelled on sglang#30435", **NO_GRAPHS)
class FirstLongest(Padded):
    """Owes each batch its whole context, and cuts at the longest of its first one."""

    _longest: Tensor | None = None

    def seen(self, batch: ForwardBatch) -> ForwardBatch:
        """Cut there."""
        self._longest = batch.seq_lens.max() if self._longest is None else self._longest
        return replace(batch, seq_lens=batch.seq_lens.minimum(self._longest))


LIARS = specimens_of(__name__)
"""All of them."""
