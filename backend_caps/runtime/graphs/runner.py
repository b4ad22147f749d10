"""The graph runner: one captured forward for each bucket, and batches that replay it.

Shapes: B requests and T tokens in the batch, V tokens in the vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from backend_caps.capability.vocabulary import GraphMetadata, HostSeqLens, SharedReadsEnd
from backend_caps.relay.streams import DeviceStreams, EventLike, GraphLike, StreamLike
from backend_caps.runtime.attention import AttentionBackend, ForwardContext
from backend_caps.runtime.forward_batch import ForwardBatch
from backend_caps.runtime.graphs.buffers import GraphBuffers, StaticBatch
from backend_caps.runtime.graphs.observing import CaptureObserver, NoCaptureObserver
from backend_caps.runtime.model.layers import AttentionContext
from backend_caps.startup.configuration import marked_reads_end
from backend_caps.startup.graph_buckets import Bucket, smallest_first
from backend_caps.startup.graph_modes import GraphMode


class Model(Protocol):
    """What is captured: a model's forward, or that of a part of it."""

    def __call__(
        self,
        input_ids: Tensor,
        positions: Tensor,
        context: AttentionContext,
        last_token_indices: Tensor | None,
        /,
    ) -> Tensor:
        """Return a row for each request's last token, or for every token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """What a replay leaves on the device."""

    output: Tensor
    """What the model returned: [B, V] after each request's last token, or a row for each of the T
    tokens where the batch names no last ones. A view of the graph's own memory: its next replay
    overwrites it, in stream order."""
    reads_done: EventLike | None
    """Behind the replay's last read of shared buffers; None where nobody knows it. Under IN_REPLAY
    it is the graph's own, which its next replay moves on: who waits later waits for that one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphMemory:
    """What all graphs of one stream share."""

    buffers: GraphBuffers
    pool: tuple[int, int]
    """Where captures allocate: graphs never run at once, so they use the same memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Captured:
    static: StaticBatch
    graph: GraphLike
    output: Tensor
    """Kept, so that no other graph of the pool is given its memory."""
    reads_done: EventLike | None
    """What every replay records, under IN_REPLAY."""


class GraphRunner:
    """Capture a model's forward for each bucket, from the largest down, and replay it.

    Args:
        model: what is captured.
        backend: its attention; `init_cuda_graph_state` has been called.
        streams: the device's, which has graphs.
        stream: what is captured and replayed on: the forward stream.
        buckets: the sizes that it captures.
        memory: what its graphs share, with those of other runners on the same stream.
        host_seq_lens: what batches bring of lengths on the host, at least.
        shared_reads_end: where a forward of the backend ends its reads of shared buffers.
        graph_metadata: how the backend rebuilds metadata for a replay; under IN_GRAPH the graph
            does, and no host code of the backend runs before one.
        observer: is told of each bucket.
    """

    mode = GraphMode.FULL

    def __init__(
        self,
        model: Model,
        backend: AttentionBackend,
        *,
        streams: DeviceStreams,
        stream: StreamLike,
        buckets: Iterable[Bucket],
        memory: GraphMemory,
        host_seq_lens: HostSeqLens,
        shared_reads_end: SharedReadsEnd,
        graph_metadata: GraphMetadata = GraphMetadata.HOST,
        observer: CaptureObserver | None = None,
    ) -> None:
        self._model = model
        self._backend = backend
        self._streams = streams
        self._stream = stream
        self._memory = memory
        self._observer = observer or NoCaptureObserver()
        self._host_seq_lens = host_seq_lens
        self.prepares_replays = graph_metadata is not GraphMetadata.IN_GRAPH
        """Whether `init_forward_metadata_out_graph` is called before each replay."""
        self.shared_reads_end = marked_reads_end(shared_reads_end, streams.traits)
        """Where replays mark the end of their reads."""
        largest_first = reversed(smallest_first(buckets))
        self._smallest_first = [self._capture(bucket) for bucket in largest_first][::-1]

    def holds(self, batch: ForwardBatch) -> bool:
        """Tell whether a graph was captured that the batch can replay."""
        return self._find(batch) is not None

    def replay(self, batch: ForwardBatch) -> Replayed:
        """Run a batch that a graph holds.

        Stream: the current one, which must be the captured one.
        Sync: none; the backend's out-of-graph metadata may have its own.
        Allocates: padded host lengths. Keeps: nothing.
        """
        captured = self._find(batch)
        assert captured is not None, "a batch is replayed only where `holds` says so"
        padded = captured.static.load(batch)
        if self.prepares_replays:
            self._backend.init_forward_metadata_out_graph(padded)
        marked = self._mark(SharedReadsEnd.PRE_REPLAY)
        captured.graph.replay()
        marked = marked or captured.reads_done or self._mark(SharedReadsEnd.POST_REPLAY)
        return Replayed(output=_output_of(batch, captured), reads_done=marked)

    def mask_buffer(self, batch_size: int) -> Tensor | None:
        """Return the memory that graphs read tree masks from.

        returns  [M] bool, device  None where no graph holds so many requests, or reads masks
        """
        largest = max((own.static.bucket.batch_size for own in self._smallest_first), default=0)
        return self._memory.buffers.tree_mask if batch_size <= largest else None

    def _find(self, batch: ForwardBatch) -> _Captured | None:
        return next((own for own in self._smallest_first if own.static.holds(batch)), None)

    def _mark(self, point: SharedReadsEnd) -> EventLike | None:
        """Record the end of the reads here, where this is the point."""
        if self.shared_reads_end is not point:
            return None
        event = self._streams.event()
        event.record(self._streams.current_stream())
        return event

    @torch.no_grad()
    def _capture(self, bucket: Bucket) -> _Captured:
        """Capture a batch of padding, after a forward of it that makes what is made once."""
        streams, stream = self._streams, self._stream
        static = self._memory.buffers.share_of(bucket, self._host_seq_lens)
        with streams.using(stream):
            static.clear()
            self._backend.init_forward_metadata_out_graph(static.forward)
            self._backend.init_forward_metadata_in_graph(static.forward)
            self._forward(static.forward)
            self._backend.init_forward_metadata_out_graph(static.forward)
        graph = streams.graph()
        reads_done = None
        with streams.capturing(graph, self._memory.pool, stream):
            self._backend.init_forward_metadata_in_graph(static.forward)
            if self.shared_reads_end is SharedReadsEnd.IN_REPLAY:
                reads_done = streams.external_event()
                reads_done.record(stream)
            output = self._forward(static.forward)
        self._observer.captured(self.mode, bucket.num_tokens)
        return _Captured(static=static, graph=graph, output=output, reads_done=reads_done)

    def _forward(self, batch: ForwardBatch) -> Tensor:
        context = ForwardContext(self._backend, batch)
        return self._model(batch.input_ids, batch.positions, context, batch.last_token_indices)


def _output_of(batch: ForwardBatch, captured: _Captured) -> Tensor:
    """View the rows of what the graph computed that the batch asks for."""
    each = captured.static.bucket.tokens_each
    if each is None:
        return captured.output[: batch.batch_size]
    computed = captured.output[: batch.num_tokens]
    return computed if batch.last_token_indices is None else computed[each - 1 :: each]
