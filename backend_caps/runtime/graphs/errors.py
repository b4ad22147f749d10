"""What a caller can get wrong about captured forwards."""

from __future__ import annotations

from dataclasses import dataclass

from backend_caps.errors import BackendCapsError


@dataclass(eq=False, kw_only=True)
class GraphTokenCountError(BackendCapsError):
    """A graph is asked for more tokens than any step of the engine has."""

    num_tokens: int
    largest: int

    @property
    def message(self) -> str:
        """The number, the largest step, and what to do."""
        return (
            f"graph_token_counts has {self.num_tokens}; at most {self.largest} was expected, the "
            f"tokens of the largest step that the options and the context allow. Name "
            f"{self.largest} for all that can be, or fewer."
        )
