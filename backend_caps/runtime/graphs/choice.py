"""Which kinds of batch are captured, and what keeps the others from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from backend_caps.capability.kind import Phase, Role
from backend_caps.capability.vocabulary import BatchKind
from backend_caps.relay.streams import DeviceTraits
from backend_caps.resolution.plan import Plan
from backend_caps.runtime.graphs.buckets import Bucket


class Obstacle(Enum):
    """What keeps a kind of batch from being captured."""

    DISABLED = "disabled"
    """The flags switch graphs off."""
    DEVICE = "device"
    """The device has no graphs."""
    BACKEND = "backend"
    """A backend of the phase does not declare that its captures may be replayed."""
    SPECULATION = "speculation"
    """A speculative engine runs it eagerly, or not at all."""
    SIZES = "sizes"
    """Nobody named sizes of it to capture."""

    @property
    def reason(self) -> str:
        """Say it in a few words."""
        return _REASONS[self]


_REASONS = {
    Obstacle.DISABLED: "--disable-cuda-graph is given",
    Obstacle.DEVICE: "the device has no graphs",
    Obstacle.BACKEND: "its backend does not declare it in graph_replay",
    Obstacle.SPECULATION: "with speculation the verify alone is captured",
    Obstacle.SIZES: "no sizes of it are named",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphChoice:
    """Whether one kind of batch is captured in one phase."""

    phase: Phase
    kind: BatchKind
    buckets: tuple[Bucket, ...]
    """What is captured; nothing where there is an obstacle."""
    obstacles: tuple[Obstacle, ...]
    """All that would have to go."""


def choose_graphs(
    plan: Plan,
    traits: DeviceTraits,
    buckets: Mapping[Phase, Sequence[Bucket]],
    role: Role = Role.TARGET,
) -> tuple[GraphChoice, ...]:
    """Decide on every kind of batch, in every phase that a role has.

    Args:
        plan: what the backends declare, and the flags.
        traits: what the device has.
        buckets: the sizes to capture, by phase.
        role: whose forwards.
    """
    served = {use.phase for use in plan.uses if use.role is role}
    return tuple(
        _choice(plan, traits, phase, kind, buckets.get(phase, ()))
        for phase in Phase
        if phase in served
        for kind in BatchKind
    )


def _choice(
    plan: Plan, traits: DeviceTraits, phase: Phase, kind: BatchKind, buckets: Sequence[Bucket]
) -> GraphChoice:
    replayed = plan["graph_replay", phase].value
    assert isinstance(replayed, frozenset), "a plan's set of kinds is a frozenset"
    speculates = plan.flags.speculative_algorithm is not None
    sizes = tuple(own for own in buckets if own.kind is kind)
    stands = {
        Obstacle.DISABLED: plan.flags.disable_cuda_graph,
        Obstacle.DEVICE: not traits.has_graphs,
        Obstacle.BACKEND: kind not in replayed,
        Obstacle.SPECULATION: speculates and phase is not Phase.VERIFY,
        Obstacle.SIZES: not sizes,
    }
    obstacles = tuple(own for own, is_there in stands.items() if is_there)
    return GraphChoice(
        phase=phase, kind=kind, buckets=() if obstacles else sizes, obstacles=obstacles
    )
