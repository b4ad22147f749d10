"""How batches run in each phase: the supported, the requested and the effective graph mode."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import takewhile

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

KIND_OF_PHASE: Mapping[Phase, BatchKind] = {
    Phase.PREFILL: BatchKind.MIXED_BATCH,
    Phase.DECODE: BatchKind.SINGLE_TOKEN_DECODE,
    Phase.VERIFY: BatchKind.UNIFORM_BATCH,
}
"""The kind of batch of each phase of the target model, in this engine."""


def kind_of(flags: ServerFlags, role: Role, phase: Phase) -> BatchKind:
    """Return the kind of batch of a role and phase: a tree's draft step has several tokens."""
    is_draft_step = role is Role.DRAFT and phase is Phase.DECODE
    if is_draft_step and (flags.speculative_eagle_topk or 1) > 1:
        return BatchKind.UNIFORM_BATCH
    return KIND_OF_PHASE[phase]


class Obstacle(Enum):
    """Why a kind of batch cannot run in a mode, in a few words."""

    DEVICE = "the device has no graphs"
    """The device has no graphs."""
    BACKEND = "its backend does not declare it in graph_replay"
    """A backend of the phase does not declare that its captures may be replayed."""
    SPECULATION = "of the target, speculation captures only the verify"
    """The speculative engine needs results that graphs do not keep, or does not run the phase."""
    DRAFT = "of a draft model, draft steps and draft-extend alone are captured, whole"
    """The engine does not capture this phase of a draft model."""
    TWO_BATCH = "--enable-two-batch-overlap runs it in halves, eagerly"
    """Batches run in halves: pieces hold them whole, and a graph of prompts cannot cut them."""
    SIZES = "no sizes of it are named"
    """The engine named no sizes to capture."""


