"""What an engine and its steps were, as parts of documents: graphs, a rank's run, findings."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum
from statistics import fmean, median
from typing import Self, TypeAlias

from pydantic import BaseModel, ConfigDict

from backend_caps.capability.facts import text_of
from backend_caps.capability.kind import RELAY_LOOP, Phase, Role
from backend_caps.capability.vocabulary import HostSeqLens
from backend_caps.insight.dry_run import NAMES, DryRun, PhaseFigures
from backend_caps.report import dry_run_documents as documents
from backend_caps.report import generate_documents
from backend_caps.resolution.flags import ServerFlags
from backend_caps.resolution.plan import Plan
from backend_caps.runtime.engine import Engine
from backend_caps.runtime.graphs.capture import total_usage
from backend_caps.runtime.memory import TokenToKVPool
from backend_caps.runtime.stats import StepStats
from backend_caps.startup.agreement import Treatment, statement_of
from backend_caps.startup.graph_choice import SUPPORTED_BECAUSE, GraphChoice, Obstacle, kind_of
from backend_caps.startup.graph_modes import GraphMode, Requested
from backend_caps.startup.statement import host_name

_AROUND = "around"
"""Work outside forwards: batches are built, lengths and tokens cross, results are processed."""
_US = 1e6
_P95 = 0.95


_EQUAL = (Treatment.EQUAL, Treatment.EQUAL_WHERE_STATED)
_ROUNDS_ALIKE, _ROUNDS_APART = 2, 3
"""Where all ranks state the same, the comparison and the acknowledgement; else the gathering too,
and one more for each different statement."""


class Finding(Enum):
    """How a run can deviate from its plan."""

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


def rank_document(done: DryRun, rank: int) -> documents.RankRunDocument:
    """Write down what one rank's steps did, and where that is not what the plan says."""
    figures, order = done.figures, [*NAMES]
    phases = [figures.phases[place] for place in sorted(figures.phases, key=order.index)]
    return documents.RankRunDocument(
        rank=rank,
        host=host_name(),
        num_steps=figures.num_steps,
        num_retracted=figures.num_retracted,
        phases=[_forwards(own, done) for own in (*phases, figures.around)],
        steps=[_steps(name, own, done) for name, own in figures.kinds.items()],
        hidden_syncs=None if done.hidden is None else dict(done.hidden),
        memory=_memory(done.engine, done.run.stands_in()),
        findings=[*findings_of(done)],
    )


def known(figures: Mapping[str, object], *, when: bool) -> Mapping[str, object]:
    """Return figures by name; None for each where the device does not give them."""
    return figures if when else dict.fromkeys(figures)


def _forwards(own: PhaseFigures, done: DryRun) -> documents.PhaseRunDocument:
    counts: dict[str, object] = {
        "host_waits": own.waits.total(),
        "waits": dict(own.waits.most_common()),
        "bytes_to_host": own.bytes_to_host,
        "bytes_of_lengths": own.bytes_of_lengths,
        "bytes_to_device": own.bytes_to_device,
    }
    return documents.PhaseRunDocument(
        phase=own.name or _AROUND,
        stand_in=done.run.stands_in(own.role, own.phase),
        num_forwards=own.modes.total(),
        eager_because=_eager_because(own, done.engine),
        **{f"num_{mode.value}": own.modes[mode] for mode in GraphMode},
        **known(counts, when=done.simulation is not None),
    )


def _eager_because(own: PhaseFigures, engine: Engine) -> list[str]:
    """List why forwards were not replayed: what keeps the phase from graphs, or their size."""
    if own.role is None or own.phase is None or not own.modes[GraphMode.EAGER]:
        return []
    choice = effective_choices(engine)[own.role, own.phase]
    if choice.effective is not GraphMode.EAGER:
        return ["no graph was captured that holds its batches"]
    refused = refused_because(choice).items()
    return [f"not {mode}: {', '.join(reasons)}" for mode, reasons in refused]


def _steps(
    kind: str, own: Sequence[tuple[StepStats, float]], done: DryRun
) -> documents.StepKindDocument:
    """Write down steps of one kind: times on a real device, planned bytes on one with streams."""
    traits, steps = done.engine.streams.traits, [stats for stats, _ in own]
    times_us = sorted(seconds * _US for _, seconds in own)
    crossed: dict[str, object] = {
        "waits_for_lengths": sum(each.waits_for_lengths for each in steps),
        "planned_bytes_to_host": sum(each.bytes_to_host for each in steps),
        "planned_bytes_to_device": sum(each.bytes_to_device for each in steps),
    }
    times = {"median_us": median(times_us), "p95_us": times_us[math.ceil(_P95 * len(times_us)) - 1]}
    return documents.StepKindDocument(
        kind=kind,
        stand_in=done.run.stands_in(),
        num_steps=len(steps),
        num_replayed=sum(each.replayed for each in steps),
        mean_requests=fmean(each.num_requests for each in steps),
        num_tokens=sum(each.num_tokens for each in steps),
        num_made=sum(each.num_made for each in steps),
        **known(crossed, when=traits.has_streams),
        **known(times, when=not traits.is_stand_in),
    )


