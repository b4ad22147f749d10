"""Odd backends about streams and state: each does what liars do wrong, and does it right."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from backend_caps import HostSeqLens
from backend_caps.protocols import ModelRunner
from backend_caps.relay.streams import DeviceStreams
from backend_caps.runtime.forward_batch import ForwardBatch
from backend_caps.runtime.model.layers import AttentionLayer
from tests.kit.honest.odd import Odd, odd
from tests.kit.liars.padded import Padded


class PlanBesideJoined(Padded):
    """Plans on a stream of its own, which waits and is waited for, and keeps what it reads."""

    def __init__(self, site: ModelRunner) -> None:
        super().__init__(site)
        self._streams = DeviceStreams(site.req_to_token_pool.req_to_token.device)
        self._side = self._streams.private_stream()

    def init_forward_metadata(self, batch: ForwardBatch) -> None:
        """Prepare there."""
        main, lengths = self._streams.current_stream(), batch.seq_lens.clone()
        self._side.wait_stream(main)
        with self._streams.using(self._side):
            self._streams.keep_alive(lengths)
            copied = lengths + 0
        main.wait_stream(self._side)
        self._streams.keep_alive(copied)
        super().init_forward_metadata(replace(batch, seq_lens=copied))


class PinnedOnce(Padded):
    """Uploads lengths from pinned memory, from another piece of it in each step."""

    def __init__(self, site: ModelRunner) -> None:
        super().__init__(site)
        self._streams = DeviceStreams(site.req_to_token_pool.req_to_token.device)

    def seen(self, batch: ForwardBatch) -> ForwardBatch:
        """Upload them."""
        lengths, pinned = batch.seq_lens_cpu, self._streams.empty_pinned(batch.batch_size)
        assert lengths is not None
        uploaded = pinned.copy_(lengths).to(self._streams.device, non_blocking=True)
        return replace(batch, seq_lens=uploaded)


class PinnedRingThatWaits(PinnedOnce):
    """Waits for the copy from its one pinned buffer, and claims no sync-free prepare."""

    def __init__(self, site: ModelRunner) -> None:
        super().__init__(site)
        self._pinned = self._streams.empty_pinned(64)
        self._copied = self._streams.event()

    def seen(self, batch: ForwardBatch) -> ForwardBatch:
        """Wait, upload, and note when that is done."""
        assert batch.seq_lens_cpu is not None
        self._copied.synchronize()
        plan = self._pinned[: batch.batch_size].copy_(batch.seq_lens_cpu)
        uploaded = plan.to(self._streams.device, non_blocking=True)
        self._copied.record(self._streams.current_stream())
        return replace(batch, seq_lens=uploaded)


class ScratchInPadding(Padded):
    """Uses the padding's slot of the KV cache for numbers of its own."""

    def __init__(self, site: ModelRunner) -> None:
        super().__init__(site)
        self._kv_pool = site.token_to_kv_pool

    def seen(self, batch: ForwardBatch) -> ForwardBatch:
        """Write some there."""
        self._kv_pool.get_key_buffer(0)[0].fill_(batch.batch_size)
        return batch


class NanForPadding(Padded):
    """Returns NaN for padded tokens, which are nobody's."""

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
        """Fill theirs."""
        output = super().forward(q, k, v, layer, batch, save_kv_cache=save_kv_cache)
        return output.masked_fill((batch.out_cache_loc == 0)[:, None], torch.nan)


_UPLOADS: dict[str, object] = {"host_seq_lens": HostSeqLens.EXACT, "graph_replay": frozenset()}

ODD: tuple[Odd, ...] = (
    odd(PlanBesideJoined, check="races", graph_replay=frozenset()),
    odd(PinnedOnce, check="races", **_UPLOADS),
    odd(PinnedRingThatWaits, check="sync-free-prepare", sync_free_prepare=False, **_UPLOADS),
    odd(ScratchInPadding, check="inputs-untouched"),
    odd(NanForPadding, check="padding-harmless"),
)
