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