def _memory(engine: Engine, stand_in: str | None) -> documents.RunMemoryDocument:
    num_bytes: dict[Role, int] = {}
    for own in engine.all_backends:
        cache = own.site.token_to_kv_pool
        assert isinstance(cache, TokenToKVPool), "the engine's own"
        num_bytes.setdefault(own.role, cache.num_bytes)
    usage = total_usage(engine.graphs.values())
    return documents.RunMemoryDocument(
        stand_in=stand_in,
        kv_cache_bytes=num_bytes[Role.TARGET],
        draft_kv_cache_bytes=num_bytes.get(Role.DRAFT, 0),
        page_table_bytes=engine.memory.rows.req_to_token.nbytes,
        graph_pool_bytes=usage.pool_bytes,
        graph_static_bytes=usage.static_bytes,
        num_graphs=usage.num_graphs,
    )


def findings_of(done: DryRun) -> Iterator[documents.NotAsDecidedDocument]:
    """List where steps were not as the plan has them."""
    for code, own, message in _deviations(done):
        yield documents.NotAsDecidedDocument(
            code=code.value,
            phase=own.name,
            stand_in=done.run.stands_in(own.role, own.phase),
            message=message,
        )


_Deviation: TypeAlias = tuple[Finding, PhaseFigures, str]
"""A kind of deviation, the forwards that it concerns, and its sentence."""
_SERVER = PhaseFigures()
"""Stands for the whole server, where a deviation concerns no single phase."""


def _deviations(done: DryRun) -> Iterator[_Deviation]:
    if done.failure is not None:
        message = f"step {done.figures.num_steps + 1} raised: {done.failure}"
        yield Finding.FAILURE, _SERVER, message
    for place, own in done.figures.phases.items():
        yield from _of_forwards(place, own, done.run.plan)
    yield from _of_server(done)
    if done.failure is None:
        yield from _of_graphs(done)


def _of_forwards(place: tuple[Role, Phase], own: PhaseFigures, plan: Plan) -> Iterator[_Deviation]:
    """Report bytes to the host without a mirror, and waits despite `sync_free_prepare`."""
    num_forwards, level = own.modes.total(), plan.host_seq_lens
    has_no_mirror = plan.relays_speculation and level is not HostSeqLens.EXACT
    if own.bytes_to_host and has_no_mirror and place in RELAY_LOOP:
        message = (
            f"{own.bytes_to_host} bytes crossed to the host in {num_forwards} forwards; "
            f"host_seq_lens is {level.value}, so none was expected"
        )
        yield Finding.BYTES, own, message
    if own.num_hidden and plan["sync_free_prepare", place[1]].value is True:
        message = (
            f"the host waited {own.num_hidden} times in {num_forwards} forwards, by "
            f"{', '.join(own.waits)}; sync_free_prepare is yes, so none was expected"
        )
        yield Finding.WAIT, own, message


def _of_server(done: DryRun) -> Iterator[_Deviation]:
    """Report waits that torch saw on CUDA, and steps that wait for lengths against the plan."""
    plan, figures, hidden = done.run.plan, done.figures, done.hidden
    free = all(plan["sync_free_prepare", phase].value is True for _, phase in figures.phases)
    if hidden and free:
        message = (
            f"the host waited {hidden.total()} times in {figures.num_steps} steps, by "
            f"{', '.join(hidden)}; sync_free_prepare is yes, so none was expected"
        )
        yield Finding.WAIT, _SERVER, message
    steps, level = figures.kinds.get("speculative", ()), plan.host_seq_lens
    expected = len(steps) if level is HostSeqLens.EXACT else 0
    num_waits = sum(stats.waits_for_lengths for stats, _ in steps)
    if plan.relays_speculation and num_waits != expected:
        message = (
            f"the host waited for lengths in {num_waits} of {len(steps)} speculative steps; "
            f"host_seq_lens is {level.value}, so {expected} were expected"
        )
        yield Finding.LENGTHS, _SERVER, message


def _of_graphs(done: DryRun) -> Iterator[_Deviation]:
    """Report phases whose graphs were captured, and never replayed.

    The server's own sizes may leave some batches to no graph, and those phases are as decided.
    """
    choices, sizes = effective_choices(done.engine), done.sizes
    for place, own in done.figures.phases.items():
        mode, num_forwards = choices[place].effective, own.modes.total()
        by_tokens = mode is GraphMode.PIECEWISE or own.phase is Phase.PREFILL
        holds_all = sizes.graphs_hold_prompts if by_tokens else sizes.graphs_hold_batches
        is_captured = mode is not GraphMode.EAGER and holds_all
        if is_captured and own.modes[GraphMode.EAGER] == num_forwards:
            message = (
                f"none of {num_forwards} forwards was replayed, for no graph was captured "
                f"that holds one; their graph mode is {mode.value}, so replays were expected"
            )
            yield Finding.GRAPHS, own, message


