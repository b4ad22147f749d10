"""How long a prefill of so many tokens takes: a quadratic through measured times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from pydantic import BaseModel, ConfigDict, FiniteFloat

from backend_caps.runtime.pipeline.off import ChunksOff, OffCause

MIN_SAMPLES = 8
"""Fewer times do not tell a curve from noise."""

# The part of a time that solving in float64 may make up; a bend below it is none.
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkSample:
    """One measured prefill."""

    num_tokens: int
    """Tokens of the chunk, which began a prompt."""
    time_s: float
    """From forward entry until the device was done."""


class ChunkTimeFit(BaseModel):
    """The time of a prefill of l tokens: a * l**2 + b * l + c seconds."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    a: FiniteFloat
    """Seconds a token and token before it: attention."""
    b: FiniteFloat
    """Seconds a token: everything else that grows with the chunk."""
    c: FiniteFloat
    """Seconds a forward."""

    def time_s(self, num_tokens: int) -> float:
        """Return the time of a prefill of so many tokens, by the fit."""
        return (self.a * num_tokens + self.b) * num_tokens + self.c

    def __str__(self) -> str:
        return f"a={self.a:.3g}, b={self.b:.3g}, c={self.c:.3g}"


def fit_chunk_times(samples: Sequence[ChunkSample]) -> ChunkTimeFit | ChunksOff:
    """Fit a quadratic to measured times by least squares, or say why none fits.

    No token takes less than no time, so b is at least 0: where the best fit has a smaller one,
    the best fit without b is taken. Noise in the times of short chunks would bend it down else.

    Args:
        samples: the warm-up is not among them.
    """
    num_sizes = len({sample.num_tokens for sample in samples})
    if num_sizes < MIN_SAMPLES:
        reason = (
            f"{num_sizes} chunk sizes were timed, and a fit takes {MIN_SAMPLES}. Make the KV "
            f"cache, the context or --chunked-prefill-size larger."
        )
        return ChunksOff.because(OffCause.TOO_FEW_SAMPLES, reason)
    fit = _least_squares(samples)
    shortest = min(sample.num_tokens for sample in samples)
    longest = max(sample.num_tokens for sample in samples)
    over = f"over {len(samples)} chunks of {shortest} to {longest} tokens"
    if fit.a * longest**2 <= _ROUNDING * max(sample.time_s for sample in samples):
        reason = f"the fit {over} has {fit}; a > 0 was expected: time has to bend upwards"
        return ChunksOff.because(OffCause.NOT_CONVEX, reason)
    return fit


def _least_squares(samples: Sequence[ChunkSample]) -> ChunkTimeFit:
    """Solve for a, b, c with lengths scaled to at most 1, so that squares do not drown the rest."""
    longest = max(sample.num_tokens for sample in samples)
    lengths = torch.tensor([own.num_tokens / longest for own in samples], dtype=torch.float64)
    times = torch.tensor([own.time_s for own in samples], dtype=torch.float64)
    squares, ones = lengths.square(), torch.ones_like(lengths)
    a, b, c = _solved((squares, lengths, ones), times)
    if b < 0:
        b = 0.0
        a, c = _solved((squares, ones), times)
    return ChunkTimeFit(a=a / longest**2, b=b / longest, c=c)


def _solved(powers: Sequence[torch.Tensor], times: torch.Tensor) -> list[float]:
    """Return the factor of each power that comes closest to the times."""
    columns = torch.stack(tuple(powers), dim=1)
    factors: list[float] = torch.linalg.lstsq(columns, times[:, None]).solution[:, 0].tolist()
    return factors
