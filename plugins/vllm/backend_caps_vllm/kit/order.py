"""The order of requests in which vLLM's runner describes a batch: decodes before prompts.

A builder that asks for it takes the first requests of a batch for decodes. The kit mixes them, so
its batch is put in order, and the tokens with it.

Shapes: B requests and T tokens in the batch.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from backend_caps.runtime.forward_batch import ForwardBatch


@dataclass(frozen=True, slots=True)
class OrderedBatch:
    """A batch in vLLM's order."""

    batch: ForwardBatch
    places: Tensor | None = None
    """[T] int64, device: where each token is in the batch of the kit; None: where it is here."""

    @classmethod
    def of(cls, batch: ForwardBatch, decode_query_len: int) -> OrderedBatch:
        """Put requests with as many tokens as a decode first, and others behind by their tokens.

        Sync: none; the host knows how many tokens each request brings.

        Args:
            batch: the kit's.
            decode_query_len: tokens of each request in a verify; 1: there are none.
        """
        counts = batch.extend_seq_lens_cpu
        if counts is None or batch.extend_seq_lens is None:
            return cls(batch)
        keys = [(count != decode_query_len, count) for count in counts]
        order = sorted(range(len(keys)), key=keys.__getitem__)
        if order == [*range(len(keys))]:
            return cls(batch)
        return cls(*_reordered(batch, order))

    def taken(self, tokens: Tensor) -> Tensor:
        """Put tokens of the kit in vLLM's order: [T, ...]."""
        return tokens if self.places is None else tokens.index_select(0, self.places)

    def returned(self, tokens: Tensor) -> Tensor:
        """Put tokens in vLLM's order back in the kit's: [T, ...]."""
        if self.places is None:
            return tokens
        return torch.empty_like(tokens).index_copy(0, self.places, tokens)


def _reordered(batch: ForwardBatch, order: list[int]) -> tuple[ForwardBatch, Tensor]:
    """Reorder requests by an order of the host, and tokens by the lengths on the device."""
    lens, prefixes = batch.extend_seq_lens, batch.extend_prefix_lens
    assert lens is not None, "what is mixed has extend lengths"
    assert prefixes is not None, "what is mixed has extend lengths"
    rows = torch.tensor(order).to(lens.device, non_blocking=True)
    ends, new_lens = lens.cumsum(0), lens.index_select(0, rows)
    new_ends = new_lens.cumsum(0)
    tokens = torch.arange(batch.num_tokens, device=lens.device)
    owners = torch.searchsorted(new_ends, tokens, right=True).clamp(max=len(rows) - 1)
    shift = (ends - lens).index_select(0, rows) - (new_ends - new_lens)
    places = tokens + shift.index_select(0, owners)

    def on_host(lengths: tuple[int, ...] | None) -> tuple[int, ...] | None:
        return None if lengths is None else tuple(lengths[place] for place in order)

    def bounds(lengths: Tensor | None) -> Tensor | None:
        return None if lengths is None else lengths[order]

    ordered = replace(
        batch,
        input_ids=batch.input_ids.index_select(0, places),
        positions=batch.positions.index_select(0, places),
        out_cache_loc=batch.out_cache_loc.index_select(0, places),
        req_pool_indices=batch.req_pool_indices.index_select(0, rows),
        seq_lens=batch.seq_lens.index_select(0, rows),
        extend_seq_lens=new_lens,
        extend_prefix_lens=prefixes.index_select(0, rows),
        extend_seq_lens_cpu=on_host(batch.extend_seq_lens_cpu),
        extend_prefix_lens_cpu=on_host(batch.extend_prefix_lens_cpu),
        seq_lens_cpu=bounds(batch.seq_lens_cpu),
        seq_lens_cpu_upper_bound=bounds(batch.seq_lens_cpu_upper_bound),
        last_token_indices=None,
    )
    return ordered, places
