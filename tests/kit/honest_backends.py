"""Honest backends that look like liars: each does what some liar does wrong, and does it right."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import MutableMapping
from dataclasses import replace
from typing import Any, ClassVar

import torch
from backend_caps_torch_native import TorchNative, TorchPadded
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from backend_caps import GraphMetadata, HostSeqLens, SharedReadsEnd, protocols
from backend_caps.protocols import ModelRunner
from backend_caps.relay import DeviceStreams
from backend_caps.runtime import AttentionBackend, ForwardBatch
from tests.kit.liars.bases import Graphed, Padded, Turned
from tests.kit.liars.whole import NATIVE
from tests.kit.specimen import NO_GRAPHS, honest, specimens_of

_UPLOADS: dict[str, Any] = {"host_seq_lens": HostSeqLens.EXACT, "graph_replay": frozenset()}
_MOST = 128
"""Masks that are kept."""


@honest("numerics", tolerances={"float32": 5e-3})
class StatedHalfSums(TorchPadded):
    """Claims float32, adds up in float16, and states a tolerance that this keeps."""

    def _attend(self, q: Tensor, keys: Tensor, values: Tensor, scaling: float) -> Tensor:
        return super()._attend(q.half(), keys.half(), values.half(), scaling).to(q.dtype)


@honest("batch-invariance", batch_invariant=True)
class OtherEndFirst(Turned):
    """Claims batch invariance, and adds contexts up from their last token to their first."""


@honest("declaration-hygiene")
class MethodsOfPart:
    """Has another's methods for its own, which its class does not name."""

    def __init__(self, site: ModelRunner) -> None:
        part: AttentionBackend = TorchPadded(site)
        self.init_forward_metadata = part.init_forward_metadata
        self.init_cuda_graph_state = part.init_cuda_graph_state
        self.init_forward_metadata_out_graph = part.init_forward_metadata_out_graph
        self.init_forward_metadata_in_graph = part.init_forward_metadata_in_graph
        self.forward = part.forward


@honest("mirror-absent")
class MirrorWhereThere(Padded):
    """Claims NONE, and cuts by the mirror where it is there all the same."""

    def seen(self, batch: ForwardBatch) -> ForwardBatch:
        """Cut at the longest, where that is known."""
        mirror = batch.seq_lens_cpu
        if mirror is None:
            return batch
        return replace(batch, seq_lens=batch.seq_lens.clamp(max=int(mirror.max())))


@honest("mirror-bound", host_seq_lens=HostSeqLens.UPPER_BOUND)
class RoundedBound(Padded):
    """Claims UPPER_BOUND, and rounds the bound up to whole pages."""

    def seen(self, batch: ForwardBatch) -> ForwardBatch:
        """Cut where the page ends."""
        bound = batch.seq_lens_cpu_upper_bound
        if bound is None:  # a prompt's: the mirror is there
            return batch
        longest = -(-int(bound.max()) // 16) * 16
        return replace(batch, seq_lens=batch.seq_lens.clamp(max=longest))


@honest(
    "reads-end", graph_metadata=GraphMetadata.DEVICE, shared_reads_end=SharedReadsEnd.PRE_REPLAY
)
class TableCopiedFirst(Graphed):
    """Claims PRE_REPLAY, and copies the page table in front of each replay."""

    def __init__(self, site: ModelRunner) -> None:
        super().__init__(site)
        self.table = torch.zeros_like(self.shared)

    def init_forward_metadata_out_graph(self, batch: ForwardBatch) -> None:
        """Copy the rows of the batch."""
        rows = batch.req_pool_indices
        self.table[rows] = self.shared[rows]


@honest("replay", graph_metadata=GraphMetadata.HOST, host_seq_lens=HostSeqLens.EXACT)
class LengthsUploaded(Graphed):
    """Claims HOST, and uploads the mirror in front of each replay, to memory that stays."""

    def init_cuda_graph_state(self, max_bs: int, max_num_tokens: int) -> None:
        """Make the memory."""
        super().init_cuda_graph_state(max_bs, max_num_tokens)
        self._lengths = self.shared.new_zeros(max_bs, dtype=torch.int64)

    def init_forward_metadata_out_graph(self, batch: ForwardBatch) -> None:
        """Upload it."""
        assert batch.seq_lens_cpu is not None
        self._lengths[: batch.batch_size].copy_(batch.seq_lens_cpu, non_blocking=True)

    def captured(self, batch: ForwardBatch) -> ForwardBatch:
        """Take the lengths from there."""
        return replace(batch, seq_lens=self._lengths[: batch.batch_size])


@honest("addresses")
class EagerRoomGrows(Graphed):
    """Claims graphs, and has room for eager plans that grows, and other room for theirs."""

    def __init__(self, site: ModelRunner) -> None:
        super().__init__(site)
        self._room = self.shared.new_empty(0)

    def init_forward_metadata(self, batch: ForwardBatch) -> None:
        """Make room for the largest batch so far."""
        size = batch.batch_size
        if size > len(self._room):
            self._room = torch.empty_like(batch.seq_lens)
        self._room[:size].copy_(batch.seq_lens)
        super().init_forward_metadata(replace(batch, seq_lens=self._room[:size]))


@honest("races", **NO_GRAPHS)
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


@honest("races", **_UPLOADS)
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


@honest("sync-free-prepare", sync_free_prepare=False, **_UPLOADS)
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


@honest("inputs-untouched")
class ScratchInPadding(Padded):
    """Uses the padding's slot of the KV cache for numbers of its own."""

    def seen(self, batch: ForwardBatch) -> ForwardBatch:
        """Write some there."""
        self._kv_pool.get_key_buffer(0)[0].fill_(batch.batch_size)
        return batch


@honest("padding-harmless")
class NanForPadding(Padded):
    """Returns NaN for padded tokens, which are no request's."""

    def after(self, batch: ForwardBatch, output: Tensor) -> Tensor:
        """Fill theirs."""
        return output.masked_fill((batch.out_cache_loc == 0)[:, None], torch.nan)


@honest("memory", **NATIVE)
class LatestMasks(TorchNative):
    """Keeps masks by the lengths of a batch, and of them the latest 128."""

    def __init__(self, runner: protocols.ModelRunner) -> None:
        super().__init__(runner)
        self._masks: OrderedDict[tuple[int, ...], Tensor] = OrderedDict()

    def init_forward_metadata_out_graph(self, batch: protocols.ForwardBatch) -> None:
        """Keep the lengths, and let the oldest go."""
        super().init_forward_metadata_out_graph(batch)
        lengths = () if batch.seq_lens_cpu is None else tuple(batch.seq_lens_cpu.tolist())
        self._masks.setdefault(lengths, batch.seq_lens.clone())
        if len(self._masks) > _MOST:
            self._masks.popitem(last=False)


@honest("two-batch")
class OneWorkspace(TorchPadded):
    """Shares a workspace with all objects of the same pools, within a forward alone."""

    _workspaces: ClassVar[MutableMapping[Tensor, Tensor]] = WeakTensorKeyDictionary()

    def __init__(self, runner: protocols.ModelRunner) -> None:
        super().__init__(runner)
        table = self._req_to_token
        made = torch.empty(1 << 20, dtype=torch.float32, device=table.device)
        self._workspace = self._workspaces.setdefault(table, made)

    def _attend(self, q: Tensor, keys: Tensor, values: Tensor, scaling: float) -> Tensor:
        output = super()._attend(q, keys, values, scaling)
        space = self._workspace[: output.numel()]
        space.copy_(output.flatten())
        return space.view_as(output).clone()


HONEST_BACKENDS = specimens_of(__name__)
"""All of them."""
