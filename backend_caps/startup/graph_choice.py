"""How batches run in each phase: what is supported, what is requested, what comes of both."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import takewhile
from types import MappingProxyType

from backend_caps.capability.kind import Phase, Role
from backend_caps.capability.vocabulary import BatchKind
from backend_caps.relay.streams import DeviceTraits
from backend_caps.resolution.flags import ServerFlags
from backend_caps.resolution.plan import CauseKind, Plan
from backend_caps.startup.graph_modes import (
    COMBINATIONS,
    Bucket,
    GraphMode,
    GraphRequest,
    Requested,
    requested,
)

KIND_OF_PHASE: Mapping[Phase, BatchKind] = MappingProxyType(
    {
        Phase.PREFILL: BatchKind.MIXED_BATCH,
        Phase.DECODE: BatchKind.SINGLE_TOKEN_DECODE,
        Phase.VERIFY: BatchKind.UNIFORM_BATCH,
    }
)
"""What the batches of each phase of the target are, in this engine."""


def kind_of(flags: ServerFlags, role: Role, phase: Phase) -> BatchKind:
    """Return what the batches of a role and phase are: a tree's draft step has several tokens."""
    is_draft_step = role is Role.DRAFT and phase is Phase.DECODE
    if is_draft_step and (flags.speculative_eagle_topk or 1) > 1:
        return BatchKind.UNIFORM_BATCH
    return KIND_OF_PHASE[phase]


class Obstacle(Enum):
    """What keeps a kind of batch from a mode, in a few words."""

    DEVICE = "the device has no graphs"
    """The device has no graphs."""
    BACKEND = "its backend does not declare it in graph_replay"
    """A backend of the phase does not declare that its captures may be replayed."""
    SPECULATION = "of the target, speculation captures only the verify"
    """A speculative engine needs more of it than a full graph leaves, or does not run it."""
    DRAFT = "of a draft model, draft steps and draft-extend alone are captured, whole"
    """It is of a draft model, of which this is not captured."""
    TWO_BATCH = "--enable-two-batch-overlap runs it in halves, eagerly"
    """Batches run in halves: pieces hold them whole, and a graph of prompts cannot cut them."""
    SIZES = "no sizes of it are named"
    """Nobody named sizes of it to capture."""


SUPPORTED_BECAUSE: Mapping[GraphMode, str] = MappingProxyType(
    {
        GraphMode.FULL: "its backend declares it in graph_replay",
        GraphMode.PIECEWISE: "attention runs eagerly, whatever its backend declares",
        GraphMode.EAGER: "every backend runs eagerly",
    }
)
"""Why a kind of batch can run in a mode that nothing keeps it from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TwoBatch:
    """Whether batches of two requests or more run in halves."""

    runs_halves: bool
    because: str
    """What runs them so, or keeps them whole."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphChoice:
    """How one kind of batch runs in one phase."""

    phase: Phase
    kind: BatchKind
    obstacles: Mapping[GraphMode, tuple[Obstacle, ...]]
    """All that would have to go for a mode with graphs to be supported; nothing where it is."""
    requested: Requested
    """What the flags ask for."""
    effective: GraphMode
    """What comes of it."""
    two_batch: TwoBatch
    """Whether it runs in halves, where it has two requests or more."""
    buckets: tuple[Bucket, ...] = ()
    """What full graphs are captured of; nothing in another mode."""
    token_counts: tuple[int, ...] = ()
    """What pieces are captured of; nothing in another mode."""

    @property
    def supported(self) -> tuple[GraphMode, ...]:
        """The modes that it can run in, the best one first."""
        return tuple(mode for mode in GraphMode if not self.obstacles.get(mode))

    @property
    def refused(self) -> Mapping[GraphMode, tuple[Obstacle | Requested, ...]]:
        """What keeps each better mode than the effective one from being it: all of it."""
        better = takewhile(lambda mode: mode is not self.effective, GraphMode)
        asked = self.requested
        return {
            mode: (*(() if mode in asked.request.modes else (asked,)), *self.obstacles[mode])
            for mode in better
        }


def choose_graphs(
    plan: Plan,
    traits: DeviceTraits,
    buckets: Mapping[Phase, Sequence[Bucket]],
    token_counts: Sequence[int] = (),
    role: Role = Role.TARGET,
) -> tuple[GraphChoice, ...]:
    """Decide on every kind of batch, in every phase that a role has.

    Args:
        plan: what the backends declare, and the flags.
        traits: what the device has.
        buckets: the sizes of full graphs, by phase.
        token_counts: the sizes of pieces, of all phases.
        role: whose forwards.
    """
    served = {use.phase for use in plan.uses if use.role is role}
    return tuple(
        _Batches(plan, traits, role, phase, kind).choice(buckets.get(phase, ()), token_counts)
        for phase in Phase
        if phase in served
        for kind in BatchKind
    )


