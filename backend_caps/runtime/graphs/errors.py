"""What a caller can get wrong about captured forwards."""

from __future__ import annotations

from dataclasses import dataclass

from backend_caps.errors import BackendCapsError


@dataclass(eq=False, kw_only=True)
class GraphBucketError(BackendCapsError):
    """A graph is asked for a batch that its kind does not have."""

    kind: str
    batch_size: int
    num_tokens: int
    expected: str

    @property
    def message(self) -> str:
        """The sizes, and what the kind asks of them."""
        return (
            f"a graph for {self.kind!r} has batch_size={self.batch_size} and "
            f"num_tokens={self.num_tokens}; {self.expected} was expected. Name other sizes."
        )


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
