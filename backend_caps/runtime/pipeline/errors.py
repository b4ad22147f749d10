"""What a caller can get wrong about chunk sizes."""

from __future__ import annotations

from dataclasses import dataclass

from backend_caps.errors import BackendCapsError


@dataclass(eq=False, kw_only=True)
class ChunkLimitsError(BackendCapsError):
    """No chunk size is a multiple of the granularity and within the limit."""

    chunked_prefill_size: int
    granularity: int

    @property
    def message(self) -> str:
        """Both sizes, what holds between them, and what to change."""
        return (
            f"chunks of at most {self.chunked_prefill_size} tokens were asked for in multiples of "
            f"{self.granularity}; 1 <= granularity <= chunked_prefill_size was expected. Give a "
            f"larger --chunked-prefill-size, or a smaller granularity."
        )
