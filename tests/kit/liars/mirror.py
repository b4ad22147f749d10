"""Liars about what they read of lengths on the host.

All are right with the mirror. Their graphs are none of the matter, and they claim none.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from backend_caps import HostSeqLens, OneOf
from backend_caps.runtime.batch import ForwardMode
from backend_caps.runtime.forward_batch import ForwardBatch
from tests.kit.liars.bases import Padded
from tests.kit.specimen import liar, specimens_of

_NO_GRAPHS: dict[str, Any] = {"graph_replay": frozenset(), "sync_free_prepare": False}
_BOUNDED = {**_NO_GRAPHS, "host_seq_lens": HostSeqLens.UPPER_BOUND}
_OPTED_OUT = "modelled on sglang#26738"


def _up_to(batch: ForwardBatch, longest: int) -> ForwardBatch:
    return replace(batch, seq_lens=batch.seq_lens.clamp(max=longest))


@liar("mirror-absent", seen="sglang#26738", **_NO_GRAPHS)
class LongestOnHost(Padded):
    """Claims NONE, and asks the mirror for the longest context."""

    def seen(self, batch: ForwardBatch) -> ForwardBatch:
        """Cut at the longest."""
        assert batch.seq_lens_cpu is not None
        return _up_to(batch, int(batch.seq_lens_cpu.max()))


@liar("mirror-absent", seen="sglang#29876", **_NO_GRAPHS)
class SumInDraftExtend(Padded):
    """Claims NONE, and sizes a workspace by the mirror's sum, in draft-extend alone."""

    def seen(self, batch: ForwardBatch) -> ForwardBatch:
        """Make the workspace."""
        if batch.mode is ForwardMode.DRAFT_EXTEND:
            assert batch.seq_lens_sum is not None
            self._workspace = batch.seq_lens.new_empty(batch.seq_lens_sum)
        return batch


@liar("mirror-absent", seen="sglang#32690", **_NO_GRAPHS)
class PairWithoutLimit(Padded):
    """Claims NONE, and cuts by `max_context_len`, which its parts have and it has not."""

    max_context_len: int

    def seen(self, batch: ForwardBatch) -> ForwardBatch:
        """Cut at the mirror's longest, or at the longest there may be."""
        mirror = batch.seq_lens_cpu
        return _up_to(batch, self.max_context_len if mirror is None else int(mirror.max()))


@liar("mirror-absent", seen=_OPTED_OUT, **_NO_GRAPHS)
class SumOrNothing(Padded):
    """Claims NONE, and takes a sum that is not there for zero."""

    def seen(self, batch: ForwardBatch) -> ForwardBatch:
        """Cut at the sum."""
        return _up_to(batch, batch.seq_lens_sum or 0)


@liar("mirror-absent", seen=_OPTED_OUT, **_NO_GRAPHS)
class SumOfTrees(Padded):
    """Claims NONE, and takes as much of a tree mask as the mirror's sum says that there is."""

    def seen(self, batch: ForwardBatch) -> ForwardBatch:
        """Cut the mask."""
        if batch.tree_mask is None:
            return batch
        tokens_each = batch.num_tokens // batch.batch_size
        return replace(batch, tree_mask=batch.tree_mask[: (batch.seq_lens_sum or 0) * tokens_each])


@liar("mirror-absent", seen=_OPTED_OUT, **_NO_GRAPHS)
class MirrorForOne(Padded):
    """Claims NONE, and has a short cut for one request, by the mirror."""

    def seen(self, batch: ForwardBatch) -> ForwardBatch:
        """Take the short cut."""
        if batch.batch_size > 1:
            return batch
        assert batch.seq_lens_cpu is not None
        return _up_to(batch, int(batch.seq_lens_cpu[0]))


@liar("mirror-absent", seen=_OPTED_OUT, page_sizes=OneOf({16}), **_NO_GRAPHS)
class MirrorAtPageEdge(Padded):
    """Claims NONE, and without a mirror loses the last token where it ends a page."""

    def seen(self, batch: ForwardBatch) -> ForwardBatch:
        """Count whole pages, and what is behind them."""
        if batch.seq_lens_cpu is not None:
            return batch
        lengths = batch.seq_lens
        return replace(batch, seq_lens=torch.where(lengths % 16 == 0, lengths - 1, lengths))


@liar("mirror-absent", seen="modelled on sglang#30435", **_NO_GRAPHS)
class MirrorOfPrompts(Padded):
    """Claims NONE, and keeps the longest of the last mirror that it saw: the prompts'."""

    _longest = 2**31

    def seen(self, batch: ForwardBatch) -> ForwardBatch:
        """Cut at it."""
        if batch.seq_lens_cpu is not None:
            self._longest = int(batch.seq_lens_cpu.max())
        return _up_to(batch, self._longest)