def halved_phases(choices: Iterable[GraphChoice]) -> frozenset[Phase]:
    """Return the phases whose batches run in halves, eagerly or in graphs of both."""
    halved = (own for own in choices if own.two_batch.runs_halves)
    return frozenset(own.phase for own in halved if own.kind is KIND_OF_PHASE[own.phase])


@dataclass(frozen=True, slots=True)
class _Batches:
    """One kind of batch, in one phase of a role."""

    plan: Plan
    traits: DeviceTraits
    role: Role
    phase: Phase
    kind: BatchKind

    def choice(self, buckets: Sequence[Bucket], token_counts: Sequence[int]) -> GraphChoice:
        """Decide how it runs, of these sizes of its phase."""
        sizes = tuple(own for own in buckets if own.kind is self.kind)
        is_usual = self.kind is KIND_OF_PHASE[self.phase]
        counts = tuple(sorted(set(token_counts))) if is_usual else ()
        asked = requested(self.plan.flags, self.phase)
        obstacles = {
            GraphMode.FULL: self._obstacles(GraphMode.FULL, asked, sizes),
            GraphMode.PIECEWISE: self._obstacles(GraphMode.PIECEWISE, asked, counts),
        }
        supported = frozenset(mode for mode, left in obstacles.items() if not left)
        effective = COMBINATIONS[asked.request, supported]
        return GraphChoice(
            phase=self.phase,
            kind=self.kind,
            obstacles=obstacles,
            requested=asked,
            effective=effective,
            two_batch=self._two_batch(asked, effective),
            buckets=sizes if effective is GraphMode.FULL else (),
            token_counts=counts if effective is GraphMode.PIECEWISE else (),
        )

    @property
    def _speculates(self) -> bool:
        return self.plan.flags.speculative_algorithm is not None

    def _obstacles(
        self, mode: GraphMode, asked: Requested, sizes: Sequence[object]
    ) -> tuple[Obstacle, ...]:
        """List what keeps a kind of batch from a mode; of pieces it is nothing of a backend's."""
        is_full, is_target = mode is GraphMode.FULL, self.role is Role.TARGET
        is_drafted = not is_target and (self.phase is Phase.PREFILL or not is_full)
        # A draft head wants the state of every token; a graph of prompts keeps the last ones.
        is_plain = self.phase is not Phase.VERIFY if is_full else self.phase is Phase.DECODE
        # Halves begin at another token in each batch of prompts; pieces hold whole batches, and
        # come before halves where a flag names them.
        is_mixed = self.kind is BatchKind.MIXED_BATCH
        cuts = is_mixed if is_full else asked.request is not GraphRequest.PIECEWISE
        against = {
            Obstacle.DEVICE: not self.traits.has_graphs,
            Obstacle.BACKEND: is_full and self.kind not in self._replayed(),
            Obstacle.SPECULATION: is_target and self._speculates and is_plain,
            Obstacle.DRAFT: is_drafted,
            Obstacle.TWO_BATCH: cuts and self._kept_whole() is None,
            Obstacle.SIZES: not (sizes or is_drafted),
        }
        return tuple(own for own in Obstacle if against[own])

    def _kept_whole(self) -> str | None:
        """Say what keeps every batch of a role and phase whole; None where nothing does."""
        supported = self.plan["two_batch_overlap"]
        if not self.plan.flags.enable_two_batch_overlap:
            return "--enable-two-batch-overlap is not given"
        if self.role is not Role.TARGET:
            return "drafts run whole"
        against = {
            cause.name
            for cause in supported.causes
            if cause.value is False and cause.role in (Role.TARGET, None)
        }
        if supported.value is False and against:
            names = ", ".join(map(repr, sorted(against)))
            return f"switched off: two_batch_overlap is not supported by {names}"
        if self.phase is Phase.DECODE and self._speculates:
            return "with speculation no plain decode runs"
        return None

    def _two_batch(self, asked: Requested, effective: GraphMode) -> TwoBatch:
        """Say whether batches run in halves, in the mode that they run in."""
        kept_whole = self._kept_whole()
        if kept_whole is None and effective is GraphMode.PIECEWISE:
            kept_whole = f"switched off: {asked.cause}, and pieces hold whole batches"
        is_full = effective is GraphMode.FULL
        halved = "a captured graph has both halves" if is_full else "both halves run eagerly"
        return TwoBatch(runs_halves=kept_whole is None, because=kept_whole or halved)

    def _replayed(self) -> frozenset[object]:
        """Return what may be replayed: what other roles' backends say is about theirs."""
        resolved = self.plan["graph_replay", self.phase]
        said = [own.value for own in resolved.causes if own.role in (self.role, None)]
        if any(own.kind is CauseKind.OVERRIDE for own in resolved.causes) or not said:
            said = [resolved.value]
        sets = [own for own in said if isinstance(own, frozenset)]
        assert len(sets) == len(said), "a set of kinds is a frozenset"
        return frozenset.intersection(*sets)
