"""Where steps were not as the plan has them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from backend_caps.capability.kind import RELAY_LOOP, Phase
from backend_caps.capability.vocabulary import HostSeqLens
from backend_caps.insight.dry_run.running import DryRun, Started
from backend_caps.insight.dry_run.sizes import Sizes
from backend_caps.insight.dry_run.spending import NAMES, PhaseRun
from backend_caps.resolution.plan import Plan
from backend_caps.runtime.graphs import GraphMode, kind_of


class Finding(Enum):
    """What can be not as it was decided."""

    BYTES = "bytes-without-a-mirror"
    """A forward takes bytes to the host, and the plan has no mirror."""
    WAIT = "hidden-wait"
    """A forward makes the host wait, and its backend declares `sync_free_prepare`."""
    LENGTHS = "mirror-not-as-planned"
    """The host waits for lengths in other steps than the plan says."""
    GRAPHS = "graphs-not-replayed"
    """A phase was captured for all its batches, and none of them was replayed."""
    FAILURE = "step-failed"
    """A step raised."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NotAsDecided:
    """One thing that is not as it was decided."""

    code: Finding
    message: str
    phase: str | None = None
    """Whose forwards; None: the server's."""
    stand_in: str | None = None
    """Who stood in for whom there; None where nobody did."""


def findings_of(done: DryRun, started: Started) -> tuple[NotAsDecided, ...]:
    """Compare what steps did with what the plan says.

    Args:
        done: what they did.
        started: the engine that ran them.
    """
    return tuple(_findings(done, started))


def _findings(done: DryRun, started: Started) -> Iterator[NotAsDecided]:
    plan, run = done.plan.plan, done.plan
    if done.failure is not None:
        yield NotAsDecided(
            code=Finding.FAILURE,
            message=f"step {done.num_steps + 1} raised: {done.failure}",
            stand_in=run.stands_in(),
        )
    for own in done.phases:
        assert own.role is not None, "a forward has a role"
        assert own.phase is not None, "a forward has a phase"
        stand_in = run.stands_in(own.role, own.phase)
        for code, message in (*_of_bytes(own, plan), *_of_waits(own, plan)):
            phase = NAMES[own.role, own.phase]
            yield NotAsDecided(code=code, message=message, phase=phase, stand_in=stand_in)
    yield from _of_hidden(done, plan)
    yield from _of_lengths(done, plan)
    if done.failure is None:
        yield from _of_graphs(done, started)


def _of_bytes(own: PhaseRun, plan: Plan) -> Iterator[tuple[Finding, str]]:
    """Tell of bytes that a forward takes to the host by itself, where the plan takes none."""
    if own.spent is None or not own.spent.bytes_to_host or (own.role, own.phase) not in RELAY_LOOP:
        return
    if plan.relays_speculation and plan.host_seq_lens is not HostSeqLens.EXACT:
        level = plan.host_seq_lens.value
        yield (
            Finding.BYTES,
            (
                f"{own.spent.bytes_to_host} bytes crossed to the host in {own.num_forwards} "
                f"forwards; host_seq_lens is {level}, so none was expected"
            ),
        )


def _of_waits(own: PhaseRun, plan: Plan) -> Iterator[tuple[Finding, str]]:
    """Tell of waits in forwards whose backends say that they never block the host."""
    assert own.phase is not None, "a forward has a phase"
    free = plan["sync_free_prepare", own.phase].value
    if own.spent is not None and own.spent.num_hidden and free is True:
        places = ", ".join(own.spent.waits)
        yield (
            Finding.WAIT,
            (
                f"the host waited {own.spent.num_hidden} times in {own.num_forwards} forwards, by "
                f"{places}; sync_free_prepare is yes, so none was expected"
            ),
        )


def _of_hidden(done: DryRun, plan: Plan) -> Iterator[NotAsDecided]:
    """Tell of waits that CUDA's watch has seen, where no backend may have any."""
    free = all(plan["sync_free_prepare", own.place[1]].value is True for own in done.phases)
    if done.hidden and free:
        yield NotAsDecided(
            code=Finding.WAIT,
            message=f"the host waited {done.hidden.total()} times in {done.num_steps} steps, by "
            f"{', '.join(done.hidden)}; sync_free_prepare is yes, so none was expected",
            stand_in=done.plan.stands_in(),
        )


def _of_lengths(done: DryRun, plan: Plan) -> Iterator[NotAsDecided]:
    """Tell of lengths that cross though the plan has no mirror, or do not though it has one."""
    own = done.kinds.get("speculative")
    if own is None or not plan.relays_speculation:
        return
    has_mirror = plan.host_seq_lens is HostSeqLens.EXACT
    expected = own.num_steps if has_mirror else 0
    if own.waits_for_lengths != expected:
        yield NotAsDecided(
            code=Finding.LENGTHS,
            message=f"the host waited for lengths in {own.waits_for_lengths} of {own.num_steps} "
            f"speculative steps; host_seq_lens is {plan.host_seq_lens.value}, so {expected} were "
            "expected",
            stand_in=done.plan.stands_in(),
        )


def _of_graphs(done: DryRun, started: Started) -> Iterator[NotAsDecided]:
    """Tell of phases whose batches were captured, and never replayed."""
    flags = started.engine.plan.flags
    effective = {
        (role, choice.phase): choice.effective
        for role, choices in started.engine.configuration.graph_choices.items()
        for choice in choices
        if choice.kind is kind_of(flags, role, choice.phase)
    }
    for own in done.phases:
        mode = effective.get(own.place, GraphMode.EAGER)
        if not _is_captured(own, mode, started.sizes):
            continue
        if own.modes[GraphMode.EAGER] == own.num_forwards:
            yield NotAsDecided(
                code=Finding.GRAPHS,
                message=f"none of {own.num_forwards} forwards was replayed, for no graph was "
                f"captured that holds one; their graph mode is {mode.value}, so replays were "
                "expected",
                phase=NAMES[own.place],
                stand_in=done.plan.stands_in(own.role, own.phase),
            )


def _is_captured(own: PhaseRun, mode: GraphMode, sizes: Sizes) -> bool:
    """Tell whether graphs hold all batches of a phase; the server's own sizes may leave some."""
    if mode is GraphMode.EAGER:
        return False
    by_tokens = mode is GraphMode.PIECEWISE or own.phase is Phase.PREFILL
    return sizes.graphs_hold_prompts if by_tokens else sizes.graphs_hold_batches
