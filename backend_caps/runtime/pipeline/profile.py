"""Time real prefills of many chunk sizes on this rank's stage."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol

import torch
from torch.distributed import ProcessGroup

from backend_caps.relay import FutureMap
from backend_caps.relay.streams import StepStreams
from backend_caps.runtime.batch import ScheduleBatch
from backend_caps.runtime.forward_batch import ForwardBatch
from backend_caps.runtime.memory import RequestMemory
from backend_caps.runtime.pipeline.agreement import agree_on_chunks
from backend_caps.runtime.pipeline.chunks import ChunkLimits, ChunkSizes, DynamicChunks, FixedChunks
from backend_caps.runtime.pipeline.fit import ChunkSample, fit_chunk_times
from backend_caps.runtime.pipeline.off import ChunksOff, OffCause
from backend_caps.runtime.request import Request, Sampling
from backend_caps.runtime.staging import Staging
from backend_caps.runtime.stats import now_s

_MAX_SIZES = 128


class ForwardRunner(Protocol):
    """What runs a stage's forward: a `Worker`."""

    def forward(self, batch: ForwardBatch, /) -> object:
        """Enqueue a forward on the current stream."""


class ChunkProfiler:
    """Time prefills, with this rank's own pools, relay and streams.

    Nothing else may run on them meanwhile: a server profiles before its first request.

    Args:
        runner: runs the stage's forward.
        memory: rows and pages; as many are free afterwards as before.
        relay: puts staged tokens where the forward reads them.
        staging: carries host numbers to the device.
        step_streams: the streams of steps.
        vocab_size: tokens that the model knows.
        clock: the host's clock, in seconds.
    """

    def __init__(
        self,
        *,
        runner: ForwardRunner,
        memory: RequestMemory,
        relay: FutureMap,
        staging: Staging,
        step_streams: StepStreams,
        vocab_size: int,
        clock: Callable[[], float] = now_s,
    ) -> None:
        self._runner = runner
        self._memory = memory
        self._relay = relay
        self._staging = staging
        self._streams = staging.streams
        self._on = step_streams
        self._vocab_size = vocab_size
        self._clock = clock

    @property
    def max_tokens(self) -> int:
        """The longest prompt that the pools hold now; a row is as wide as the context at least."""
        rows, pages = self._memory.rows, self._memory.pages
        if not rows.num_free:
            return 0
        return min(rows.max_context_len, pages.num_free * self._memory.page_size)

    @torch.inference_mode()
    def time_chunk(self, num_tokens: int) -> ChunkSample:
        """Time a prefill of a prompt of so many tokens, `max_tokens` at most.

        What it took from the pools is free again, whether the forward succeeds or raises.

        Stream: prepared on the schedule stream, run on the forward stream.
        Sync: the whole device, before and after the forward. Allocates: a batch and its forward.
        """
        rows = self._memory.rows
        assert rows.num_free, "a chunk is timed where `max_tokens` says that it fits"
        prompt = tuple(place % self._vocab_size for place in range(num_tokens))
        request = Request(
            number=0, prompt=prompt, sampling=Sampling(max_new_tokens=1), stop_token_ids=frozenset()
        )
        request.enter(*rows.alloc())
        try:
            with self._streams.using(self._on.schedule):
                batch = ScheduleBatch.prepare_for_extend(
                    [request], [num_tokens], self._memory, self._staging
                )
            return ChunkSample(num_tokens=num_tokens, time_s=self._time_forward(batch.copy()))
        finally:
            self._memory.release(request.row)
            # A forward that raised may have enqueued reads of the table that others write next.
            self._on.schedule.wait_stream(self._on.forward)

    def _time_forward(self, batch: ScheduleBatch) -> float:
        self._streams.synchronize()
        began_s = self._clock()
        with self._streams.using(self._on.forward):
            self._relay.resolve_future(batch)
            self._runner.forward(ForwardBatch.init_new(batch, self._staging))
        self._streams.synchronize()
        return self._clock() - began_s


def chunk_lengths(limits: ChunkLimits, max_tokens: int) -> range:
    """List the chunk sizes to time, from a quarter above the largest chunk downwards.

    Args:
        limits: name the largest chunk.
        max_tokens: no size is above it.
    """
    longest = min(limits.chunked_prefill_size * 5 // 4, max_tokens)
    step = max(1, -(-longest // _MAX_SIZES))
    return range(longest, 0, -step)


def profile_chunks(profiler: ChunkProfiler, limits: ChunkLimits) -> ChunkSizes:
    """Time chunks, fit their times, and say how prompts are cut.

    Whatever a forward raises becomes the reason why sizes stay fixed.

    Args:
        profiler: times chunks.
        limits: which sizes there are.
    """
    samples: list[ChunkSample] = []
    for num_tokens in chunk_lengths(limits, profiler.max_tokens):
        try:
            samples.append(profiler.time_chunk(num_tokens))
        except Exception as error:  # noqa: BLE001 - a backend raises what it likes
            said = f"the forward of {num_tokens} tokens raised {type(error).__name__}: {error}"
            off = ChunksOff.because(OffCause.FORWARD_FAILED, said)
            return FixedChunks(limits=limits, off=off)
    # The first one also pays for lazy initialisation, on every device.
    fit = fit_chunk_times(samples[1:])
    if isinstance(fit, ChunksOff):
        return FixedChunks(limits=limits, off=fit)
    return DynamicChunks(limits=limits, fit=fit)


def balanced_sizes(
    profiler: ChunkProfiler, limits: ChunkLimits, group: ProcessGroup | None
) -> ChunkSizes:
    """Return the chunk sizes to use, the same on every rank of a group where there is one."""
    profile = partial(profile_chunks, profiler, limits)
    return profile() if group is None else agree_on_chunks(limits, group, profile)
