"""How forwards run: whole as one graph, in pieces around attention, or eagerly; and graphs' sizes.

Three things are kept apart for each kind of batch: what is *supported*, what the flags *request*,
and what is *effective*. `COMBINATIONS` is the whole of how the third follows from the first two.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from itertools import product
from types import MappingProxyType

from backend_caps.capability.kind import Phase
from backend_caps.capability.vocabulary import BatchKind
from backend_caps.resolution.flags import ServerFlags
from backend_caps.startup.errors import StartupError


class GraphMode(Enum):
    """How a forward runs."""

    FULL = "full"
    """One captured graph, attention included."""
    PIECEWISE = "piecewise"
    """A captured graph before, between and behind attentions, which run eagerly."""
    EAGER = "eager"
    """No graph: the host launches each operator."""


class GraphRequest(Enum):
    """What flags ask for, in a phase."""

    FULL_OR_PIECEWISE = "full or piecewise"
    """The best of what is supported."""
    FULL = "full"
    """One graph, or none."""
    PIECEWISE = "piecewise"
    """Pieces, also where one graph is supported, or none."""
    EAGER = "eager"
    """No graph."""

    @property
    def modes(self) -> frozenset[GraphMode]:
        """The modes with graphs that it allows."""
        return _ALLOWED[self]


Supported = frozenset[GraphMode]
"""The modes with graphs that a kind of batch can run in; it can always run eagerly."""

_FULL, _PIECEWISE, _EAGER = GraphMode
_ALLOWED: Mapping[GraphRequest, Supported] = {
    GraphRequest.FULL_OR_PIECEWISE: frozenset({_FULL, _PIECEWISE}),
    GraphRequest.FULL: frozenset({_FULL}),
    GraphRequest.PIECEWISE: frozenset({_PIECEWISE}),
    GraphRequest.EAGER: frozenset(),
}

COMBINATIONS: Mapping[tuple[GraphRequest, Supported], GraphMode] = MappingProxyType(
    {
        (request, supported): next(
            (mode for mode in (_FULL, _PIECEWISE) if mode in request.modes & supported), _EAGER
        )
        for request, supported in product(GraphRequest, _ALLOWED.values())
    }
)
"""The effective mode, by what is requested and what is supported."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Requested:
    """What flags ask for, and which of them says so."""

    request: GraphRequest
    cause: str
    """The flag, or that there is none."""


def requested(flags: ServerFlags, phase: Phase) -> Requested:
    """Read what a server's flags ask for in a phase.

    The engine that they are named after runs prompts alone in pieces, so the flag that enforces
    pieces is about prefill; the one that forbids them forbids them everywhere.
    """
    if flags.enforce_piecewise_cuda_graph and phase is Phase.PREFILL:
        request, flag = GraphRequest.PIECEWISE, "--enforce-piecewise-cuda-graph"
    elif flags.disable_cuda_graph:
        request, flag = GraphRequest.EAGER, "--disable-cuda-graph"
    elif flags.disable_piecewise_cuda_graph:
        request, flag = GraphRequest.FULL, "--disable-piecewise-cuda-graph"
    else:
        return Requested(request=GraphRequest.FULL_OR_PIECEWISE, cause="no flag asks for less")
    return Requested(request=request, cause=f"{flag} is given")


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """One graph's size: a batch that is smaller is padded to it, where it pads.

    Raises:
        StartupError: its kind has no batch of this size.
    """

    kind: BatchKind
    batch_size: int
    num_tokens: int
    """Of all requests together."""
    pads: bool = True
    """Whether it holds fewer requests than its size."""

    def __post_init__(self) -> None:
        expected = _expected(self)
        if expected is not None:
            raise StartupError(
                "graph-size",
                f"a graph for {self.kind.value!r} has batch_size={self.batch_size} and "
                f"num_tokens={self.num_tokens}; {expected} was expected. Name other sizes.",
            )

    @property
    def tokens_each(self) -> int | None:
        """The tokens of every request; None where each brings its own number."""
        if self.kind is BatchKind.MIXED_BATCH:
            return None
        return self.num_tokens // self.batch_size

    @property
    def halves(self) -> tuple[Bucket, Bucket] | None:
        """The sizes of a batch's halves, of which the second has the odd request; None: no halves.

        One request is no two halves. Where each request brings its own number of tokens, halves
        begin at another token in each batch, and a graph begins at that of its capture.
        """
        first = self.batch_size // 2
        if not first or self.tokens_each is None:
            return None
        sizes, each = (first, self.batch_size - first), self.tokens_each
        one, other = (replace(self, batch_size=own, num_tokens=own * each) for own in sizes)
        return one, other


def uniform_buckets(
    batch_sizes: Iterable[int], tokens_each: int = 1, *, pads: bool = True
) -> tuple[Bucket, ...]:
    """Make a bucket for each batch size, where every request brings the same number of tokens.

    Args:
        batch_sizes: the sizes.
        tokens_each: the tokens of each request.
        pads: whether a batch of another size is padded to one of them.

    Raises:
        StartupError: a number is below 1.
    """
    is_single = tokens_each == 1
    kind = BatchKind.SINGLE_TOKEN_DECODE if is_single else BatchKind.UNIFORM_BATCH
    return tuple(
        Bucket(kind=kind, batch_size=size, num_tokens=size * tokens_each, pads=pads)
        for size in sorted(set(batch_sizes))
    )


def mixed_buckets(batch_size: int, token_counts: Iterable[int]) -> tuple[Bucket, ...]:
    """Make a bucket for each number of tokens, all for up to the same number of requests.

    Raises:
        StartupError: a number is below 1.
    """
    return tuple(
        Bucket(kind=BatchKind.MIXED_BATCH, batch_size=batch_size, num_tokens=count)
        for count in sorted(set(token_counts))
    )


def smallest_first(buckets: Iterable[Bucket]) -> Sequence[Bucket]:
    """Sort buckets by what they cost: the first one that holds a batch is the best one."""
    return sorted(buckets, key=lambda own: (own.num_tokens, own.batch_size))


def _expected(bucket: Bucket) -> str | None:
    """Say what the bucket's kind asks for, where the bucket does not have it."""
    if bucket.batch_size < 1 or bucket.num_tokens < 1:
        return "at least 1 of each"
    match bucket.kind:
        case BatchKind.SINGLE_TOKEN_DECODE if bucket.num_tokens != bucket.batch_size:
            return "one token a request"
        case BatchKind.UNIFORM_BATCH if (
            bucket.num_tokens % bucket.batch_size or bucket.num_tokens == bucket.batch_size
        ):
            return "the same number of tokens, above 1, for each request"
        case _:
            return None