@liar("mirror-absent", seen="modelled on sglang#30435", **_NO_GRAPHS)
class LengthsOfLastStep(Padded):
    """Claims NONE, and without a mirror takes the lengths of the step before."""

    def seen(self, batch: ForwardBatch) -> ForwardBatch:
        """Take back what this step added."""
        if batch.seq_lens_cpu is not None:
            return batch
        return replace(batch, seq_lens=batch.seq_lens - batch.num_tokens // batch.batch_size)


@liar("mirror-absent", seen="modelled on vllm#29134", **_NO_GRAPHS)
class BoundUnclaimed(Padded):
    """Claims NONE, and reads the bound, in verify alone."""

    def seen(self, batch: ForwardBatch) -> ForwardBatch:
        """Cut at the bound."""
        if batch.mode is not ForwardMode.VERIFY:
            return batch
        assert batch.seq_lens_cpu_upper_bound is not None
        return _up_to(batch, int(batch.seq_lens_cpu_upper_bound.max()))


@liar("mirror-absent", seen="modelled on vllm#29134", **_BOUNDED)
class MirrorBesideBound(Padded):
    """Claims UPPER_BOUND, and reads the mirror in draft steps, whose bound it takes for absent."""

    def seen(self, batch: ForwardBatch) -> ForwardBatch:
        """Cut at the one or the other."""
        is_draft = batch.mode is ForwardMode.DECODE and batch.tree_mask is not None
        told = batch.seq_lens_cpu if is_draft else batch.seq_lens_cpu_upper_bound
        assert told is not None
        return _up_to(batch, int(told.max()))


@liar("context-bound", seen="modelled on sglang#32690", **_NO_GRAPHS)
class LimitIsGuessed(Padded):
    """Claims max_context_len_known, and without a mirror verifies over 256 tokens at most."""

    def seen(self, batch: ForwardBatch) -> ForwardBatch:
        """Cut at the guess."""
        if batch.mode is not ForwardMode.VERIFY or batch.seq_lens_cpu is not None:
            return batch
        return _up_to(batch, 256)


@liar("context-bound", seen="modelled on sglang#26738", **_NO_GRAPHS)
class MaskIsFull(Padded):
    """Claims max_context_len_known, and takes a tree mask's size for that of its contexts."""

    def seen(self, batch: ForwardBatch) -> ForwardBatch:
        """Make the last context as long as the mask says."""
        if batch.tree_mask is None:
            return batch
        total = len(batch.tree_mask) * batch.batch_size // batch.num_tokens
        lengths = batch.seq_lens.clone()
        lengths[-1] = (total - lengths[:-1].sum()).clamp(max=self._table.shape[1])
        return replace(batch, seq_lens=lengths)


@liar("mirror-bound", seen="modelled on vllm#29134", **_BOUNDED)
class BoundIsLength(Padded):
    """Claims UPPER_BOUND, and takes the bound for the length."""

    def seen(self, batch: ForwardBatch) -> ForwardBatch:
        """Upload it."""
        bound = batch.seq_lens_cpu_upper_bound
        assert bound is not None
        return replace(batch, seq_lens=bound.to(batch.seq_lens.device))


@liar("mirror-bound", seen="modelled on vllm#29134", **_BOUNDED)
class BoundIsLengthOfOne(Padded):
    """Claims UPPER_BOUND, and takes the bound for the length where there is one request."""

    def seen(self, batch: ForwardBatch) -> ForwardBatch:
        """Fill the one length by a host value."""
        bound = batch.seq_lens_cpu_upper_bound
        assert bound is not None
        if batch.batch_size > 1:
            return batch
        return replace(batch, seq_lens=torch.full_like(batch.seq_lens, int(bound[0])))


@liar("mirror-bound", seen="modelled on vllm#29134", **_BOUNDED)
class FirstHalfIsFull(Padded):
    """Claims UPPER_BOUND, and masks the second of two splits of the bound, not the first."""

    def seen(self, batch: ForwardBatch) -> ForwardBatch:
        """See all of the first split."""
        bound = batch.seq_lens_cpu_upper_bound
        assert bound is not None
        first = (bound // 2).to(batch.seq_lens.device)
        return replace(batch, seq_lens=torch.maximum(batch.seq_lens, first))


@liar("mirror-bound", seen="modelled on vllm#29134", **_BOUNDED)
class SumOfBounds(Padded):
    """Claims UPPER_BOUND, and takes the sum of bounds for the number of tokens in contexts."""

    def seen(self, batch: ForwardBatch) -> ForwardBatch:
        """Say of each context token whose it is."""
        bound = batch.seq_lens_cpu_upper_bound
        assert bound is not None
        rows, total = torch.arange(batch.batch_size), int(bound.sum())
        self._owners = torch.repeat_interleave(
            rows.to(batch.seq_lens.device), batch.seq_lens, output_size=total
        )
        return batch


LIARS = specimens_of(__name__)
"""All of them."""
