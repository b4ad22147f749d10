"""Liars about what comes out."""

from __future__ import annotations

import random
from dataclasses import replace

import torch
from backend_caps_torch_native import TorchPadded
from torch import Tensor

from backend_caps import OneOf
from backend_caps.runtime.batch import ForwardMode
from backend_caps.runtime.forward_batch import ForwardBatch
from tests.kit.liars.bases import Shown, Turned
from tests.kit.specimen import NO_GRAPHS, liar, specimens_of

_CHANCE = random.SystemRandom()
"""Chance that no seed of the process has a part in."""


@liar("numerics", seen="modelled on sglang#20201")
class LargePages(TorchPadded):
    """Takes every page size, and is wrong by a token where pages are larger than one."""

    def _attend(self, q: Tensor, keys: Tensor, values: Tensor, scaling: float) -> Tensor:
        keys = keys if len(keys) % 16 else torch.roll(keys, 1, 0)
        return super()._attend(q, keys, values, scaling)


@liar("numerics", seen="modelled on sglang#37505", page_sizes=OneOf({16}))
class PageEdge(Shown):
    """Claims pages of 16, and where a context ends one leaves its last token out."""

    def visible(self, batch: ForwardBatch, seen: Tensor) -> Tensor:
        """Count whole pages one too short."""
        del batch
        ends = seen.sum(2, keepdim=True)
        is_last = torch.arange(seen.shape[2], device=seen.device) == ends - 1
        return seen & ~(is_last & (ends % 16 == 0))


@liar("numerics", seen="modelled on page tables of a fixed width")
class ShortTable(Shown):
    """Claims every context, and reads the first 256 tokens of one."""

    def visible(self, batch: ForwardBatch, seen: Tensor) -> Tensor:
        """Look no further."""
        del batch
        return seen & (torch.arange(seen.shape[2], device=seen.device) < 256)


@liar("numerics", seen="modelled on scratch for as many parts of a context as most have")
class TwoThousandTokens(Shown):
    """Takes contexts of any length, and hides what is behind the first 2,048 tokens of one."""

    def visible(self, batch: ForwardBatch, seen: Tensor) -> Tensor:
        """Have room for those."""
        del batch
        return seen & (torch.arange(seen.shape[2], device=seen.device) < 2048)


@liar("numerics", seen="modelled on kernels that add up in the inputs' dtype")
class HalfSums(TorchPadded):
    """Claims float32, and adds up in float16."""

    def _attend(self, q: Tensor, keys: Tensor, values: Tensor, scaling: float) -> Tensor:
        return super()._attend(q.half(), keys.half(), values.half(), scaling).to(q.dtype)


@liar(
    "numerics",
    seen="modelled on heads that are padded to a power of two",
    head_sizes=OneOf({16, 80}),
)
class UnscaledEighty(TorchPadded):
    """Claims heads of 80, and scales their scores as if they were padded to 128."""

    def _attend(self, q: Tensor, keys: Tensor, values: Tensor, scaling: float) -> Tensor:
        scaling = scaling * (80 / 128) ** 0.5 if q.shape[-1] == 80 else scaling
        return super()._attend(q, keys, values, scaling)


@liar("numerics", seen="modelled on kernels that may be called without a scale")
class UsualScaling(TorchPadded):
    """Claims to scale as each layer says, and divides by the root of the head size."""

    def _attend(self, q: Tensor, keys: Tensor, values: Tensor, scaling: float) -> Tensor:
        del scaling
        return super()._attend(q, keys, values, q.shape[-1] ** -0.5)


@liar(
    "numerics",
    seen="modelled on sums that are kept in float32 and not rounded",
    dtypes=frozenset({"float32", "bfloat16"}),
    kv_cache_dtypes=frozenset({"float32", "bfloat16"}),
)
class WideOutput(TorchPadded):
    """Claims bfloat16, and gives float32 back."""

    def _attend(self, q: Tensor, keys: Tensor, values: Tensor, scaling: float) -> Tensor:
        return super()._attend(q, keys, values, scaling).float()


@liar("numerics", seen="modelled on vllm#55581")
class GroupsInterleaved(TorchPadded):
    """Claims grouped queries, and takes every n-th head for a group, not n in a row."""

    def _attend(self, q: Tensor, keys: Tensor, values: Tensor, scaling: float) -> Tensor:
        heads = torch.arange(q.shape[1], device=q.device)
        of_group = heads.reshape(-1, keys.shape[1]).T.flatten()
        return super()._attend(q[:, of_group], keys, values, scaling)[:, of_group.argsort()]


