"""What a caller can get wrong about speculation's tensors."""

from __future__ import annotations

from dataclasses import dataclass

from backend_caps.errors import BackendCapsError


@dataclass(eq=False, kw_only=True)
class TreeMaskBufferError(BackendCapsError):
    """A buffer for tree masks is smaller than a batch's mask can be."""

    size: int
    """Its entries."""
    batch_size: int
    num_queries: int
    """Tokens of each request."""
    max_context_len: int
    seq_lens_sum: int | None
    """The exact sum of the contexts' lengths, where the host knows it."""

    @property
    def needed(self) -> int:
        """The entries that the mask has, or can have."""
        longest = self.batch_size * self.max_context_len
        return self.num_queries * (longest if self.seq_lens_sum is None else self.seq_lens_sum)

    @property
    def message(self) -> str:
        """Both sizes, where the needed one comes from, and what to do."""
        if self.seq_lens_sum is None:
            contexts = f"each of {self.batch_size} contexts of up to {self.max_context_len} places"
        else:
            contexts = f"{self.batch_size} contexts of {self.seq_lens_sum} places together"
        return (
            f"the buffer for tree masks has {self.size} entries; {self.needed} were expected, of "
            f"{self.num_queries} tokens for {contexts}. Make it for the largest batch, of "
            f"max_batch_size x num_draft_tokens x max_context_len entries, or serve less at once."
        )
