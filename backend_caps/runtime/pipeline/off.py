"""Why chunk sizes stay fixed."""

from __future__ import annotations

from enum import Enum
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field

MAX_REASON = 512
"""Characters of a reason, so that a record of it has a bounded size."""


class OffCause(Enum):
    """What keeps chunk sizes from following the prefix."""

    TOO_FEW_SAMPLES = "too_few_samples"
    """Fewer chunk sizes fit into the pools than a fit takes."""
    FORWARD_FAILED = "forward_failed"
    """A forward of the profile raised."""
    NOT_CONVEX = "not_convex"
    """Time does not grow faster than the number of tokens, so later chunks cost no more."""
    RANKS_DISAGREE = "ranks_disagree"
    """A rank could not read the first rank's record, or cuts prompts by other limits."""


class ChunksOff(BaseModel):
    """Say why, as every rank reports it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    cause: OffCause
    """What a caller may act on."""
    reason: Annotated[str, Field(max_length=MAX_REASON)]
    """What happened, with its numbers."""

    @classmethod
    def because(cls, cause: OffCause, reason: str) -> Self:
        """Make one of a text of any length and any characters."""
        return cls(cause=cause, reason=writable(reason))


def writable(text: str) -> str:
    """Shorten a text to a reason's length, and spell out what UTF-8 cannot write."""
    spelled = text.encode("utf-8", "backslashreplace").decode("utf-8")
    return spelled if len(spelled) <= MAX_REASON else f"{spelled[: MAX_REASON - 3]}..."