@liar("numerics", seen="sglang#37505")
class MixedPrefixShort(Shown):
    """Claims mixed batches, and counts the prefix of their decode rows one too short."""

    def taken(self, batch: ForwardBatch) -> ForwardBatch:
        """Take the lengths of the step before."""
        if batch.mode is not ForwardMode.MIXED or batch.extend_seq_lens is None:
            return batch
        return replace(batch, seq_lens=batch.seq_lens - (batch.extend_seq_lens == 1).long())


@liar("numerics", seen="modelled on vllm#22945", tolerances={"float32": 1e-9})
class TighterThanTrue(TorchPadded):
    """States a tolerance for float32 that no float32 keeps."""


@liar("roles", seen="diffusers#12605")
class TreeDropped(Shown):
    """Claims trees, and drops the mask without a word."""

    def taken(self, batch: ForwardBatch) -> ForwardBatch:
        """Take each token for the next of a chain."""
        return replace(batch, tree_mask=None)


@liar("roles", seen="modelled on diffusers#12605")
class BeamsSeeSiblings(Shown):
    """Claims draft steps over beams, each of which sees what its siblings drafted."""

    def taken(self, batch: ForwardBatch) -> ForwardBatch:
        """See all of a draft step's context."""
        mask = batch.tree_mask
        if batch.mode is not ForwardMode.DECODE or mask is None:
            return batch
        return replace(batch, tree_mask=torch.ones_like(mask))


@liar("roles", seen="modelled on sglang#20201")
class TwoBeams(Shown):
    """Claims three beams, and from the third on they see what the second sees."""

    def visible(self, batch: ForwardBatch, seen: Tensor) -> Tensor:
        """Have masks for two."""
        if batch.mode is not ForwardMode.DECODE:
            return seen
        return seen[:, torch.arange(seen.shape[1], device=seen.device).clamp(max=1)]


@liar("roles", seen="modelled on sglang#29876")
class ExtendAsDecode(Shown):
    """Claims the draft-extend role, and has each of its tokens see all, as a decode's one does."""

    def visible(self, batch: ForwardBatch, seen: Tensor) -> Tensor:
        """See up to the context's end."""
        is_extend = batch.mode is ForwardMode.DRAFT_EXTEND
        return seen[:, -1:].expand_as(seen) if is_extend else seen


@liar("determinism", seen="modelled on split contexts that are added up by atomics", **NO_GRAPHS)
class AtomicSums(Turned):
    """Claims to be deterministic, and adds up in the order in which parts happen to end."""

    def is_turned(self, batch: ForwardBatch, rows: Tensor) -> Tensor:
        """Leave it to chance."""
        del batch
        return rows >= len(rows) * _CHANCE.getrandbits(1)


@liar("determinism", seen="modelled on kernels that tune themselves while they serve", **NO_GRAPHS)
class SecondRunDiffers(Turned):
    """Claims to be deterministic, and takes another kernel once it has timed the first."""

    _is_tuned = False

    def is_turned(self, batch: ForwardBatch, rows: Tensor) -> Tensor:
        """Tune at the first forward."""
        del batch
        is_turned = rows >= (0 if self._is_tuned else len(rows))
        self._is_tuned = True
        return is_turned


@liar(
    "batch-invariance",
    seen="modelled on plans that cut contexts by the whole batch's work",
    batch_invariant=True,
)
class SplitsByBatch(Turned):
    """Claims batch invariance, and splits contexts by the number of requests."""

    def is_turned(self, batch: ForwardBatch, rows: Tensor) -> Tensor:
        """Split otherwise for more than two."""
        return rows >= (0 if batch.batch_size > 2 else len(rows))


@liar(
    "batch-invariance",
    seen="modelled on tiles that hold rows of two requests",
    batch_invariant=True,
)
class PairsOfRows(Turned):
    """Claims batch invariance, and adds the second of each pair of rows up from the other end."""

    def is_turned(self, batch: ForwardBatch, rows: Tensor) -> Tensor:
        """Go there and back."""
        del batch
        return rows % 2 == 1


LIARS = specimens_of(__name__)
"""All of them."""
