"""The graph runner: one captured forward for each bucket, and batches that replay it.

Shapes: B requests and T tokens in the batch, V tokens in the vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import ClassVar, Protocol, TypeAlias

import torch
from torch import Tensor

from backend_caps.capability.vocabulary import GraphMetadata, HostSeqLens, SharedReadsEnd
from backend_caps.relay.streams import DeviceStreams, EventLike, GraphLike, StreamLike
from backend_caps.runtime.attention import AttentionBackend, ForwardContext
from backend_caps.runtime.forward_batch import ForwardBatch
from backend_caps.runtime.graphs.buffers import GraphBuffers, StaticBatch, fits
from backend_caps.runtime.two_batch import split
from backend_caps.startup.graph_modes import Bucket, GraphMode, smallest_first


class CaptureObserver(Protocol):
    """Called on the progress of captures, which take seconds on a device."""

    def begin(self, num_sizes: int) -> None:
        """Take in how many sizes will be captured, of all modes together."""

    def captured(self, mode: GraphMode, num_tokens: int) -> None:
        """Take in that a size was captured, by the tokens that it holds."""


class NoCaptureObserver:
    """No-op observer."""

    def begin(self, num_sizes: int) -> None:
        """Let it pass."""

    def captured(self, mode: GraphMode, num_tokens: int) -> None:
        """Let it pass."""


Compute: TypeAlias = Callable[[Sequence[ForwardContext]], Tensor]
"""A model's forward, or that of a part of it, of one batch or of both its halves: a row for each
request's last token, or for every token, of which the first half's come first. In halves it joins
the second one's stream to the capture and back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Computed:
    """What a forward leaves on the device."""

    output: Tensor
    """What the model returned: [B, V] after each request's last token, or a row for each of the T
    tokens where the batch names no last ones. Of a replay a view of the graph's own memory, unless
    padding stood between two halves: its next replay overwrites it, in stream order."""
    reads_done: EventLike | None = None
    """Behind the last read of shared buffers; None where it is not known. Under IN_REPLAY it is the
    graph's own, which its next replay moves on: a later wait is for that one."""
    graph_mode: GraphMode = GraphMode.EAGER
    """How it ran."""
    in_halves: bool = False
    """Whether the batch was cut, and each half ran by itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureSite:
    """Where all graphs of one stream are captured."""

    streams: DeviceStreams
    """The device's, which has graphs."""
    stream: StreamLike
    """What they are captured and replayed on: the forward stream."""
    pool: tuple[int, int]
    """Where captures allocate: graphs never run at once, so they use the same memory."""
    observer: CaptureObserver = field(default_factory=NoCaptureObserver)
    """Called for each size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """The whole of a captured batch, or one half of it."""

    backend: AttentionBackend
    static: StaticBatch

    @property
    def context(self) -> ForwardContext:
        return ForwardContext(self.backend, self.static.forward)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Captured:
    bucket: Bucket
    parts: tuple[_Part, ...]
    """One, or two halves."""
    graph: GraphLike
    output: Tensor
    """Kept, so that no other graph of the pool is given its memory."""
    reads_done: EventLike | None
    """What every replay records, under IN_REPLAY."""

    def holds(self, batch: ForwardBatch) -> bool:
        """Tell whether a batch can be padded to it. Sync: none; no length is read."""
        masks: tuple[Tensor | None, ...] = batch.half_masks or (None, None)
        other: object = batch.tree_mask  # laid out as one, where halves read one each
        if not self.cuts(batch):
            masks, other = (batch.tree_mask,), batch.half_masks
        # A batch of one request has one mask, and runs in the first of two parts.
        pairs = zip(self.parts, masks, strict=False)
        takes = all(part.static.takes_mask(mask) for part, mask in pairs)
        return fits(batch, self.bucket) and other is None and takes

    def cuts(self, batch: ForwardBatch) -> bool:
        """Tell whether it runs a batch in halves; one request has the first half for itself."""
        return len(self.parts) > 1 and batch.batch_size > 1

    def load(self, batch: ForwardBatch) -> Sequence[tuple[AttentionBackend, ForwardBatch]]:
        """Copy a batch to where the graph reads it; each half of the graph gets half of it.

        Returns:
            Each part's backend, with its share of the batch, padded.
        """
        shares = (batch,) if len(self.parts) == 1 else split(batch)
        return [
            (part.backend, part.static.load(share))
            for part, share in zip(self.parts, shares, strict=True)
        ]

    def output_of(self, batch: ForwardBatch) -> Tensor:
        """Return the rows of what the graph computed that the batch asks for."""
        each = self.bucket.tokens_each
        if each is None:
            return self.output[: batch.batch_size]
        computed = self._computed(batch.num_tokens, each)
        return computed if batch.last_token_indices is None else computed[each - 1 :: each]

    def _computed(self, num_tokens: int, each: int) -> Tensor:
        """Return a row for each of the batch's tokens, without the padding behind each half."""
        if len(self.parts) == 1:
            return self.output[:num_tokens]
        num_first = max(1, num_tokens // each // 2) * each
        begin = self.parts[0].static.bucket.num_tokens
        if num_first in (begin, num_tokens):
            return self.output[:num_tokens]
        second = self.output[begin : begin + num_tokens - num_first]
        return torch.cat((self.output[:num_first], second))


@dataclass(slots=True, eq=False)
class GraphRunner:
    """Capture a model's forward for each bucket, from the largest down, and replay it."""

    mode: ClassVar = GraphMode.FULL

    compute: Compute
    """What is captured."""
    places: Sequence[tuple[AttentionBackend, GraphBuffers]]
    """Its attention, where `init_cuda_graph_state` has been called, and what batches are copied to;
    in two-batch overlap once more, for the second half of every bucket that has two. Other runners
    on the same stream may share the buffers."""
    site: CaptureSite
    """Where it is captured."""
    _: KW_ONLY
    buckets: Iterable[Bucket]
    """The sizes that it captures."""
    host_seq_lens: HostSeqLens
    """What batches bring of lengths on the host, at least."""
    shared_reads_end: SharedReadsEnd
    """Where replays mark the end of their reads of shared buffers, as `marked_reads_end` says for
    the device."""
    graph_metadata: GraphMetadata = GraphMetadata.HOST
    """How the backend rebuilds metadata for a replay; under IN_GRAPH the graph does, and no host
    code of the backend runs before one."""
    _smallest_first: Sequence[_Captured] = field(init=False)

    def __post_init__(self) -> None:
        largest_first = reversed(smallest_first(self.buckets))
        self._smallest_first = [self._capture(bucket) for bucket in largest_first][::-1]

    def holds(self, batch: ForwardBatch) -> bool:
        """Tell whether a graph was captured that the batch can replay."""
        return self._find(batch) is not None

    def replay(self, batch: ForwardBatch) -> Computed:
        """Run a batch that a graph holds.

        Stream: the current one, which must be the captured one.
        Sync: none; the backend's out-of-graph metadata may have its own.
        Allocates: padded host lengths. Keeps: nothing.
        """
        captured = self._find(batch)
        assert captured is not None, "a batch is replayed only where `holds` says so"
        padded = captured.load(batch)
        if self.graph_metadata is not GraphMetadata.IN_GRAPH:
            for backend, share in padded:
                backend.init_forward_metadata_out_graph(share)
        # Metadata is rebuilt by now; the replay reads the graph's own buffers alone.
        marked = self._mark(SharedReadsEnd.PRE_REPLAY)
        captured.graph.replay()
        marked = marked or captured.reads_done or self._mark(SharedReadsEnd.POST_REPLAY)
        return Computed(
            output=captured.output_of(batch),
            reads_done=marked,
            graph_mode=self.mode,
            in_halves=captured.cuts(batch),
        )

    def mask_buffers(self, batch_size: int) -> Sequence[Tensor | None]:
        """Return the memory that graphs read tree masks from, of the whole or of each half.

        returns  [M] bool, device  None where they read no masks; nothing where no graph holds so
                                   many requests
        """
        largest = max((captured.bucket.batch_size for captured in self._smallest_first), default=0)
        if batch_size > largest:
            return ()
        places = self.places if batch_size > 1 else self.places[:1]
        return tuple(buffers.tree_mask for _, buffers in places)

    def _find(self, batch: ForwardBatch) -> _Captured | None:
        return next((graph for graph in self._smallest_first if graph.holds(batch)), None)

    def _mark(self, point: SharedReadsEnd) -> EventLike | None:
        """Record the end of the reads here, where this is the point."""
        if self.shared_reads_end is not point:
            return None
        event = self.site.streams.event()
        event.record(self.site.streams.current_stream())
        return event

    @torch.no_grad()
    def _capture(self, bucket: Bucket) -> _Captured:
        """Capture a batch of padding, after a forward of it that makes what is made once."""
        streams, stream = self.site.streams, self.site.stream
        # Lazy initialization and autotuning synchronize, which a capture forbids.
        with streams.using(stream):
            parts = self._parts(bucket)
            for part in parts:
                part.static.clear()
                part.backend.init_forward_metadata_out_graph(part.static.forward)
                part.backend.init_forward_metadata_in_graph(part.static.forward)
            # The warm-up: what it allocates once must not belong to the graph.
            self.compute([part.context for part in parts])
            for part in parts:
                part.backend.init_forward_metadata_out_graph(part.static.forward)
        graph = streams.graph()
        reads_done = None
        with streams.capturing(graph, self.site.pool, stream):
            for part in parts:
                part.backend.init_forward_metadata_in_graph(part.static.forward)
            if self.shared_reads_end is SharedReadsEnd.IN_REPLAY:
                # External, so that each replay records it anew, behind the reads of its metadata.
                reads_done = streams.external_event()
                reads_done.record(stream)
            output = self.compute([part.context for part in parts])
        self.site.observer.captured(self.mode, bucket.num_tokens)
        return _Captured(
            bucket=bucket, parts=parts, graph=graph, output=output, reads_done=reads_done
        )

    def _parts(self, bucket: Bucket) -> tuple[_Part, ...]:
        """Place a bucket's batch in the buffers: whole, or each half in memory of its own."""
        halves = bucket.halves if len(self.places) > 1 else None
        # A bucket of one request has no halves, and runs whole on the first place.
        return tuple(
            _Part(backend=backend, static=buffers.share_of(size, self.host_seq_lens))
            for (backend, buffers), size in zip(self.places, halves or (bucket,), strict=False)
        )
