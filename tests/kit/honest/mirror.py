"""Odd backends about what they read of lengths on the host."""

from __future__ import annotations

from dataclasses import replace

from backend_caps import HostSeqLens
from backend_caps.runtime.forward_batch import ForwardBatch
from tests.kit.honest.odd import Odd, odd
from tests.kit.liars.padded import Padded


class MirrorWhereThere(Padded):
    """Claims NONE, and cuts by the mirror where it is there all the same."""

    def seen(self, batch: ForwardBatch) -> ForwardBatch:
        """Cut at the longest, where that is known."""
        mirror = batch.seq_lens_cpu
        if mirror is None:
            return batch
        return replace(batch, seq_lens=batch.seq_lens.clamp(max=int(mirror.max())))


class RoundedBound(Padded):
    """Claims UPPER_BOUND, and rounds the bound up to whole pages."""

    def seen(self, batch: ForwardBatch) -> ForwardBatch:
        """Cut where the page ends."""
        bound = batch.seq_lens_cpu_upper_bound
        if bound is None:  # a prompt's: the mirror is there
            return batch
        longest = -(-int(bound.max()) // 16) * 16
        return replace(batch, seq_lens=batch.seq_lens.clamp(max=longest))


ODD: tuple[Odd, ...] = (
    odd(MirrorWhereThere, check="mirror-absent"),
    odd(RoundedBound, check="mirror-bound", host_seq_lens=HostSeqLens.UPPER_BOUND),
)
