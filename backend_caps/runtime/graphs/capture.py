"""The captures of one role: all its phases, in memory that they share."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import TypeAlias, TypeVar

from backend_caps.capability.kind import Phase
from backend_caps.capability.vocabulary import GraphMetadata
from backend_caps.relay.streams import StreamLike
from backend_caps.runtime.attention import PhaseBackends
from backend_caps.runtime.graphs import runner
from backend_caps.runtime.graphs.buffers import GraphBuffers
from backend_caps.runtime.graphs.pieces import PieceBuffers, PieceModel, PieceRunner, Pieces
from backend_caps.startup.configuration import Configuration
from backend_caps.startup.graph_modes import Bucket

PhaseGraphs: TypeAlias = runner.GraphRunner | PieceRunner
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
    usages = [graphs.usage for graphs in captured]
    return GraphUsage(
        num_graphs=sum(usage.num_graphs for usage in usages),
        pool_bytes=sum(usage.pool_bytes for usage in usages),
        static_bytes=sum(usage.static_bytes for usage in usages),
    )


_Size = TypeVar("_Size", Bucket, int)


def capture_graphs(
    compute: runner.Compute,
    backends: PhaseBackends,
    configuration: Configuration,
    *,
    stream: StreamLike,
    mask_size: int = 0,
    in_pieces: PieceModel | None = None,
    second: PhaseBackends | None = None,
    observer: runner.CaptureObserver | None = None,
) -> CapturedGraphs:
    """Capture what was chosen, phase by phase.

    A backend that serves several phases makes its buffers once, for the largest of all buckets:
    made again, they would not be those that the first captures read. Pieces are captured once for
    all phases.

    Args:
        compute: what full graphs are captured of.
        backends: its attention, of one role.
        configuration: says what is captured in that role, what batches bring of lengths on the
            host, and where reads of shared buffers end.
        stream: what is captured on: the forward stream, on which graphs are replayed. It waits
            for the current one, on which the model was loaded.
        mask_size: entries of one request's tree mask in uniform batches; 0: their tokens are no
            trees.
        in_pieces: what pieces are captured of; None where the configuration has none.
        second: the second half's attention in two-batch overlap, where `compute` takes both halves
            of uniform batches; None captures them whole.
        observer: is called before and after each capture.
    """
    choices = configuration.graph_choices.get(backends.role, ())
    buckets = _by_phase((choice.phase, choice.buckets) for choice in choices)
    counts = _by_phase((choice.phase, choice.token_counts) for choice in choices)
    doubled = buckets.keys() & counts.keys()
    assert not doubled, f"a phase has batches of one kind, and {doubled} would have two modes"
    if not (buckets or counts):
        return CapturedGraphs()
    streams = configuration.streams
    site = runner.CaptureSite(
        streams=streams,
        stream=stream,
        pool=streams.graph_pool(),
        observer=observer or runner.NoCaptureObserver(),
    )
    # Those in pieces are shared by all phases.
    site.observer.begin(sum(map(len, buckets.values())) + len(_every(counts)))
    # An engine that dies in the middle of a capture would wait for the device, which ends it.
    gc.collect()
    stream.wait_stream(streams.current_stream())
    phases: dict[Phase, PhaseGraphs] = {}
    memory: list[GraphBuffers | PieceBuffers] = []
    num_graphs = len(_every(buckets))
    if buckets:
        attention = (backends,) if second is None else (backends, second)
        runners, full_memory = _full(site, compute, attention, configuration, buckets, mask_size)
        phases |= runners
        memory += full_memory
    if counts:
        assert in_pieces is not None, "pieces are chosen only where there is a model of them"
        pieces = Pieces(in_pieces, _every(counts), site)
        phases |= {phase: PieceRunner(pieces, backends.of(phase)) for phase in counts}
        num_graphs += pieces.num_graphs
        memory.append(pieces.buffers)
    usage = GraphUsage(
        num_graphs=num_graphs,
        pool_bytes=streams.pool_bytes(site.pool),
        static_bytes=sum(buffers.num_bytes for buffers in memory),
    )
    return CapturedGraphs(phases=phases, usage=usage)


def _by_phase(sizes: Iterable[tuple[Phase, Iterable[_Size]]]) -> Mapping[Phase, Sequence[_Size]]:
    """Gather the sizes of each phase that has any."""
    by_phase: dict[Phase, list[_Size]] = {}
    for phase, chosen in sizes:
        by_phase.setdefault(phase, []).extend(chosen)
    return {phase: chosen for phase, chosen in by_phase.items() if chosen}


def _full(
    site: runner.CaptureSite,
    compute: runner.Compute,
    attention: Sequence[PhaseBackends],
    configuration: Configuration,
    chosen: Mapping[Phase, Sequence[Bucket]],
    mask_size: int,
) -> tuple[Mapping[Phase, runner.GraphRunner], Sequence[GraphBuffers]]:
    """Capture one graph for each size; return the runners, and what batches are copied to."""
    in_halves = len(attention) > 1
    parts = [(in_halves and bucket.halves) or (bucket,) for bucket in _every(chosen)]
    # First halves share memory with whole batches; second halves, which run beside them, do not.
    memory = [
        _buffers(site, backends, chosen, [part for part in share if part is not None], mask_size)
        for backends, share in zip(attention, zip_longest(*parts), strict=False)
    ]
    runners: dict[Phase, runner.GraphRunner] = {}
    for phase, buckets in chosen.items():
        metadata = configuration.plan["graph_metadata", phase].value
        assert isinstance(metadata, GraphMetadata), "a plan's level is one of the scale"
        runners[phase] = runner.GraphRunner(
            compute,
            [(half.of(phase), buffers) for half, buffers in zip(attention, memory, strict=False)],
            site,
            buckets=buckets,
            host_seq_lens=configuration.plan.host_seq_lens,
            shared_reads_end=configuration.barriers[phase],
            graph_metadata=metadata,
        )
    return runners, memory


def _buffers(
    site: runner.CaptureSite,
    backends: PhaseBackends,
    phases: Iterable[Phase],
    buckets: Sequence[Bucket],
    mask_size: int,
) -> GraphBuffers:
    """Make what batches of some sizes, or halves of batches, are copied to before a replay."""
    with site.streams.using(site.stream):
        largest = max(bucket.batch_size for bucket in buckets)
        buffers = GraphBuffers(buckets, site.streams.device, mask_size * largest)
        for backend in {id(backend): backend for backend in map(backends.of, phases)}.values():
            backend.init_cuda_graph_state(buffers.max_batch_size, buffers.max_num_tokens)
    return buffers


def _every(chosen: Mapping[Phase, Iterable[_Size]]) -> Sequence[_Size]:
    """List the sizes of all phases, each once."""
    return tuple(dict.fromkeys(size for sizes in chosen.values() for size in sizes))
