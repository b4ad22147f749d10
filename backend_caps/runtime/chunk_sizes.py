"""Sizes of prompt chunks that take equal times: prefills are timed, fitted, and cut by the fit.

A chunk attends to all tokens before it, so chunks of one size take longer and longer. The time of
a prefill of l tokens is fitted by a * l**2 + b * l + c, and later chunks of a prompt get fewer
tokens. Where no fit is to be had, chunks stay as large as the options say, with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import isqrt

import torch

from backend_caps.runtime.batch import ScheduleBatch
from backend_caps.runtime.errors import EngineError
from backend_caps.runtime.forward_batch import ForwardBatch
from backend_caps.runtime.memory import Resources
from backend_caps.runtime.request import Request, Sampling
from backend_caps.runtime.stats import now_s

MIN_SAMPLES = 8
"""Fewer times do not tell a curve from noise."""
_MAX_SIZES = 128
# The part of a time that solving in float64 may make up; a bend below it is none.
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkSample:
    """One measured prefill."""

    num_tokens: int
    """Tokens of the chunk, which began a prompt."""
    time_s: float
    """From forward entry until the device was done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkTimeFit:
    """The time of a prefill of l tokens: a * l**2 + b * l + c seconds."""

    a: float
    """Seconds a token and token before it: attention."""
    b: float
    """Seconds a token: everything else that grows with the chunk."""
    c: float
    """Seconds a forward."""

    def time_s(self, num_tokens: int) -> float:
        """Return the time of a prefill of so many tokens, by the fit."""
        return (self.a * num_tokens + self.b) * num_tokens + self.c

    def __str__(self) -> str:
        return f"a={self.a:.3g}, b={self.b:.3g}, c={self.c:.3g}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkSizes:
    """How many tokens of a prompt the next step gets.

    Raises:
        EngineError: `chunk-sizes`: no size is within the limits.
    """

    chunked_prefill_size: int
    """The most tokens of a chunk; also the chunk whose time the others are to take."""
    granularity: int
    """What chunk sizes are multiples of: the page size, so that chunks end with pages."""
    fit: ChunkTimeFit | None = None
    """How long chunks take; a is above 0. None: all have `chunked_prefill_size`."""
    off: str = ""
    """Why there is no fit."""

    def __post_init__(self) -> None:
        if not 1 <= self.granularity <= self.chunked_prefill_size:
            raise EngineError(
                "chunk-sizes",
                f"chunks of at most {self.chunked_prefill_size} tokens were asked for in multiples "
                f"of {self.granularity}; 1 <= granularity <= chunked_prefill_size was expected. "
                f"Give a larger --chunked-prefill-size, or a smaller granularity.",
            )

    def next_chunk(self, prefix_len: int) -> int:
        """Return how many tokens take as long after `prefix_len` others as the first chunk took.

        The answer is the largest multiple of the granularity that takes no longer; at least one
        granularity, and never more than `chunked_prefill_size`. It never grows with `prefix_len`.
        Exact: computed in whole numbers.

        Args:
            prefix_len: tokens of the prompt that are in the KV cache.
        """
        size = self.chunked_prefill_size
        if self.fit is None:
            return size
        (a, of_a), (b, of_b) = self.fit.a.as_integer_ratio(), self.fit.b.as_integer_ratio()
        a, b = a * of_b, b * of_a  # in a unit of time in which both are whole
        target = (a * size + b) * size
        # f(h + x) - f(h) = a * x**2 + (2 * a * h + b) * x; where it meets the target, rounded down.
        slope = 2 * a * prefix_len + b
        num_tokens = (isqrt(slope**2 + 4 * a * target) - slope) // (2 * a)
        return max(self.granularity, num_tokens // self.granularity * self.granularity)

    def chunk_size(self, request: Request) -> int:
        """Return how many tokens of a request's prompt its next step may have."""
        return self.next_chunk(request.num_prefilled if request.row else 0)


def fit_chunk_times(samples: Sequence[ChunkSample]) -> ChunkTimeFit | str:
    """Fit a quadratic to measured times by least squares, or say why none fits.

    No token takes less than no time, so b is at least 0: where the best fit has a smaller one,
    the best fit without b is taken. Noise in the times of short chunks would bend it down else.

    Args:
        samples: the warm-up is not among them.
    """
    num_sizes = len({sample.num_tokens for sample in samples})
    if num_sizes < MIN_SAMPLES:
        return (
            f"{num_sizes} chunk sizes were timed, and a fit takes {MIN_SAMPLES}. Make the KV "
            f"cache, the context or --chunked-prefill-size larger."
        )
    fit = _least_squares(samples)
    lengths = [sample.num_tokens for sample in samples]
    if fit.a * max(lengths) ** 2 <= _ROUNDING * max(sample.time_s for sample in samples):
        return (
            f"the fit over {len(samples)} chunks of {min(lengths)} to {max(lengths)} tokens has "
            f"{fit}; a > 0 was expected: time has to bend upwards"
        )
    return fit


def _least_squares(samples: Sequence[ChunkSample]) -> ChunkTimeFit:
    """Solve for a, b, c with lengths scaled to at most 1, so that squares do not drown the rest."""
    longest = max(sample.num_tokens for sample in samples)
    lengths = torch.tensor([own.num_tokens / longest for own in samples], dtype=torch.float64)
    times = torch.tensor([own.time_s for own in samples], dtype=torch.float64)[:, None]
    powers = torch.stack((lengths.square(), lengths, torch.ones_like(lengths)), dim=1)
    a, b, c = torch.linalg.lstsq(powers, times).solution[:, 0].tolist()
    if b < 0:
        b = 0.0
        a, c = torch.linalg.lstsq(powers[:, ::2], times).solution[:, 0].tolist()
    return ChunkTimeFit(a=a / longest**2, b=b / longest, c=c)


@dataclass(frozen=True, slots=True)
class ChunkProfiler:
    """Time prefills, with an engine's pools, relay and streams.

    Nothing else may run on them meanwhile: a server profiles before its first request.
    """

    forward: Callable[[ForwardBatch], object]
    """Enqueues a forward on the current stream."""
    resources: Resources
    """The engine's; as many rows and pages are free afterwards as before."""
    vocab_size: int
    """Tokens that the model knows."""
    clock: Callable[[], float] = now_s
    """The host's clock, in seconds."""

    @property
    def max_tokens(self) -> int:
        """The longest prompt that the pools hold now; a row is as wide as the context at least."""
        memory = self.resources.memory
        num_slots = memory.pages.num_free * memory.page_size
        return min(memory.rows.max_context_len, num_slots) if memory.rows.num_free else 0

    def profile(self, chunked_prefill_size: int, granularity: int) -> ChunkSizes:
        """Time chunks, fit their times, and say how prompts are cut.

        Whatever a forward raises becomes the reason why sizes stay fixed.

        Raises:
            EngineError: `chunk-sizes`: no size is within the limits.
        """
        fixed = ChunkSizes(chunked_prefill_size=chunked_prefill_size, granularity=granularity)
        samples: list[ChunkSample] = []
        for num_tokens in chunk_lengths(chunked_prefill_size, self.max_tokens):
            try:
                samples.append(self.time_chunk(num_tokens))
            except Exception as error:  # noqa: BLE001 - a backend raises what it likes
                raised = f"{type(error).__name__}: {error}"
                return replace(fixed, off=f"the forward of {num_tokens} tokens raised {raised}")
        # The first one also pays for lazy initialization, on every device.
        fit = fit_chunk_times(samples[1:])
        return replace(fixed, off=fit) if isinstance(fit, str) else replace(fixed, fit=fit)

    @torch.inference_mode()
    def time_chunk(self, num_tokens: int) -> ChunkSample:
        """Time a prefill of a prompt of so many tokens, `max_tokens` at most.

        What it took from the pools is free again, whether the forward succeeds or raises.

        Stream: prepared on the schedule stream, run on the forward stream.
        Sync: the whole device, before and after the forward. Allocates: a batch and its forward.
        """
        memory, step_streams = self.resources.memory, self.resources.step_streams
        assert memory.rows.num_free, "a chunk is timed where `max_tokens` says that it fits"
        prompt = tuple(place % self.vocab_size for place in range(num_tokens))
        request = Request(
            number=0, prompt=prompt, sampling=Sampling(max_new_tokens=1), stop_token_ids=frozenset()
        )
        request.enter(*memory.rows.alloc())
        try:
            with self.resources.streams.using(step_streams.schedule):
                batch = ScheduleBatch.prepare_for_extend([request], [num_tokens], memory)
            return ChunkSample(num_tokens=num_tokens, time_s=self._time_forward(batch.copy()))
        finally:
            memory.release(request.row)
            # A forward that raised may have enqueued reads of the table that others write next.
            step_streams.schedule.wait_stream(step_streams.forward)

    def _time_forward(self, batch: ScheduleBatch) -> float:
        streams = self.resources.streams
        streams.synchronize()
        began_s = self.clock()
        with streams.using(self.resources.step_streams.forward):
            # Prompt tokens are still on the host here: they cross at forward entry.
            self.resources.relay.resolve_future(batch)
            self.forward(ForwardBatch.init_new(batch))
        streams.synchronize()
        return self.clock() - began_s


def chunk_lengths(chunked_prefill_size: int, max_tokens: int) -> range:
    """List the chunk sizes to time, from a quarter above the largest chunk downwards.

    Args:
        chunked_prefill_size: the largest chunk.
        max_tokens: no size is above it.
    """
    longest = min(chunked_prefill_size * 5 // 4, max_tokens)
    step = max(1, -(-longest // _MAX_SIZES))
    return range(longest, 0, -step)
