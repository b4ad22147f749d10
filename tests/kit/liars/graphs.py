"""Liars about what a captured graph may be replayed with. Eagerly, all are right."""

from __future__ import annotations

from dataclasses import replace

import torch
from backend_caps_torch_native import TorchPadded
from torch import Tensor

from backend_caps import GraphMetadata, HostSeqLens, SharedReadsEnd
from backend_caps.protocols import ModelRunner
from backend_caps.relay.streams import DeviceStreams
from backend_caps.runtime.forward_batch import ForwardBatch
from tests.kit.liars.bases import Graphed
from tests.kit.specimen import liar, specimens_of

_MOST = 64
"""Requests, and tokens, that there is room for."""
_EXACT = HostSeqLens.EXACT
_DEVICE = GraphMetadata.DEVICE


@liar("replay", seen="torchtitan#3709")
class GraphsAlways(Graphed):
    """Claims graphs of every kind, and plans mixed batches by host code, which no capture has."""

    def __init__(self, site: ModelRunner) -> None:
        super().__init__(site)
        self._device = torch.get_device_module(self.shared.device)
        self._plan: tuple[Tensor, Tensor] | None = None

    def captured(self, batch: ForwardBatch) -> ForwardBatch:
        """Take lengths from the last plan."""
        extends = batch.extend_seq_lens
        if extends is None:
            return batch
        if self._plan is None or not self._device.is_current_stream_capturing():
            self._plan = batch.seq_lens.clone(), extends.clone()
        return replace(batch, seq_lens=self._plan[0], extend_seq_lens=self._plan[1])


@liar("replay", seen="modelled on indices that a graph has room for")
class TokensOfThePool(Graphed):
    """Claims graphs, and reads as many tokens of all requests as the pool has slots.

    Requests that share their first tokens have more.
    """

    def captured(self, batch: ForwardBatch) -> ForwardBatch:
        """Cut the contexts of the last requests."""
        num_slots = len(self._kv_pool.get_key_buffer(0))
        behind = batch.seq_lens.cumsum(0) - batch.seq_lens
        left = (num_slots - behind).clamp(min=1)
        return replace(batch, seq_lens=batch.seq_lens.minimum(left))


@liar("replay", seen="modelled on sglang#27301", host_seq_lens=_EXACT)
class LongestBaked(Graphed):
    """Claims graphs, and cuts contexts at the longest that the host knows at the capture."""

    def captured(self, batch: ForwardBatch) -> ForwardBatch:
        """Cut them."""
        assert batch.seq_lens_cpu is not None
        return replace(batch, seq_lens=batch.seq_lens.clamp(max=int(batch.seq_lens_cpu.max())))


@liar("replay", seen="modelled on a host sum in a capture", host_seq_lens=_EXACT)
class SumBaked(Graphed):
    """Claims graphs, and gathers as many tokens as the host's sum is at the capture."""

    def captured(self, batch: ForwardBatch) -> ForwardBatch:
        """Cut contexts there."""
        assert batch.seq_lens_sum is not None
        return replace(batch, seq_lens=batch.seq_lens.clamp(max=batch.seq_lens_sum))


@liar("replay", seen="modelled on a host count in a capture", host_seq_lens=_EXACT)
class BatchSizeBaked(Graphed):
    """Claims graphs, and attends for as many requests as the host counts at the capture."""

    def captured(self, batch: ForwardBatch) -> ForwardBatch:
        """Make the others padding."""
        assert batch.seq_lens_cpu is not None
        num_requests = max(1, int((batch.seq_lens_cpu > 0).sum()))
        is_there = torch.arange(batch.batch_size, device=batch.seq_lens.device) < num_requests
        return replace(batch, seq_lens=batch.seq_lens * is_there)


class _Planned(Graphed):
    """Take the rows of requests from a plan that is written out of the graph."""

    def __init__(self, site: ModelRunner) -> None:
        super().__init__(site)
        self.rows = self.shared.new_zeros(_MOST, dtype=torch.int64)

    def init_forward_metadata_out_graph(self, batch: ForwardBatch) -> None:
        self.rows[: batch.batch_size].copy_(batch.req_pool_indices)

    def captured(self, batch: ForwardBatch) -> ForwardBatch:
        return replace(batch, req_pool_indices=self.rows[: batch.batch_size])


