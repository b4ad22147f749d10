"""How many tokens of a prompt the next step gets.

Both answers have `chunk_size`, so whoever cuts prompts asks either.
"""

from __future__ import annotations

from fractions import Fraction
from math import isqrt, lcm
from typing import Annotated, Literal, Self, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, PositiveInt, model_validator

from backend_caps.runtime.pipeline.errors import ChunkLimitsError
from backend_caps.runtime.pipeline.fit import ChunkTimeFit
from backend_caps.runtime.pipeline.off import ChunksOff
from backend_caps.runtime.request import Request


class ChunkLimits(BaseModel):
    """Which chunk sizes there are: multiples of `granularity` up to `chunked_prefill_size`."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    chunked_prefill_size: PositiveInt
    """The most tokens of a chunk; also the chunk whose time the others are to take."""
    granularity: PositiveInt
    """What chunk sizes are multiples of: the page size, so that chunks end with pages."""

    @classmethod
    def of(cls, chunked_prefill_size: int, granularity: int) -> Self:
        """Make limits of what the server was given.

        Raises:
            ChunkLimitsError: no size is within them.
        """
        if not 1 <= granularity <= chunked_prefill_size:
            raise ChunkLimitsError(
                chunked_prefill_size=chunked_prefill_size, granularity=granularity
            )
        return cls(chunked_prefill_size=chunked_prefill_size, granularity=granularity)

    @model_validator(mode="after")
    def _check_order(self) -> Self:
        if self.granularity > self.chunked_prefill_size:
            raise ValueError(f"granularity {self.granularity} is above the chunk size")
        return self


class DynamicChunks(BaseModel):
    """Chunks that all take the time of the first one, by the fit."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["dynamic"] = "dynamic"
    """Tells the two answers apart in a record."""
    limits: ChunkLimits
    """Which sizes there are."""
    fit: ChunkTimeFit
    """How long they take."""

    @model_validator(mode="after")
    def _check_fit(self) -> Self:
        size = self.limits.chunked_prefill_size
        if self.fit.a <= 0 or self.fit.a * size + self.fit.b <= 0:
            raise ValueError(f"the fit {self.fit} gives {size} tokens no time of their own")
        return self

    def next_chunk(self, prefix_len: int) -> int:
        """Return how many tokens take as long after `prefix_len` others as the first chunk took.

        The answer is the largest multiple of the granularity that takes no longer; at least one
        granularity, and never more than `chunked_prefill_size`. It never grows with `prefix_len`.

        Exact: computed in whole numbers, so ranks with the same fit agree to the token.

        Args:
            prefix_len: tokens of the prompt that are in the KV cache.
        """
        a, b = self._whole_terms()
        size = self.limits.chunked_prefill_size
        target = (a * size + b) * size
        # f(h + x) - f(h) = a * x**2 + (2 * a * h + b) * x; where it meets the target, rounded down.
        slope = 2 * a * prefix_len + b
        num_tokens = (isqrt(slope**2 + 4 * a * target) - slope) // (2 * a)
        granularity = self.limits.granularity
        return max(granularity, num_tokens // granularity * granularity)

    def chunk_size(self, request: Request) -> int:
        """Return how many tokens of a request's prompt its next step may have."""
        return self.next_chunk(request.num_prefilled if request.row else 0)

    def _whole_terms(self) -> tuple[int, int]:
        """Return a and b in a unit of time in which both are whole."""
        a, b = Fraction(self.fit.a), Fraction(self.fit.b)
        units = lcm(a.denominator, b.denominator)
        return int(a * units), int(b * units)


class FixedChunks(BaseModel):
    """Chunks of one size, because of something."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["fixed"] = "fixed"
    """Tells the two answers apart in a record."""
    limits: ChunkLimits
    """Which sizes there are."""
    off: ChunksOff
    """Why sizes do not follow the prefix."""

    def chunk_size(self, request: Request) -> int:  # noqa: ARG002 - both answers are asked alike
        """Return how many tokens of a request's prompt its next step may have."""
        return self.limits.chunked_prefill_size


ChunkSizes: TypeAlias = Annotated[DynamicChunks | FixedChunks, Field(discriminator="kind")]
"""What a profile comes to; it crosses from the first rank to the others."""
