"""The rig's model in pieces, and drawn steps that change all that a step can change."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from backend_caps import BatchKind, HostSeqLens
from backend_caps.relay import DeviceStreams
from backend_caps.runtime import AttentionBackend, ForwardBatch
from backend_caps.runtime.graphs.pieces import PieceModel, PieceRunner, Pieces
from backend_caps.runtime.graphs.runner import Computed
from tests.runtime.graphs.rig import (
    BUCKETS,
    MAX_CONTEXT_LEN,
    MAX_REQUESTS,
    NUM_SLOTS,
    Rig,
    Site,
    padded,
    random_requests,
)

COUNTS = (4, 16)
"""Sizes in tokens."""


class PieceRig(Rig):
    """A rig whose forwards run in pieces."""

    def __init__(
        self,
        streams: DeviceStreams,
        counts: Iterable[int] = COUNTS,
        *,
        build: Callable[[Site], AttentionBackend] = padded,
        has_head: bool = True,
    ) -> None:
        smallest = BUCKETS[BatchKind.SINGLE_TOKEN_DECODE][:1]
        super().__init__(streams, smallest, build=build, host_seq_lens=HostSeqLens.EXACT)
        head = self.model.lm_head if has_head else None
        self._piece_model = PieceModel(states=self.model.hidden_states, head=head)
        self.in_pieces = PieceRunner(self.cut(counts), self.backend)

    def cut(self, counts: Iterable[int]) -> Pieces:
        """Capture pieces in the rig's memory."""
        return Pieces(self._piece_model, counts, self.place)

    def replay(self, batch: ForwardBatch) -> Computed:
        """Run a forward in pieces."""
        with self.streams.using(self.stream):
            return self.in_pieces.replay(batch)


def drawn_step(rig: Rig, kind: BatchKind, seed: int) -> ForwardBatch:
    """Give every row other slots, and draw a batch with its requests, lengths and tokens."""
    slots = torch.randperm(NUM_SLOTS - 1, generator=torch.Generator().manual_seed(seed)) + 1
    table = slots.view(MAX_REQUESTS, MAX_CONTEXT_LEN).int()
    with rig.streams.using(rig.stream):
        rig.site.req_to_token_pool.req_to_token[1:].copy_(table)
    return rig.batch(random_requests(kind, seed), kind=kind, seed=seed)


def difference(rig: Rig, batch: ForwardBatch) -> float:
    """Measure how far the scores of a replay are from those of an eager forward; NaN is far."""
    eager, replayed = rig.eager(batch), rig.replayed(batch)
    return _largest(eager - replayed)


def _largest(difference: Tensor) -> float:
    return float(difference.abs().nan_to_num(nan=torch.inf).max())
