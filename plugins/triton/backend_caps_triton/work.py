"""What a forward's kernels share: the tables that the device cuts it by.

Shapes: B requests and T tokens in the batch, L the longest context, S slots in the KV cache, Hq
query heads, Hk key and value heads, D and Dv their sizes, M entries in a tree mask, W items of
work.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from backend_caps.protocols import ForwardBatch
from backend_caps_triton.ops import attend, plan
from backend_caps_triton.tiling import Tiling, num_tiles_of, tile_of

_NUM_FIELDS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Cutting:
    """How finely forwards are cut, so that every processor of a device has some of it."""

    num_shares: int
    """Items on top of the tiles: into how many, at most, long contexts are split."""
    min_chunk: int
    """Positions below which a context is not split: a second pass would cost more."""

    @classmethod
    def for_device(cls, device: torch.device, num_kv_heads: int) -> Cutting:
        """Choose by the device's processors: two programs each, and one for each head anyway."""
        if device.type != "cuda":
            return cls(num_shares=4, min_chunk=64)  # simulated, or the host: no processors to fill
        processors = torch.cuda.get_device_properties(device).multi_processor_count
        return cls(num_shares=max(1, 2 * processors // num_kv_heads), min_chunk=256)


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """The items of one forward."""

    slots: Tensor
    """[B, L] int32, device: where contexts stand in the KV cache, copied from the page table."""
    requests: Tensor
    """[B, 8] int64, device: what `planning` names."""
    owners: Tensor
    """[W] int32, device: the request of each item; -1 for one that is not needed."""
    tile: int
    """Tokens of an item, at most."""
    cutting: Cutting
    is_ragged: bool
    """Whether requests bring different numbers of tokens, so that some may be nobody's."""

    def attend(
        self, q: Tensor, keys: Tensor, values: Tensor, tree_mask: Tensor | None, scaling: float
    ) -> Tensor:
        """Attend from this forward's tokens to their contexts.

        q          [T, Hq, D], device  heads side by side
        keys       [S, Hk, D], device
        values     [S, Hk, Dv], device
        tree_mask  [M] bool, device, or None where each token sees all before it
        returns    [T, Hq, Dv], device, in q's dtype; zeros for padded tokens

        Stream: the current one. Sync: none. Allocates: the output, and parts of split contexts.
        Keeps: nothing. Capture: yes.
        """
        make = q.new_zeros if self.is_ragged else q.new_empty
        output = make(*q.shape[:2], values.shape[2])
        if not output.shape[0] or not self.requests.shape[0]:
            return output.zero_()
        sizes = Tiling.of(q, keys, values, self.tile)
        # A split context has at most two parts for each share that it takes of `num_shares`.
        num_parts = 2 * self.cutting.num_shares
        weights = q.new_empty(num_parts, sizes.head_blocks, sizes.rows, dtype=torch.float32)
        parts = q.new_empty(*weights.shape, values.shape[2], dtype=torch.float32)
        attend(
            q,
            keys,
            values,
            self.slots,
            self.requests,
            self.owners,
            tree_mask,
            parts,
            weights,
            output,
            scaling,
            self.tile,
        )
        return output


class WorkBuffers:
    """Memory for the tables of forwards of up to a size: one at a time.

    Args:
        max_requests: the most that one has.
        max_items: the most items of one, `Cutting.num_shares` included.
        width: L.
        device: where they are.
        cutting: how finely forwards are cut.
    """

    def __init__(
        self,
        *,
        max_requests: int,
        max_items: int,
        width: int,
        device: torch.device,
        cutting: Cutting,
    ) -> None:
        def table(*shape: int, dtype: torch.dtype = torch.int32) -> Tensor:
            return torch.empty(shape, dtype=dtype, device=device)

        self._slots = table(max_requests, width)
        self._requests = table(max_requests, _NUM_FIELDS, dtype=torch.int64)
        self._owners = table(max_items)
        self._cutting = cutting

    def plan(self, batch: ForwardBatch, req_to_token: Tensor) -> Work:
        """Cut a batch into items, on the device.

        Stream: the current one.
        Sync: none. Allocates: nothing. Keeps: nothing; page table and lengths are copied from.
        Capture: yes. Exact: until the next call, which writes to the same memory.
        """
        num_requests, num_tokens = len(batch.req_pool_indices), len(batch.out_cache_loc)
        is_ragged = batch.extend_seq_lens is not None
        tile = tile_of(num_requests, num_tokens)
        num_tiles = num_tiles_of(num_requests, num_tokens, tile, is_ragged=is_ragged)
        num_items = self._cutting.num_shares + num_tiles
        # Kernels would write behind tables that are too small, and nobody would say so.
        is_within = num_requests <= len(self._slots) and num_items <= len(self._owners)
        assert is_within, (
            f"{num_requests} requests, {num_tokens} tokens: more than was allocated for"
        )
        work = Work(
            slots=self._slots[:num_requests],
            requests=self._requests[:num_requests],
            owners=self._owners[:num_items],
            tile=tile,
            cutting=self._cutting,
            is_ragged=is_ragged,
        )
        plan(
            batch.req_pool_indices,
            batch.seq_lens,
            batch.extend_seq_lens,
            req_to_token,
            work.slots,
            work.requests,
            work.owners,
            num_tokens,
            tile,
            self._cutting.num_shares,
            self._cutting.min_chunk,
        )
        return work
