"""What an engine has captured, and what that takes of the device's memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor

from backend_caps.capability.kind import Phase
from backend_caps.capability.vocabulary import SharedReadsEnd
from backend_caps.runtime.forward_batch import ForwardBatch
from backend_caps.runtime.graphs.runner import Replayed
from backend_caps.startup.graph_modes import GraphMode


class PhaseGraphs(Protocol):
    """The graphs of one phase: full ones, or pieces."""

    @property
    def mode(self) -> GraphMode:
        """How the forwards run that they hold."""

    @property
    def shared_reads_end(self) -> SharedReadsEnd:
        """Where replays mark the end of their reads."""

    def holds(self, batch: ForwardBatch) -> bool:
        """Tell whether a batch can be replayed."""

    def replay(self, batch: ForwardBatch) -> Replayed:
        """Run a batch that they hold.

        Stream: the current one, which must be the captured one.
        """

    def mask_buffers(self, batch_size: int) -> Sequence[Tensor | None]:
        """Return the memory that they read tree masks from: [M] bool, device, or None.

        There are two, where the batch runs in halves; none, where no graph holds so many requests.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphUsage:
    """What captures took, the driver's own share of a graph aside, which nobody tells."""

    num_graphs: int = 0
    """How many there are; a forward in pieces has one more than the model has layers."""
    pool_bytes: int = 0
    """Of the pool in which all captures allocate."""
    static_bytes: int = 0
    """Of what batches are copied to before a replay, and of what pieces share with attention."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CapturedGraphs:
    """All captures of one role."""

    phases: Mapping[Phase, PhaseGraphs] = field(default_factory=dict)
    """The graphs of each phase that has any."""
    usage: GraphUsage = field(default_factory=GraphUsage)
    """What they take of the device's memory."""


def total_usage(captured: Iterable[CapturedGraphs]) -> GraphUsage:
    """Add up what the captures of several roles took, each of which has a pool of its own."""
    usages = [own.usage for own in captured]
    return GraphUsage(
        num_graphs=sum(own.num_graphs for own in usages),
        pool_bytes=sum(own.pool_bytes for own in usages),
        static_bytes=sum(own.static_bytes for own in usages),
    )
