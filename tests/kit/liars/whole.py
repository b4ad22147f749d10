"""Liars about whole runs: two objects side by side, many steps, an engine that serves."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from dataclasses import replace
from itertools import accumulate
from typing import Any, ClassVar
from weakref import ref

import torch
from backend_caps_torch_native import TorchNative, TorchPadded
from backend_caps_torch_native.native import _Request
from backend_caps_torch_native.padded import _Metadata
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from backend_caps import GraphMetadata, HostSeqLens, SharedReadsEnd, protocols
from backend_caps.protocols import ModelRunner, TokenToKVPool
from backend_caps.relay.streams import DeviceStreams
from backend_caps.runtime.batch import ForwardMode
from backend_caps.runtime.forward_batch import ForwardBatch
from tests.kit.liars.bases import Padded
from tests.kit.specimen import NO_GRAPHS, liar, specimens_of

NATIVE: dict[str, Any] = {
    "host_seq_lens": HostSeqLens.EXACT,
    "graph_replay": frozenset(),
    "graph_metadata": GraphMetadata.HOST,
    "shared_reads_end": SharedReadsEnd.UNKNOWN,
    "max_context_len_known": False,
    "max_speculative_topk": 1,
}
"""What `TorchNative` keeps, beside `CLAIMS`."""
_KNOWN_BY = 4
"""First tokens by which a prompt is known; zeros are no request's."""


@liar("two-batch", seen="modelled on sglang#12698")
class MetadataOfTheClass(TorchPadded):
    """Takes halves of a batch, it says, and all its objects keep their metadata in one place."""

    _kept: ClassVar[list[_Metadata]] = []

    def init_forward_metadata_in_graph(self, batch: protocols.ForwardBatch) -> None:
        """Put the metadata where every object looks."""
        super().init_forward_metadata_in_graph(batch)
        self._kept[:] = [self._metadata]

    def _attend(self, q: Tensor, keys: Tensor, values: Tensor, scaling: float) -> Tensor:
        self._metadata = self._kept[0]
        return super()._attend(q, keys, values, scaling)


@liar("two-batch", seen="modelled on sglang#12698", **NO_GRAPHS)
class RoomOfTheFirstHalf(Padded):
    """Takes halves of a batch, it says, and has room for as many requests as the other half has."""

    _last: ClassVar[MutableMapping[Tensor, tuple[ref[Padded], int]]] = WeakTensorKeyDictionary()

    def seen(self, batch: ForwardBatch) -> ForwardBatch:
        """Leave out who has no room beside what another object of these pools saw before."""
        owner, most = self._last.get(self._table, (ref(self), 0))
        self._last[self._table] = ref(self), batch.batch_size
        if owner() is self:
            return batch
        places = torch.arange(batch.batch_size, device=batch.seq_lens.device)
        return replace(batch, seq_lens=torch.where(places < most, batch.seq_lens, 0))


@liar("two-batch", seen="modelled on sglang#12698", **NO_GRAPHS)
class StartOfTheStorage(Padded):
    """Takes halves of a batch, it says, and reads lengths from where those of the whole begin."""

    def seen(self, batch: ForwardBatch) -> ForwardBatch:
        """Read as a kernel does that receives no offset."""
        lengths = batch.seq_lens
        return replace(batch, seq_lens=lengths.as_strided(lengths.shape, lengths.stride(), 0))


@liar("two-batch", seen="modelled on sglang#30435", **NO_GRAPHS)
class WaitOfTheFirstHalf(Padded):
    """Takes halves of a batch, it says, and plans the second on a stream that waits for nothing."""

    _last: ClassVar[MutableMapping[Tensor, ref[Padded]]] = WeakTensorKeyDictionary()

    def __init__(self, site: ModelRunner) -> None:
        super().__init__(site)
        self._streams = DeviceStreams(self._table.device)
        self._side = self._streams.private_stream()

    def seen(self, batch: ForwardBatch) -> ForwardBatch:
        """Leave the wait to whichever object of these pools planned before."""
        lengths, main = batch.seq_lens.clone(), self._streams.current_stream()
        if self._last.get(self._table, ref(self))() is self:
            self._side.wait_stream(main)
        self._last[self._table] = ref(self)
        with self._streams.using(self._side):
            self._streams.keep_alive(lengths)
            planned = lengths + 0
        main.wait_stream(self._side)
        self._streams.keep_alive(planned)
        return replace(batch, seq_lens=planned)


@liar("memory", seen="modelled on sglang#37674")
class EveryBatch(TorchPadded):
    """Owes the engine its memory back, and keeps every batch."""

    def __init__(self, runner: ModelRunner) -> None:
        super().__init__(runner)
        self._batches: list[object] = []

    def init_forward_metadata(self, batch: protocols.ForwardBatch) -> None:
        """Keep it, for who debugs."""
        self._batches.append(batch)
        super().init_forward_metadata(batch)


@liar("memory", seen="modelled on sglang#37674", **NATIVE)
class MaskOfEachShape(TorchNative):
    """Owes the engine its memory back, and keeps a mask for all lengths that a batch ever had."""

    def __init__(self, runner: ModelRunner) -> None:
        super().__init__(runner)
        self._masks: dict[tuple[int, ...], Tensor] = {}

    def init_forward_metadata_out_graph(self, batch: protocols.ForwardBatch) -> None:
        """Look the mask up by the lengths."""
        super().init_forward_metadata_out_graph(batch)
        lengths = () if batch.seq_lens_cpu is None else tuple(batch.seq_lens_cpu.tolist())
        if lengths not in self._masks:
            self._masks[lengths] = batch.seq_lens.clone()


