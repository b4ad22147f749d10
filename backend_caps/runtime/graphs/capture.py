"""The captures of one role: all its phases, in memory that they share."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Self, TypeAlias, TypeVar

from torch import Tensor

from backend_caps.capability.kind import Phase
from backend_caps.capability.vocabulary import GraphMetadata
from backend_caps.relay.streams import DeviceStreams, StreamLike
from backend_caps.resolution.plan import Plan
from backend_caps.runtime.attention import ForwardContext, PhaseBackends
from backend_caps.runtime.graphs.buffers import GraphBuffers
from backend_caps.runtime.graphs.pieces import PieceModel, PieceRunner, Pieces
from backend_caps.runtime.graphs.runner import (
    CaptureObserver,
    GraphHalves,
    GraphMemory,
    GraphRunner,
    Model,
    NoCaptureObserver,
)
from backend_caps.startup.configuration import Configuration
from backend_caps.startup.graph_choice import GraphChoice
from backend_caps.startup.graph_modes import Bucket

PhaseGraphs: TypeAlias = GraphRunner | PieceRunner
"""The graphs of one phase: full ones, or pieces."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphUsage:
    """Device memory of captures, without the driver's own share of a graph."""

    num_graphs: int = 0
    """How many there are; a forward in pieces has one more than the model has layers."""
    pool_bytes: int = 0
    """Of the pool in which all captures allocate."""
    static_bytes: int = 0
    """Of what batches are copied to before a replay, and of what pieces share with attention."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CapturedGraphs:
    """All captures of one role."""

    phases: Mapping[Phase, PhaseGraphs] = field(default_factory=dict)
    """The graphs of each phase that has any."""
    usage: GraphUsage = field(default_factory=GraphUsage)
    """What they take of the device's memory."""


def total_usage(captured: Iterable[CapturedGraphs]) -> GraphUsage:
    """Add up what the captures of several roles took, each of which has a pool of its own."""
    usages = [own.usage for own in captured]
    return GraphUsage(
        num_graphs=sum(own.num_graphs for own in usages),
        pool_bytes=sum(own.pool_bytes for own in usages),
        static_bytes=sum(own.static_bytes for own in usages),
    )


_Size = TypeVar("_Size", Bucket, int)


def capture_graphs(
    model: Model,
    backends: PhaseBackends,
    configuration: Configuration,
    *,
    stream: StreamLike,
    mask_size: int = 0,
    in_pieces: PieceModel | None = None,
    halves: HalvesModel | None = None,
    observer: CaptureObserver | None = None,
) -> CapturedGraphs:
    """Capture what was chosen, phase by phase.

    A backend that serves several phases makes its buffers once, for the largest of all buckets:
    made again, they would not be those that the first captures read. Pieces are captured once for
    all phases.

    Args:
        model: what full graphs are captured of.
        backends: its attention, of one role.
        configuration: says what is captured in that role, what batches bring of lengths on the
            host, and where reads of shared buffers end.
        stream: what is captured on: the forward stream, on which graphs are replayed. It waits
            for the current one, on which the model was loaded.
        mask_size: entries of one request's tree mask in uniform batches; 0: their tokens are no
            trees.
        in_pieces: what pieces are captured of; None where the configuration has none.
        halves: what full graphs of uniform batches are captured of in two-batch overlap; None
            captures them whole.
        observer: is called before and after each capture.
    """
    chosen = _Chosen.of(configuration.graph_choices.get(backends.role, ()))
    streams = configuration.streams
    if not chosen.num_sizes:
        return CapturedGraphs()
    site = _Site(
        backends=backends,
        streams=streams,
        stream=stream,
        pool=streams.graph_pool(),
        observer=observer or NoCaptureObserver(),
    )
    site.observer.begin(chosen.num_sizes)
    # An engine that dies in the middle of a capture would wait for the device, which ends it.
    gc.collect()
    stream.wait_stream(streams.current_stream())
    captured = []
    if chosen.buckets:
        captured.append(_full(site, model, configuration, chosen.buckets, mask_size, halves))
    if chosen.token_counts:
        assert in_pieces is not None, "pieces are chosen only where there is a model of them"
        captured.append(_pieces(site, in_pieces, chosen.token_counts))
    usage = replace(total_usage(captured), pool_bytes=streams.pool_bytes(site.pool))
    phases = {phase: graphs for own in captured for phase, graphs in own.phases.items()}
    return CapturedGraphs(phases=phases, usage=usage)


