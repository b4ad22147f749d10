"""A drawn trace: requests of mixed lengths that come as long as a dry run lasts."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from backend_caps.insight.dry_run.sizes import Sizes
from backend_caps.runtime.request import Sampling

_SHORTEST, _LEAST_NEW = 3, 4
_SHORT = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """One request."""

    prompt: Sequence[int]
    sampling: Sampling


def drawn(sizes: Sizes, *, vocab_size: int, seed: int) -> Iterator[Arrival]:
    """Draw requests without end: of each three a short one, one within a chunk and one of several.

    Args:
        sizes: the longest prompt, and how prompts are cut.
        vocab_size: tokens to draw from.
        seed: of the draw.
    """
    dice = random.Random(seed)  # noqa: S311 - the same again by its seed
    chunk = min(sizes.chunked_prefill_size or sizes.longest_prompt, sizes.longest_prompt)
    ends = (min(_SHORT, chunk), chunk, sizes.longest_prompt)
    longest, place = sizes.longest_output, 0
    while True:
        most = ends[place % len(ends)]
        least = min(_SHORTEST if place % len(ends) == 0 else most // 2, most)
        yield Arrival(
            prompt=tuple(dice.randrange(vocab_size) for _ in range(dice.randint(least, most))),
            sampling=Sampling(
                max_new_tokens=dice.randint(min(_LEAST_NEW, longest), longest),
                stop_token_ids=frozenset(),
            ),
        )
        place += 1