@liar("replay", seen="modelled on a plan cached by size", graph_metadata=_DEVICE)
class PlanKept(_Planned):
    """Claims graphs, and plans again only where the batch has another size than the last one."""

    _planned = -1

    def init_forward_metadata_out_graph(self, batch: ForwardBatch) -> None:
        """Plan, or keep the plan."""
        if self._planned != batch.batch_size:
            super().init_forward_metadata_out_graph(batch)
        self._planned = batch.batch_size


@liar("replay", seen="modelled on sglang#22958", graph_metadata=_DEVICE)
class StalePadding(Graphed):
    """Claims graphs, and leaves to padded tokens the slots of whoever was there before."""

    def __init__(self, site: ModelRunner) -> None:
        super().__init__(site)
        self._slots = self.shared.new_zeros(_MOST, dtype=torch.int64)

    def init_forward_metadata_out_graph(self, batch: ForwardBatch) -> None:
        """Copy the slots of real tokens."""
        slots = self._slots[: batch.num_tokens]
        slots.copy_(torch.where(batch.out_cache_loc == 0, slots, batch.out_cache_loc))

    def attended(self, batch: ForwardBatch) -> ForwardBatch:
        """Write there."""
        return replace(batch, out_cache_loc=self._slots[: batch.num_tokens])


@liar("replay", seen="modelled on sglang#37633", graph_metadata=_DEVICE)
class PlanBesideReplay(_Planned):
    """Claims graphs, and plans on a stream of its own, for which no replay waits."""

    def __init__(self, site: ModelRunner) -> None:
        super().__init__(site)
        self._streams = DeviceStreams(self.shared.device)
        self._side = self._streams.private_stream()

    def init_forward_metadata_out_graph(self, batch: ForwardBatch) -> None:
        """Plan there."""
        self._side.wait_stream(self._streams.current_stream())
        with self._streams.using(self._side):
            super().init_forward_metadata_out_graph(batch)


@liar("replay", seen="mini-sglang#103", graph_metadata=GraphMetadata.HOST, host_seq_lens=_EXACT)
class PinnedInFlight(Graphed):
    """Claims graphs, and plans in pinned memory that the next plan is written to, copied or not."""

    def __init__(self, site: ModelRunner) -> None:
        super().__init__(site)
        self._lengths = self.shared.new_zeros(_MOST, dtype=torch.int64)
        self._pinned = DeviceStreams(self.shared.device).empty_pinned(_MOST)

    def init_forward_metadata_out_graph(self, batch: ForwardBatch) -> None:
        """Plan on the host."""
        assert batch.seq_lens_cpu is not None
        plan = self._pinned[: batch.batch_size].copy_(batch.seq_lens_cpu)
        self._lengths[: batch.batch_size].copy_(plan, non_blocking=True)

    def captured(self, batch: ForwardBatch) -> ForwardBatch:
        """Take the lengths from the plan."""
        return replace(batch, seq_lens=self._lengths[: batch.batch_size])


@liar("replay", seen="modelled on sglang#18803", graph_metadata=_DEVICE)
class RowsCached(Graphed):
    """Claims graphs, and reads the page table's row of a request once, whoever has it later."""

    def __init__(self, site: ModelRunner) -> None:
        super().__init__(site)
        self.table = torch.full_like(self.shared, -1)

    def init_forward_metadata_out_graph(self, batch: ForwardBatch) -> None:
        """Read the rows that were not read before."""
        rows = batch.req_pool_indices
        is_new = (self.table[rows, :1] == -1) & (batch.seq_lens > 0)[:, None]
        self.table[rows] = torch.where(is_new, self.shared[rows], self.table[rows])


@liar("addresses", seen="modelled on a workspace of the last capture", graph_metadata=_DEVICE)
class PlanMovesAtCapture(_Planned):
    """Claims graphs, and keeps their plan when a larger one is captured, but writes to another."""

    def __init__(self, site: ModelRunner) -> None:
        super().__init__(site)
        self._size, self._old = 0, [self.rows]

    def init_forward_metadata_out_graph(self, batch: ForwardBatch) -> None:
        """Make room, and plan."""
        self.make_room(batch.batch_size)
        super().init_forward_metadata_out_graph(batch)

    def make_room(self, size: int) -> None:
        """Move to other memory where there is more than ever."""
        if size > self._size:
            self._size, self.rows = size, torch.zeros_like(self.rows)
            self._old.append(self.rows)


