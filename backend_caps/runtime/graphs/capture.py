"""The captures of one role: all its phases, in memory that they share."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Mapping

from backend_caps.capability.kind import Phase
from backend_caps.capability.vocabulary import SharedReadsEnd
from backend_caps.relay.streams import DeviceStreams, StreamLike
from backend_caps.resolution.plan import Plan
from backend_caps.runtime.attention import PhaseBackends
from backend_caps.runtime.graphs.buckets import Bucket
from backend_caps.runtime.graphs.buffers import GraphBuffers
from backend_caps.runtime.graphs.choice import GraphChoice
from backend_caps.runtime.graphs.runner import GraphMemory, GraphRunner, Model


def capture_graphs(
    model: Model,
    backends: PhaseBackends,
    plan: Plan,
    choices: Iterable[GraphChoice],
    *,
    streams: DeviceStreams,
    stream: StreamLike,
    mask_size: int = 0,
) -> Mapping[Phase, GraphRunner]:
    """Capture what was chosen, phase by phase.

    A backend that serves several phases makes its buffers once, for the largest of all buckets:
    made again, they would not be those that the first captures read.

    Args:
        model: what is captured.
        backends: its attention.
        plan: says what batches bring, and where reads end.
        choices: what is captured, as `choose_graphs` says.
        streams: the device's.
        stream: what is captured on: the forward stream, on which graphs are replayed. It waits
            for the current one, on which the model was loaded.
        mask_size: entries of the tree masks of uniform batches; 0: their tokens are no trees.
    """
    chosen: dict[Phase, list[Bucket]] = {}
    for choice in choices:
        if choice.buckets:
            chosen.setdefault(choice.phase, []).extend(choice.buckets)
    if not chosen:
        return {}
    # An engine that dies in the middle of a capture would wait for the device, which ends it.
    gc.collect()
    stream.wait_stream(streams.current_stream())
    with streams.using(stream):
        every = [bucket for buckets in chosen.values() for bucket in buckets]
        buffers = GraphBuffers(every, streams.device, mask_size)
        memory = GraphMemory(buffers=buffers, pool=streams.graph_pool())
        for backend in {id(own): own for own in map(backends.of, chosen)}.values():
            backend.init_cuda_graph_state(buffers.max_batch_size, buffers.max_num_tokens)
    return {
        phase: GraphRunner(
            model,
            backends.of(phase),
            streams=streams,
            stream=stream,
            buckets=buckets,
            memory=memory,
            host_seq_lens=plan.host_seq_lens,
            shared_reads_end=_shared_reads_end(plan, phase),
        )
        for phase, buckets in chosen.items()
    }


def _shared_reads_end(plan: Plan, phase: Phase) -> SharedReadsEnd:
    point = plan["shared_reads_end", phase].value
    assert isinstance(point, SharedReadsEnd), "a plan's point is one of the scale"
    return point