def graphs_document(engine: Engine) -> generate_documents.GraphsDocument:
    """Write down what an engine has captured, and how its batches run."""
    in_halves = engine.plan.flags.enable_two_batch_overlap
    return generate_documents.GraphsDocument.of(
        total_usage(engine.graphs.values()),
        phases=[
            generate_documents.PhaseGraphsDocument.of(
                choice,
                role=role.value,
                supported={mode.value: _supported(choice, mode) for mode in GraphMode},
                requested=choice.requested.request.value,
                requested_because=choice.requested.cause,
                refused=refused_because(choice),
                in_halves=choice.two_batch.runs_halves if in_halves else None,
                in_halves_because=choice.two_batch.because,
            )
            for (role, _), choice in effective_choices(engine).items()
        ],
    )


def effective_choices(engine: Engine) -> Mapping[tuple[Role, Phase], GraphChoice]:
    """List the choice for the kind of batch that the engine's flags lead to, by role and phase."""
    flags = engine.plan.flags
    return {
        (role, own.phase): own
        for role, choices in engine.configuration.graph_choices.items()
        for own in choices
        if own.kind is kind_of(flags, role, own.phase)
    }


def refused_because(choice: GraphChoice) -> dict[str, list[str]]:
    """List what keeps batches from each better mode than the one that they run in."""
    return {
        mode.value: _reasons(choice.phase, mode, against)
        for mode, against in choice.refused.items()
    }


def _supported(choice: GraphChoice, mode: GraphMode) -> generate_documents.GraphModeDocument:
    against = choice.obstacles.get(mode, ())
    because = _reasons(choice.phase, mode, against) or [SUPPORTED_BECAUSE[mode]]
    return generate_documents.GraphModeDocument(supported=mode in choice.supported, because=because)


def _reasons(phase: Phase, mode: GraphMode, against: Iterable[Obstacle | Requested]) -> list[str]:
    """List what keeps batches from a mode; for missing sizes, the option that sets them."""
    by_tokens = mode is GraphMode.PIECEWISE or phase is Phase.PREFILL
    no_sizes = f"--graph-{'token-counts' if by_tokens else 'batch-sizes'} names none"
    return [
        own.cause
        if isinstance(own, Requested)
        else (no_sizes if own is Obstacle.SIZES else own.value)
        for own in against
    ]


_PlanValue: TypeAlias = tuple[str | None, str, str]
"""A phase, None for the server's; a capability; and its value in words."""


class RankReport(BaseModel):
    """What a rank sends to rank 0, once it has run."""

    model_config = ConfigDict(frozen=True)

    host: str
    mark: int
    """The mark of its statement in the agreement."""
    seconds: float
    equal: tuple[str, ...]
    """Fields of the statement that must be equal on all ranks."""
    values: tuple[_PlanValue, ...]
    """The values of this rank's plan, before values were joined."""
    run: documents.RankRunDocument | None = None
    """None where it could not start."""

    @classmethod
    def of(
        cls,
        plan: Plan,
        given: ServerFlags,
        seconds: float,
        run: documents.RankRunDocument | None = None,
    ) -> Self:
        """Write down what a rank stated, decided and ran."""
        statement = statement_of(plan, given=given)
        fields = statement.fields.items()
        return cls(
            host=statement.host,
            mark=statement.mark,
            seconds=seconds,
            equal=tuple(name for name, (treatment, _) in fields if treatment in _EQUAL),
            values=_values(plan),
            run=run,
        )


def agreement_document(plan: Plan, reports: Sequence[RankReport]) -> documents.AgreementDocument:
    """Write down how ranks agreed.

    Args:
        plan: the plan that they agreed on.
        reports: one a rank, by rank.
    """
    marks = {own.mark for own in reports}
    return documents.AgreementDocument(
        hosts=[own.host for own in reports],
        rounds=_ROUNDS_ALIKE if len(marks) == 1 else _ROUNDS_APART + len(marks),
        seconds=max(own.seconds for own in reports),
        equal=sorted({name for own in reports for name in own.equal}),
        joined=[*_joined(plan, reports)],
    )


def _joined(plan: Plan, reports: Sequence[RankReport]) -> Iterator[documents.JoinedDocument]:
    """List the values in which the ranks' own plans differed."""
    for (phase, name, joint), *decided in zip(
        _values(plan), *(report.values for report in reports), strict=True
    ):
        own: dict[str, list[int]] = {}
        for rank, (_, _, value) in enumerate(decided):
            own.setdefault(value, []).append(rank)
        if len(own) > 1:
            yield documents.JoinedDocument(capability=name, phase=phase, joint=joint, own=own)


def _values(plan: Plan) -> tuple[_PlanValue, ...]:
    return tuple(
        (None if phase is None else phase.value, own.capability, text_of(own.value))
        for phase, own in plan.values()
    )


def shared_reads_end(plan: Plan) -> dict[str, documents.ReadsEndDocument]:
    """Write down where the shared reads of each phase end, by phase."""
    served = {use.phase for use in plan.uses}
    ends = {phase: plan["shared_reads_end", phase] for phase in Phase if phase in served}
    return {
        phase.value: documents.ReadsEndDocument(value=text_of(own.value), effect=str(own.effect))
        for phase, own in ends.items()
    }