@liar("addresses", seen="modelled on a workspace that grows", graph_metadata=_DEVICE)
class PlanMoves(PlanMovesAtCapture):
    """Claims graphs, and moves its plan when a larger batch runs eagerly."""

    def init_forward_metadata(self, batch: ForwardBatch) -> None:
        """Prepare, and make room."""
        super().init_forward_metadata(batch)
        self.make_room(batch.batch_size)


@liar("metadata", seen="modelled on torchtitan#3709")
class PlansOutside(_Planned):
    """Claims IN_GRAPH, and makes its plan out of the graph."""


@liar("metadata", seen="modelled on sglang#27301", graph_metadata=_DEVICE, host_seq_lens=_EXACT)
class UploadsLengths(_Planned):
    """Claims DEVICE, and uploads the mirror before each replay."""

    def __init__(self, site: ModelRunner) -> None:
        super().__init__(site)
        self._lengths = torch.zeros_like(self.rows)

    def init_forward_metadata_out_graph(self, batch: ForwardBatch) -> None:
        """Upload it."""
        assert batch.seq_lens_cpu is not None
        super().init_forward_metadata_out_graph(batch)
        self._lengths[: batch.batch_size].copy_(batch.seq_lens_cpu, non_blocking=True)

    def captured(self, batch: ForwardBatch) -> ForwardBatch:
        """Take the lengths from there."""
        return replace(super().captured(batch), seq_lens=self._lengths[: batch.batch_size])


@liar("metadata", seen="sglang#27301", graph_metadata=_DEVICE, sync_free_prepare=False)
class AsksForLongest(_Planned):
    """Claims DEVICE, and asks the device for the longest context before each replay."""

    def init_forward_metadata_out_graph(self, batch: ForwardBatch) -> None:
        """Wait for it."""
        if int(batch.seq_lens.max()) >= 0:
            super().init_forward_metadata_out_graph(batch)


@liar("reads-end", seen="modelled on sglang#26380", shared_reads_end=SharedReadsEnd.PRE_REPLAY)
class TableReadInGraph(TorchPadded):
    """Claims PRE_REPLAY, and reads the page table in the graph."""


@liar("reads-end", seen="modelled on sglang#26380", shared_reads_end=SharedReadsEnd.IN_REPLAY)
class TableReadByLayers(Graphed):
    """Claims IN_REPLAY, and reads the page table again in each layer, behind the event."""

    def attended(self, batch: ForwardBatch) -> ForwardBatch:
        """Read it again."""
        self.init_forward_metadata_in_graph(batch)
        return batch


@liar(
    "reads-end",
    seen="modelled on sglang#26380",
    graph_metadata=_DEVICE,
    shared_reads_end=SharedReadsEnd.PRE_REPLAY,
)
class TableCopiedBeside(Graphed):
    """Claims PRE_REPLAY, and copies the page table on a stream that nobody marks the end of."""

    def __init__(self, site: ModelRunner) -> None:
        super().__init__(site)
        self.table = torch.zeros_like(self.shared)
        self._streams = DeviceStreams(self.shared.device)
        self._side, self._copied = self._streams.private_stream(), self._streams.external_event()

    def init_forward_metadata_out_graph(self, batch: ForwardBatch) -> None:
        """Copy it."""
        super().init_forward_metadata_out_graph(batch)
        self._side.wait_stream(self._streams.current_stream())
        with self._streams.using(self._side):
            self.table.copy_(self.shared)
        self._copied.record(self._side)

    def captured(self, batch: ForwardBatch) -> ForwardBatch:
        """Wait for the copy, within the graph."""
        self._streams.current_stream().wait_event(self._copied)
        return batch


@liar("replay", seen="modelled on a bound of padding in a capture")
class CapturedWidth(Graphed):
    """Claims replays, and captures contexts as far as their lengths were, rounded up to 256."""

    def __init__(self, site: ModelRunner) -> None:
        super().__init__(site)
        self.table = self.shared[:, :256]


LIARS = specimens_of(__name__)
"""All of them."""