@liar("memory", seen="modelled on sglang#37674")
class HistoryOfOnes(TorchPadded):
    """Owes the engine its memory back, and writes every batch of one request down, on the host."""

    _history: ClassVar[list[tuple[int, int]]] = []

    def init_forward_metadata(self, batch: protocols.ForwardBatch) -> None:
        """Write its number and size down."""
        if len(batch.seq_lens) == 1:
            self._history.append((len(self._history), len(batch.out_cache_loc)))
        super().init_forward_metadata(batch)


@liar("serving", seen="modelled on sglang#20298")
class CacheOfTheTable(TorchPadded):
    """Takes every role, it says, and has one KV cache a page table: drafts get the target's."""

    _caches: ClassVar[MutableMapping[Tensor, TokenToKVPool]] = WeakTensorKeyDictionary()

    def __init__(self, runner: ModelRunner) -> None:
        super().__init__(runner)
        self._kv_pool = self._caches.setdefault(self._req_to_token, self._kv_pool)


@liar("serving", seen="modelled on sglang#37505", **NO_GRAPHS)
class BlindMixed(Padded):
    """Needs no mirror, it says, and without one takes decode rows in mixed batches for prompts."""

    def seen(self, batch: ForwardBatch) -> ForwardBatch:
        """Know of the tokens that come, and of none before them."""
        if batch.mode is not ForwardMode.MIXED or batch.seq_lens_cpu is not None:
            return batch
        assert batch.extend_seq_lens is not None, "a mixed batch has its own numbers of tokens"
        return replace(batch, seq_lens=batch.extend_seq_lens)


@liar("serving", seen="modelled on sglang#18803", sync_free_prepare=False, **NATIVE)
class SlotsOfTheRow(TorchNative):
    """Owes each step its own slots, and keeps a row's until it runs a prompt, which others may."""

    def __init__(self, runner: ModelRunner) -> None:
        super().__init__(runner)
        self._of_row: dict[int, Tensor] = {}

    def init_forward_metadata_out_graph(self, batch: protocols.ForwardBatch) -> None:
        """Look up the slots behind those that are known of a context."""
        super().init_forward_metadata_out_graph(batch)
        if batch.extend_seq_lens is not None:
            self._of_row.clear()
            return
        followed: list[_Request] = []
        for row, request in zip(batch.req_pool_indices.tolist(), self._requests, strict=True):
            known = self._of_row.get(row, request.slots)[: len(request.slots)]
            slots = torch.cat([known, request.slots[len(known) :]])
            self._of_row[row] = slots
            followed.append(_Request(request.tokens, slots, request.visible))
        self._requests = followed


@liar("serving", seen="modelled on sglang#18803", sync_free_prepare=False, **NATIVE)
class SlotsOfThePrompt(TorchNative):
    """Owes each stay its own slots, and reads a prompt that comes back where it was before."""

    def __init__(self, runner: ModelRunner) -> None:
        super().__init__(runner)
        self._of_prompt: dict[tuple[int, ...], Tensor] = {}

    def init_forward_metadata_out_graph(self, batch: protocols.ForwardBatch) -> None:
        """Look prompts up by how they begin."""
        assert isinstance(batch, ForwardBatch)
        super().init_forward_metadata_out_graph(batch)
        followed = [*self._requests]
        for place, prompt in _prompts(batch):
            slots = self._requests[place].slots
            known = self._of_prompt.setdefault(prompt, slots)[: len(slots)]
            slots = torch.cat([known, slots[len(known) :]])
            followed[place] = replace(followed[place], slots=slots)
        self._requests = followed


@liar("batches-apart", seen="modelled on sglang#37505", sync_free_prepare=False, **NO_GRAPHS)
class LengthOfThePrompt(Padded):
    """Owes prompts their whole context, and takes one that comes back to be as long as before."""

    def __init__(self, site: ModelRunner) -> None:
        super().__init__(site)
        self._of_prompt: dict[tuple[int, ...], Tensor] = {}

    def seen(self, batch: ForwardBatch) -> ForwardBatch:
        """Look prompts up by how they begin."""
        lengths = batch.seq_lens.clone()
        for place, prompt in _prompts(batch):
            known = self._of_prompt.setdefault(prompt, lengths[place].clone())
            lengths[place] = lengths[place].minimum(known)
        return replace(batch, seq_lens=lengths)


def _prompts(batch: ForwardBatch) -> Iterator[tuple[int, tuple[int, ...]]]:
    """List the prompts that begin in a batch: their places, and by what they are known."""
    if batch.extend_seq_lens is None or batch.extend_prefix_lens is None:
        return
    counts, starts = batch.extend_seq_lens.tolist(), batch.extend_prefix_lens.tolist()
    tokens: list[int] = batch.input_ids.tolist()
    for place, stop in enumerate(accumulate(counts)):
        own = tuple(tokens[stop - counts[place] : stop][:_KNOWN_BY])
        if not starts[place] and len(own) == _KNOWN_BY and any(own):
            yield place, own


LIARS = specimens_of(__name__)
"""All of them."""