SUPPORTED_BECAUSE: Mapping[GraphMode, str] = {
    GraphMode.FULL: "its backend declares it in graph_replay",
    GraphMode.PIECEWISE: "attention runs eagerly, whatever its backend declares",
    GraphMode.EAGER: "every backend runs eagerly",
}
"""Why a kind of batch can run in a mode without obstacles."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphSizes:
    """The sizes that an engine captures graphs for, in one role."""

    buckets: Mapping[Phase, Sequence[Bucket]] = field(default_factory=dict)
    """Sizes of full graphs, by phase."""
    token_counts: Sequence[int] = ()
    """Numbers of tokens of piecewise graphs, for all phases."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TwoBatch:
    """Whether batches of two requests or more run in halves."""

    runs_halves: bool
    because: str
    """What runs them in halves, or keeps them whole."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphChoice:
    """How one kind of batch runs in one phase."""

    phase: Phase
    kind: BatchKind
    obstacles: Mapping[GraphMode, tuple[Obstacle, ...]]
    """Every obstacle of each mode with graphs; a mode is supported where it has none."""
    requested: Requested
    """What the flags request."""
    effective: GraphMode
    """The mode that it runs in."""
    two_batch: TwoBatch
    """Whether batches of two requests or more run in halves."""
    buckets: tuple[Bucket, ...] = ()
    """Sizes of the full graphs that are captured; empty in another mode."""
    token_counts: tuple[int, ...] = ()
    """Sizes of the piecewise graphs that are captured; empty in another mode."""

    @property
    def supported(self) -> tuple[GraphMode, ...]:
        """The modes that it can run in, the fastest first."""
        return tuple(mode for mode in GraphMode if not self.obstacles.get(mode))

    @property
    def refused(self) -> Mapping[GraphMode, tuple[Obstacle | Requested, ...]]:
        """Every reason against each mode that is faster than the effective one."""
        faster = takewhile(lambda mode: mode is not self.effective, GraphMode)
        requested_modes = self.requested.request.modes
        return {
            mode: (*(() if mode in requested_modes else (self.requested,)), *self.obstacles[mode])
            for mode in faster
        }


def choose_graphs(
    plan: Plan, traits: DeviceTraits, sizes: GraphSizes, role: Role = Role.TARGET
) -> tuple[GraphChoice, ...]:
    """Choose how every kind of batch runs, in every phase that a role has.

    Args:
        plan: what the backends declare, and the flags.
        traits: what the device has.
        sizes: the sizes that the engine captures graphs of.
        role: the model whose forwards are captured.
    """
    served = {use.phase for use in plan.uses if use.role is role}
    return tuple(
        _Batches(plan, traits, role, phase, kind).choice(sizes)
        for phase in Phase
        if phase in served
        for kind in BatchKind
    )


def halved_phases(choices: Iterable[GraphChoice]) -> frozenset[Phase]:
    """Return the phases whose batches run in halves, eagerly or in graphs of both."""
    return frozenset(
        choice.phase
        for choice in choices
        if choice.two_batch.runs_halves and choice.kind is KIND_OF_PHASE[choice.phase]
    )


@dataclass(frozen=True, slots=True)
class _Batches:
    """One kind of batch in one phase of a role, for which a mode is chosen."""

    plan: Plan
    traits: DeviceTraits
    role: Role
    phase: Phase
    kind: BatchKind

    def choice(self, sizes: GraphSizes) -> GraphChoice:
        """Choose its mode, and the sizes that are captured."""
        buckets = sizes.buckets.get(self.phase, ())
        buckets = tuple(bucket for bucket in buckets if bucket.kind is self.kind)
        # Token counts are of any phase, so they count for the kind that the phase really has.
        is_usual = self.kind is KIND_OF_PHASE[self.phase]
        counts = tuple(sorted(set(sizes.token_counts))) if is_usual else ()
        request = requested(self.plan.flags, self.phase)
        obstacles = {
            GraphMode.FULL: self._obstacles(GraphMode.FULL, request, buckets),
            GraphMode.PIECEWISE: self._obstacles(GraphMode.PIECEWISE, request, counts),
        }
        supported = frozenset(mode for mode, against in obstacles.items() if not against)
        effective = COMBINATIONS[request.request, supported]
        return GraphChoice(
            phase=self.phase,
            kind=self.kind,
            obstacles=obstacles,
            requested=request,
            effective=effective,
            two_batch=self._two_batch(request, effective),
            buckets=buckets if effective is GraphMode.FULL else (),
            token_counts=counts if effective is GraphMode.PIECEWISE else (),
        )

    @property
    def _speculates(self) -> bool:
        return self.plan.flags.speculative_algorithm is not None

    def _obstacles(
        self, mode: GraphMode, request: Requested, sizes: Sequence[object]
    ) -> tuple[Obstacle, ...]:
        """List the obstacles of a mode; a backend is none for pieces, whose attention is eager."""
        is_full, is_target = mode is GraphMode.FULL, self.role is Role.TARGET
        is_drafted = not is_target and (self.phase is Phase.PREFILL or not is_full)
        # A draft head reads the hidden state of every prompt token, and a full graph of prompts
        # keeps those of the last tokens only; plain decode does not run under speculation.
        is_plain = self.phase is not Phase.VERIFY if is_full else self.phase is Phase.DECODE
        # The token where the second half of a batch of prompts begins differs from batch to batch,
        # and a graph has it fixed. Pieces hold whole batches; a flag that enforces them wins.
        is_mixed = self.kind is BatchKind.MIXED_BATCH
        cuts = is_mixed if is_full else request.request is not GraphRequest.PIECEWISE
        against = {
            Obstacle.DEVICE: not self.traits.has_graphs,
            Obstacle.BACKEND: is_full and self.kind not in self._replayed(),
            Obstacle.SPECULATION: is_target and self._speculates and is_plain,
            Obstacle.DRAFT: is_drafted,
            Obstacle.TWO_BATCH: cuts and self._kept_whole() is None,
            Obstacle.SIZES: not (sizes or is_drafted),
        }
        return tuple(obstacle for obstacle in Obstacle if against[obstacle])

    def _kept_whole(self) -> str | None:
        """Return why every batch of a role and phase runs whole; None where halves may run."""
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

    def _two_batch(self, request: Requested, effective: GraphMode) -> TwoBatch:
        """Return whether batches run in halves, given the effective mode."""
        kept_whole = self._kept_whole()
        if kept_whole is None and effective is GraphMode.PIECEWISE:
            kept_whole = f"switched off: {request.cause}, and pieces hold whole batches"
        is_full = effective is GraphMode.FULL
        halved = "a captured graph has both halves" if is_full else "both halves run eagerly"
        return TwoBatch(runs_halves=kept_whole is None, because=kept_whole or halved)

    def _replayed(self) -> frozenset[object]:
        """Return the kinds that this role's backends can replay.

        The plan's value joins all roles, and other roles' backends do not limit this one's graphs.
        An override replaces what backends declare, so it counts for every role.
        """
        resolved = self.plan["graph_replay", self.phase]
        values = [cause.value for cause in resolved.causes if cause.role in (self.role, None)]
        if any(cause.kind is CauseKind.OVERRIDE for cause in resolved.causes) or not values:
            values = [resolved.value]
        sets = [value for value in values if isinstance(value, frozenset)]
        assert len(sets) == len(values), "a set of kinds is a frozenset"
        return frozenset.intersection(*sets)