@dataclass(frozen=True, slots=True, kw_only=True)
class HalvesModel:
    """What is captured of batches that run in halves."""

    compute: Callable[[Sequence[ForwardContext]], Tensor]
    """Computes both halves, as `GraphHalves.compute`."""
    backends: PhaseBackends
    """The second half's attention."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Chosen:
    """The sizes to capture, by phase."""

    buckets: Mapping[Phase, Sequence[Bucket]]
    token_counts: Mapping[Phase, Sequence[int]]

    @classmethod
    def of(cls, choices: Iterable[GraphChoice]) -> Self:
        buckets: dict[Phase, list[Bucket]] = {}
        token_counts: dict[Phase, Sequence[int]] = {}
        for choice in choices:
            if choice.buckets:
                buckets.setdefault(choice.phase, []).extend(choice.buckets)
            if choice.token_counts:
                token_counts[choice.phase] = choice.token_counts
        both = buckets.keys() & token_counts.keys()
        assert not both, f"a phase has batches of one kind, and {both} would have two modes"
        return cls(buckets=buckets, token_counts=token_counts)

    @property
    def num_sizes(self) -> int:
        """How many captures there will be; those in pieces are shared by all phases."""
        return sum(map(len, self.buckets.values())) + len(_every(self.token_counts))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Site:
    """Where captures are made."""

    backends: PhaseBackends
    streams: DeviceStreams
    stream: StreamLike
    pool: tuple[int, int]
    observer: CaptureObserver


def _full(
    site: _Site,
    model: Model,
    configuration: Configuration,
    chosen: Mapping[Phase, Sequence[Bucket]],
    mask_size: int,
    halves: HalvesModel | None,
) -> CapturedGraphs:
    """Capture one graph for each size."""
    every = _every(chosen)
    cut = [] if halves is None else [own.halves for own in every if own.halves is not None]
    whole = [own for own in every if halves is None or own.halves is None]
    of_first = _buffers(site, site.backends, chosen, [*whole, *(one for one, _ in cut)], mask_size)
    of_second = None
    if halves is not None and cut:
        of_second = _buffers(site, halves.backends, chosen, [other for _, other in cut], mask_size)
    phases = {
        phase: GraphRunner(
            model,
            site.backends.of(phase),
            streams=site.streams,
            stream=site.stream,
            buckets=buckets,
            memory=GraphMemory(buffers=of_first, pool=site.pool),
            host_seq_lens=configuration.plan.host_seq_lens,
            shared_reads_end=configuration.barriers[phase],
            graph_metadata=_graph_metadata(configuration.plan, phase),
            observer=site.observer,
            halves=None
            if halves is None or of_second is None
            else GraphHalves(
                compute=halves.compute, backend=halves.backends.of(phase), buffers=of_second
            ),
        )
        for phase, buckets in chosen.items()
    }
    static_bytes = sum(own.num_bytes for own in (of_first, of_second) if own is not None)
    usage = GraphUsage(num_graphs=len(every), static_bytes=static_bytes)
    return CapturedGraphs(phases=phases, usage=usage)


def _buffers(
    site: _Site,
    backends: PhaseBackends,
    phases: Iterable[Phase],
    buckets: Sequence[Bucket],
    mask_size: int,
) -> GraphBuffers:
    """Make what batches of some sizes, or halves of batches, are copied to before a replay."""
    with site.streams.using(site.stream):
        largest = max(own.batch_size for own in buckets)
        buffers = GraphBuffers(buckets, site.streams.device, mask_size * largest)
        for backend in {id(own): own for own in map(backends.of, phases)}.values():
            backend.init_cuda_graph_state(buffers.max_batch_size, buffers.max_num_tokens)
    return buffers


def _pieces(
    site: _Site, model: PieceModel, chosen: Mapping[Phase, Sequence[int]]
) -> CapturedGraphs:
    """Capture the pieces of each size, once for all phases."""
    pieces = Pieces(
        model.states,
        _every(chosen),
        streams=site.streams,
        stream=site.stream,
        pool=site.pool,
        observer=site.observer,
    )
    phases = {phase: PieceRunner(pieces, site.backends, phase, model.head) for phase in chosen}
    usage = GraphUsage(num_graphs=pieces.num_graphs, static_bytes=pieces.buffers.num_bytes)
    return CapturedGraphs(phases=phases, usage=usage)


def _every(chosen: Mapping[Phase, Iterable[_Size]]) -> Sequence[_Size]:
    """List the sizes of all phases, each once."""
    return tuple(dict.fromkeys(size for sizes in chosen.values() for size in sizes))


def _graph_metadata(plan: Plan, phase: Phase) -> GraphMetadata:
    level = plan["graph_metadata", phase].value
    assert isinstance(level, GraphMetadata), "a plan's level is one of the scale"
    return level
