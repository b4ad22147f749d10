"""How forwards run: whole as one graph, in pieces around attention, or eagerly.

Three things are kept apart for each kind of batch in each phase: what is *supported*, what the
flags *request*, and what is *effective*. `COMBINATIONS` is the whole of how the third follows from
the first two.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType

from backend_caps.capability.kind import Phase
from backend_caps.resolution.flags import ServerFlags


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
_NEITHER: Supported = frozenset()
_PIECES: Supported = frozenset({_PIECEWISE})
_WHOLE: Supported = frozenset({_FULL})
_BOTH: Supported = frozenset({_FULL, _PIECEWISE})

_ALLOWED: Mapping[GraphRequest, frozenset[GraphMode]] = MappingProxyType(
    {
        GraphRequest.FULL_OR_PIECEWISE: _BOTH,
        GraphRequest.FULL: _WHOLE,
        GraphRequest.PIECEWISE: _PIECES,
        GraphRequest.EAGER: _NEITHER,
    }
)

COMBINATIONS: Mapping[tuple[GraphRequest, Supported], GraphMode] = MappingProxyType(
    {
        (GraphRequest.FULL_OR_PIECEWISE, _BOTH): _FULL,
        (GraphRequest.FULL_OR_PIECEWISE, _WHOLE): _FULL,
        (GraphRequest.FULL_OR_PIECEWISE, _PIECES): _PIECEWISE,
        (GraphRequest.FULL_OR_PIECEWISE, _NEITHER): _EAGER,
        (GraphRequest.FULL, _BOTH): _FULL,
        (GraphRequest.FULL, _WHOLE): _FULL,
        (GraphRequest.FULL, _PIECES): _EAGER,
        (GraphRequest.FULL, _NEITHER): _EAGER,
        (GraphRequest.PIECEWISE, _BOTH): _PIECEWISE,
        (GraphRequest.PIECEWISE, _WHOLE): _EAGER,
        (GraphRequest.PIECEWISE, _PIECES): _PIECEWISE,
        (GraphRequest.PIECEWISE, _NEITHER): _EAGER,
        (GraphRequest.EAGER, _BOTH): _EAGER,
        (GraphRequest.EAGER, _WHOLE): _EAGER,
        (GraphRequest.EAGER, _PIECES): _EAGER,
        (GraphRequest.EAGER, _NEITHER): _EAGER,
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
