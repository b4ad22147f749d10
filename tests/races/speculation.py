"""How an engine of a random trace speculates."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from backend_caps.capability.vocabulary import HostSeqLens
from backend_caps.runtime.speculation import Algorithm, SpecSettings, num_candidates

_ALGORITHMS = (
    *(Algorithm.EAGLE,) * 2,
    *(Algorithm.EAGLE3,) * 2,
    *(Algorithm.STANDALONE,) * 3,
    Algorithm.NGRAM,
)
"""Each as often as it is drawn: the last one overlaps nothing."""
_MOST_DRAFT_TOKENS = 12
"""More only take longer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Speculation:
    """What drafts, how large its trees are, and what the host knows of lengths."""

    settings: SpecSettings
    host_seq_lens: HostSeqLens
    """What a rule forces; backends may need more."""
    two_batch: bool
    """Whether eager forwards of the target run in two halves."""

    @classmethod
    def drawn(
        cls,
        rng: random.Random,
        *,
        is_chain: bool,
        two_batch: bool,
        levels: Sequence[HostSeqLens],
    ) -> Speculation:
        """Draw one of what a trace's backends serve."""
        topk = 1 if is_chain else rng.choice((1, 2, 4))
        num_steps = rng.randint(1, 3)
        most = min(num_candidates(topk, num_steps) + 1, _MOST_DRAFT_TOKENS)
        settings = SpecSettings(
            algorithm=rng.choice(_ALGORITHMS),
            topk=topk,
            num_steps=num_steps,
            num_draft_tokens=rng.randint(num_steps + 1, most),
        )
        return cls(
            settings=settings,
            host_seq_lens=rng.choice(levels),
            two_batch=two_batch and rng.random() < 0.2,
        )
