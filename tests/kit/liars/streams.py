"""Liars about order: what the host waits for, and what streams do not wait for.

Each is right where every step is waited for. Their graphs are none of the matter: they claim none.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from backend_caps import HostSeqLens
from backend_caps.protocols import ModelRunner
from backend_caps.relay import DeviceStreams
from backend_caps.runtime import AttentionLayer, ForwardBatch
from backend_caps.runtime.batch import ForwardMode
from tests.kit.liars.bases import Padded
from tests.kit.specimen import NO_GRAPHS, liar, specimens_of

_MOST_REQUESTS = 64


class _Beside(Padded):
    """Have a stream of its own."""

    def __init__(self, site: ModelRunner) -> None:
        super().__init__(site)
        self._streams = DeviceStreams(self._table.device)
        self._side = self._streams.private_stream()


@liar("sync-free-prepare", seen="sglang#27301", **NO_GRAPHS)
class LongestInPrepare(Padded):
    """Claims a sync-free prepare, and asks the device for the longest context."""

    def seen(self, batch: ForwardBatch) -> ForwardBatch:
        """Cut at it."""
        return replace(batch, seq_lens=batch.seq_lens.clamp(max=int(batch.seq_lens.max())))


@liar("sync-free-prepare", seen="modelled on sglang#23500", **NO_GRAPHS)
class MaskInPrepare(Padded):
    """Claims a sync-free prepare, and picks the rows that are not padding by a mask."""

    def seen(self, batch: ForwardBatch) -> ForwardBatch:
        """Keep them for statistics."""
        self._rows = batch.req_pool_indices[batch.req_pool_indices > 0]
        return batch


@liar("sync-free-prepare", seen="modelled on flashinfer#3338", **NO_GRAPHS)
class ListForOne(Padded):
    """Claims a sync-free prepare, and has a short cut for one request, by its length."""

    def seen(self, batch: ForwardBatch) -> ForwardBatch:
        """Take it."""
        if batch.batch_size > 1:
            return batch
        return replace(batch, seq_lens=torch.full_like(batch.seq_lens, batch.seq_lens.tolist()[0]))


@liar("sync-free-prepare", seen="modelled on mini-sglang#103", **NO_GRAPHS)
class EverySecondPlan(_Beside):
    """Claims a sync-free prepare, and waits where it comes back to the first of two buffers."""

    _num_plans = 0

    def seen(self, batch: ForwardBatch) -> ForwardBatch:
        """Wait for whoever reads it."""
        self._num_plans += 1
        if self._num_plans % 2 == 0:
            self._streams.current_stream().synchronize()
        return batch


@liar("sync-free-prepare", seen="modelled on vllm#57352", sync_free_prepare=False, **NO_GRAPHS)
class LongestInForward(Padded):
    """Claims nothing of its prepare, and asks for the longest context in each layer."""

    def before(self, batch: ForwardBatch) -> ForwardBatch:
        """Ask for it."""
        self._longest = batch.seq_lens.max().item()
        return batch


@liar("races", seen="modelled on sglang#37633", **NO_GRAPHS)
class PlanBeside(_Beside):
    """Plans on a stream of its own, and no layer waits for the plan."""

    def init_forward_metadata(self, batch: ForwardBatch) -> None:
        """Prepare there."""
        self._side.wait_stream(self._streams.current_stream())
        with self._streams.using(self._side):
            super().init_forward_metadata(batch)


@liar("races", seen="modelled on sglang#37633", **NO_GRAPHS)
class PlanBesideForOne(PlanBeside):
    """Plans on a stream of its own, and waits for plans of two requests and more."""

    def init_forward_metadata(self, batch: ForwardBatch) -> None:
        """Wait for some."""
        super().init_forward_metadata(batch)
        if batch.batch_size > 1:
            self._streams.current_stream().wait_stream(self._side)


@liar("races", seen="modelled on sglang#30435", **NO_GRAPHS)
class PlanTooEarly(_Beside):
    """Plans on a stream of its own, which waits for the batch before."""

    def init_forward_metadata(self, batch: ForwardBatch) -> None:
        """Wait for the plan; the next one waits for what is there now."""
        with self._streams.using(self._side):
            super().init_forward_metadata(batch)
        self._streams.current_stream().wait_stream(self._side)
        self._side.wait_stream(self._streams.current_stream())


@liar("races", seen="sglang#34076", **NO_GRAPHS)
class FreedPlan(_Beside):
    """Plans beside by a copy of the lengths, which is freed before the plan has read it."""

    def seen(self, batch: ForwardBatch) -> ForwardBatch:
        """Read the copy on the other stream, without `record_stream`."""
        lengths = batch.seq_lens.clone()
        self._side.wait_stream(self._streams.current_stream())
        with self._streams.using(self._side):
            read = lengths + 0
        del lengths
        self._streams.current_stream().wait_stream(self._side)
        return replace(batch, seq_lens=read)


@liar("races", seen="mini-sglang#103", host_seq_lens=HostSeqLens.EXACT, **NO_GRAPHS)
class PinnedPlan(_Beside):
    """Plans on the host, in one pinned buffer that is written anew while it is copied."""

    def __init__(self, site: ModelRunner) -> None:
        super().__init__(site)
        self._pinned = self._streams.empty_pinned(_MOST_REQUESTS)

    def seen(self, batch: ForwardBatch) -> ForwardBatch:
        """Copy the lengths from it."""
        assert batch.seq_lens_cpu is not None
        plan = self._pinned[: batch.batch_size].copy_(batch.seq_lens_cpu)
        return replace(batch, seq_lens=plan.to(self._table.device, non_blocking=True))


@liar("races", seen="modelled on mini-sglang#103", host_seq_lens=HostSeqLens.EXACT, **NO_GRAPHS)
class PinnedRing(_Beside):
    """Plans by a library in two pinned buffers, where three steps may be in flight."""

    def __init__(self, site: ModelRunner) -> None:
        super().__init__(site)
        self._ring = [self._streams.empty_pinned(_MOST_REQUESTS) for _ in range(2)]

    def seen(self, batch: ForwardBatch) -> ForwardBatch:
        """Copy the lengths from them; torch does not see who writes there."""
        assert batch.seq_lens_cpu is not None
        self._ring.reverse()
        plan = self._ring[0][: batch.batch_size]
        plan.numpy()[:] = batch.seq_lens_cpu.numpy()
        return replace(batch, seq_lens=plan.to(self._table.device, non_blocking=True))


@liar("races", seen="sglang#18803", **NO_GRAPHS)
class RowsAfterDraft(_Beside):
    """Reads the page table on a stream of its own, behind a draft-extend that nobody holds up."""

    def init_forward_metadata(self, batch: ForwardBatch) -> None:
        """Fetch the rows for the next draft."""
        super().init_forward_metadata(batch)
        if batch.mode is ForwardMode.DRAFT_EXTEND:
            self._side.wait_stream(self._streams.current_stream())
            with self._streams.using(self._side):
                self._streams.keep_alive(batch.req_pool_indices)
                self._rows = self._table[batch.req_pool_indices]


@liar("races", seen="modelled on sglang#31687", **NO_GRAPHS)
class StoreBeside(_Beside):
    """Stores decoded tokens on a stream of its own, and attends before they are there."""

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
        """Store them first, as the host sees it."""
        if not save_kv_cache or batch.mode is not ForwardMode.DECODE:
            return super().forward(q, k, v, layer, batch, save_kv_cache=save_kv_cache)
        self._side.wait_stream(self._streams.current_stream())
        with self._streams.using(self._side):
            heads = layer.tp_k_head_num
            keys, values = (own.view(len(own), heads, -1) for own in (k, v))
            self._kv_pool.set_kv_buffer(layer, batch.out_cache_loc, keys, values)
        output = super().forward(q, k, v, layer, batch, save_kv_cache=False)
        self._streams.current_stream().wait_stream(self._side)
        return output


LIARS = specimens_of(__name__)
"""All of them."""
