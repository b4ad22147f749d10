"""Random traces: what a number of requests ask of an engine, how it is set up, and when.

A trace is a value made from a seed. What it asks for is legal: each request fits into the KV cache
by itself, so that every one of them ends, however often it is retracted.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum

from backend_caps.capability.vocabulary import HostSeqLens, SharedReadsEnd
from backend_caps.runtime.request import Sampling
from backend_caps.runtime.speculation import Algorithm, SpecSettings, num_candidates

VOCAB_SIZE = 64
MAX_LENGTH = 64
"""Of a context, in tokens."""
_ALGORITHMS = (
    *(Algorithm.EAGLE,) * 2,
    *(Algorithm.EAGLE3,) * 2,
    *(Algorithm.STANDALONE,) * 3,
    Algorithm.NGRAM,
)
"""Each as often as it is drawn: the last one overlaps nothing."""
_MOST_DRAFT_TOKENS = 12
"""More only take longer."""


class Backends(Enum):
    """Who attends."""

    NATIVE = "torch_native"
    """By the mirror."""
    PADDED = "torch_padded"
    """By the device alone."""
    PAIR = "torch_native, torch_padded"
    """Prompts by the mirror, decode steps by the device alone."""


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
        cls, rng: random.Random, *, is_chain: bool, two_batch: bool, levels: Sequence[HostSeqLens]
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


_DRAFTED = (Backends.PADDED, Backends.PADDED)
"""Who attends where lengths may stay on the device, beside what a plain trace has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One request."""

    prompt: tuple[int, ...]
    sampling: Sampling
    submitted_at: int
    """The step before which it comes."""
    aborted_at: int | None
    """The step before which it is given up; None: never."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """What happens to one engine."""

    seed: int
    asked: tuple[Asked, ...]
    idle_steps: frozenset[int]
    """Steps before which a step without requests is run."""
    backends: Backends
    replayed: SharedReadsEnd | None
    """Where replayed decode steps end their reads of the page table; None: no graphs."""
    replays_prompts: bool
    """Whether steps with prompts are replayed too."""
    watched: bool
    """Whether lengths are compared at every boundary: copying them is work on the device too."""
    overlapped: bool
    pinned: bool
    """Whether the device has pinned memory: without it tokens come by a copy that blocks."""
    mixed: bool
    page_size: int
    max_running_requests: int
    max_total_tokens: int
    chunked_prefill_size: int | None
    speculation: Speculation | None = None
    """How decode steps draft; None: they do not."""

    @classmethod
    def drawn(cls, seed: int, *, replays: bool = False) -> Trace:
        """Draw a trace; where it `replays`, its decode steps are graphs, else they may be."""
        rng = random.Random(seed)  # noqa: S311 - a trace, not a secret
        overlapped = replays or rng.random() < 0.8
        pinned = rng.random() < 0.8
        replayed = (
            rng.choice(tuple(SharedReadsEnd))
            if replays or (pinned and rng.random() < 0.4)
            else None
        )
        # A backend that slices by host lengths cannot be replayed.
        decodes = (Backends.PADDED, Backends.PAIR)
        backends = rng.choice(tuple(Backends) if replayed is None else decodes)
        page_size = rng.choice((1, 1, 4, 16))
        room = rng.choice((32, 48, 96, 256))
        asked = tuple(_asked(rng, room) for _ in range(rng.randint(2, 9)))
        steps = range(1, 12)
        return cls(
            seed=seed,
            asked=asked,
            idle_steps=frozenset(rng.sample(steps, 2)) if rng.random() < 0.2 else frozenset(),
            backends=backends,
            replayed=replayed,
            replays_prompts=replayed is not None and rng.random() < 0.5,
            watched=rng.random() < 0.5,
            overlapped=overlapped,
            pinned=pinned,
            mixed=rng.random() < 0.5,
            page_size=page_size,
            max_running_requests=rng.choice((2, 4, 16)),
            max_total_tokens=room,
            chunked_prefill_size=rng.choice((None, 4, 8)),
        )

    @classmethod
    def drafting(cls, seed: int) -> Trace:
        """Draw a trace whose decode steps draft, verify and accept.

        Steps write behind their contexts, so the KV cache is larger by that.
        """
        rng = random.Random(f"drafts {seed}")  # noqa: S311 - a trace, not a secret
        plain = cls.drawn(seed, replays=rng.random() < 0.4)
        plain = replace(plain, backends=rng.choice((*_DRAFTED, plain.backends)))
        # Prompts come with lengths on the host; rows that are mixed in come with what there is.
        is_told = plain.mixed and plain.backends is not Backends.PADDED
        speculation = Speculation.drawn(
            rng,
            is_chain=plain.backends is Backends.NATIVE,
            two_batch=plain.replayed is None,
            levels=(HostSeqLens.EXACT,) if is_told else tuple(HostSeqLens),
        )
        room = plain.max_total_tokens + speculation.settings.lookahead
        return replace(
            plain,
            speculation=speculation,
            max_total_tokens=-(-room // plain.page_size) * plain.page_size,
        )


def _asked(rng: random.Random, room: int) -> Asked:
    max_new_tokens = rng.randint(1, 10)
    longest = min(room, MAX_LENGTH) - max_new_tokens
    prompt = tuple(rng.randrange(VOCAB_SIZE) for _ in range(rng.randint(1, min(20, longest))))
    submitted_at = rng.choice((0, 0, rng.randrange(10)))
    aborted_at = submitted_at + rng.randrange(12) if rng.random() < 0.15 else None
    return Asked(
        prompt=prompt,
        sampling=_sampling(rng, max_new_tokens),
        submitted_at=submitted_at,
        aborted_at=aborted_at,
    )


def _sampling(rng: random.Random, max_new_tokens: int) -> Sampling:
    """Draw greedy and seeded requests: noise depends on positions, which are read last of all."""
    is_greedy = rng.random() < 0.4
    num_stops = rng.choice((0, 0, 3))
    return Sampling(
        max_new_tokens=max_new_tokens,
        temperature=0.0 if is_greedy else rng.choice((0.5, 1.0, 2.0)),
        top_k=rng.choice((None, None, 8)),
        top_p=rng.choice((1.0, 1.0, 0.9)),
        seed=rng.randrange(1000),
        stop_token_ids=frozenset(rng.sample(range(VOCAB_SIZE), num_stops)),
    )
