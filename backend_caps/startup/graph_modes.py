"""Graph modes of forwards (full, piecewise or eager), and the sizes of graphs.

For each kind of batch there are the *supported* modes, the mode that the flags *request*, and the
*effective* mode. `COMBINATIONS` maps the first two to the third.
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
    """What the flags request in a phase."""

    FULL_OR_PIECEWISE = "full or piecewise"
    """The fastest supported mode."""
    FULL = "full"
    """A full graph, else eager."""
    PIECEWISE = "piecewise"
    """Piecewise, even where a full graph is supported, else eager."""
    EAGER = "eager"
    """No graph."""

    @property
    def modes(self) -> frozenset[GraphMode]:
        """The modes with graphs that the request allows."""
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
"""The effective mode, by request and supported modes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Requested:
    """What the flags request, and the flag that decides."""

    request: GraphRequest
    cause: str
    """The flag in words, or that there is none."""


def requested(flags: ServerFlags, phase: Phase) -> Requested:
    """Return what a server's flags request in a phase.

    SGLang, which has these flags, runs only prompts piecewise. So the flag that enforces pieces
    applies to prefill, and the one that disables them to every phase.
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
    """The size of one graph; a smaller batch is padded to it where `pads` is true.

    Raises:
        StartupError: its kind has no batch of this size.
    """

    kind: BatchKind
    batch_size: int
    num_tokens: int
    """Tokens of all requests together."""
    pads: bool = True
    """Whether a batch with fewer requests may use the graph."""

    def __post_init__(self) -> None:
        expected = _unmet(self)
        if expected is not None:
            raise StartupError(
                "graph-size",
                f"a graph for {self.kind.value!r} has batch_size={self.batch_size} and "
                f"num_tokens={self.num_tokens}; {expected} was expected. Name other sizes.",
            )

    @property
    def tokens_each(self) -> int | None:
        """Tokens of each request; None where the number differs between requests."""
        if self.kind is BatchKind.MIXED_BATCH:
            return None
        return self.num_tokens // self.batch_size

    @property
    def halves(self) -> tuple[Bucket, Bucket] | None:
        """The sizes of a batch's halves, the odd request in the second; None without halves.

        One request cannot be halved. Where requests have different numbers of tokens, the second
        half starts at a token that differs from batch to batch, and a graph has it fixed.
        """
        first = self.batch_size // 2
        if not first or self.tokens_each is None:
            return None
        sizes, each = (first, self.batch_size - first), self.tokens_each
        one, other = (replace(self, batch_size=size, num_tokens=size * each) for size in sizes)
        return one, other


def uniform_buckets(
    batch_sizes: Iterable[int], tokens_each: int = 1, *, pads: bool = True
) -> tuple[Bucket, ...]:
    """Make a bucket for each batch size, where every request has the same number of tokens.

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
    """Sort buckets by cost: the first that holds a batch is the cheapest for it."""
    return sorted(buckets, key=lambda bucket: (bucket.num_tokens, bucket.batch_size))


def _unmet(bucket: Bucket) -> str | None:
    """Return what the bucket's kind requires and the bucket does not have; None if valid."""
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
