"""From a dry run to its document: one rank's part, then all ranks' together."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Self

from pydantic import BaseModel, ConfigDict

from backend_caps.capability.fit import text_of
from backend_caps.capability.kind import Phase
from backend_caps.cli.dry_run_asked import DryRunAsked
from backend_caps.insight.dry_run import DryRun, PhaseRun, RunPlan, StepKind, findings_of
from backend_caps.insight.dry_run.running import Started
from backend_caps.insight.dry_run.spending import AROUND, NAMES
from backend_caps.insight.graphs import effective_choices, graphs_document, refused_because
from backend_caps.report.dry_run_documents import (
    AgreementDocument,
    DryRunDocument,
    JoinedDocument,
    NotAsDecidedDocument,
    PhaseRunDocument,
    RankRunDocument,
    ReadsEndDocument,
    RunMemoryDocument,
    SizeDocument,
    StandInDocument,
    StepKindDocument,
    WorsenedDocument,
)
from backend_caps.report.generate_documents import GraphsDocument
from backend_caps.report.plans import PlanDocument
from backend_caps.resolution.flags import ServerFlags
from backend_caps.resolution.plan import Plan
from backend_caps.runtime.graphs import GraphMode
from backend_caps.startup.agreement import Statement, Treatment, statement_of
from backend_caps.startup.agreement.statement import host_name

_US = 1e6
_MOST = 0.95
_ROUNDS_ALIKE, _ROUNDS_APART = 2, 3
"""Where all say the same, the comparison and the acknowledgement; else the gathering too, and one
more for each that says something else."""


class RankWord(BaseModel):
    """What a rank tells the first one, once it has run."""

    model_config = ConfigDict(frozen=True)

    host: str
    mark: int
    """Of what it said to agree."""
    seconds: float
    equal: tuple[str, ...]
    """What had to be the same."""
    values: dict[str, str]
    """The values of its own plan, by capability, or capability and phase."""
    run: RankRunDocument | None = None
    """None where it could not start."""

    @classmethod
    def of(cls, own: Plan, given: ServerFlags, seconds: float) -> Self:
        """Write a rank's part in an agreement."""
        said: Statement = statement_of(own, given=given)
        equal = (Treatment.EQUAL, Treatment.EQUAL_WHERE_STATED)
        return cls(
            host=said.host,
            mark=said.mark,
            seconds=seconds,
            equal=tuple(name for name, (treated, _) in said.fields.items() if treated in equal),
            values={_place(name, phase): value for phase, name, value in _values(own)},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RanHere:
    """What is written of a run while its engine is there."""

    run: RankRunDocument
    graphs: GraphsDocument
    future_map: str
    sizes: list[SizeDocument]
    stand_ins: list[StandInDocument]
    changes: list[WorsenedDocument]
    idle_stand_ins: list[str]
    left_out: list[str]


def ran_of(started: Started, done: DryRun, rank: int) -> RanHere:
    """Write down what one rank's engine was, and did."""
    plan = done.plan
    return RanHere(
        run=_rank(started, done, rank),
        graphs=graphs_document(started.engine),
        future_map=started.engine.relay.host_seq_lens.value,
        sizes=[
            SizeDocument(flag=own.flag, server=own.server, here=own.here, is_servers=own.is_servers)
            for own in done.sizes.told
        ],
        stand_ins=[
            StandInDocument(
                role=own.role.value, phase=own.phase.value, backend=own.backend, stand_in=own.name
            )
            for own in plan.stand_ins
        ],
        changes=worsened_documents(plan),
        idle_stand_ins=[*plan.idle],
        left_out=[*plan.left_out, *done.sizes.left_out],
    )


def worsened_documents(plan: RunPlan) -> list[WorsenedDocument]:
    """Write down what stand-ins make worse than it was decided."""
    return [
        WorsenedDocument(
            capability=own.capability,
            phase=None if own.phase is None else own.phase.value,
            decided=own.decided,
            here=own.here,
        )
        for own in plan.changes
    ]


def document_of(
    written: PlanDocument,
    plan: Plan,
    ran: RanHere,
    words: Sequence[RankWord],
    asked: DryRunAsked,
) -> DryRunDocument:
    """Write down what was decided, and what all ranks did.

    Args:
        written: the plan's document.
        plan: what was agreed on.
        ran: this rank's run.
        words: what every rank tells, by rank; none where there is one.
        asked: what to start, and where.
    """
    ranks = [own.run for own in words if own.run is not None] or [ran.run]
    is_refused = asked.is_strict and bool(plan.problems)
    is_found = any(own.findings for own in ranks)
    return DryRunDocument(
        schema_="backend-caps/dry-run@1",
        plan=written,
        future_map=ran.future_map,
        shared_reads_end=_reads_end(plan),
        graphs=ran.graphs,
        device=asked.device,
        model=None if asked.model is None else str(asked.model),
        num_steps=asked.num_steps,
        sizes=ran.sizes,
        left_out=ran.left_out,
        stand_ins=ran.stand_ins,
        idle_stand_ins=ran.idle_stand_ins,
        changes=ran.changes,
        agreement=agreement_document(plan, words) if words else None,
        ranks=ranks,
        status=1 if is_refused or is_found else 0,
    )


def _values(plan: Plan) -> list[tuple[Phase | None, str, str]]:
    return [(phase, own.capability, text_of(own.value)) for phase, own in plan.values()]


def _place(name: str, phase: Phase | None) -> str:
    return name if phase is None else f"{name} {phase.value}"


def _reads_end(plan: Plan) -> dict[str, ReadsEndDocument]:
    served = {use.phase for use in plan.uses}
    ends = {phase: plan["shared_reads_end", phase] for phase in Phase if phase in served}
    return {
        phase.value: ReadsEndDocument(value=text_of(own.value), effect=str(own.effect))
        for phase, own in ends.items()
    }


def agreement_document(plan: Plan, words: Sequence[RankWord]) -> AgreementDocument:
    """Write down how ranks agreed.

    Args:
        plan: what they agreed on.
        words: what every rank tells, by rank.
    """
    marks = {own.mark for own in words}
    return AgreementDocument(
        hosts=[own.host for own in words],
        rounds=_ROUNDS_ALIKE if len(marks) == 1 else _ROUNDS_APART + len(marks),
        seconds=max(own.seconds for own in words),
        equal=sorted({name for own in words for name in own.equal}),
        joined=_joined(plan, words),
    )


def _joined(plan: Plan, words: Sequence[RankWord]) -> list[JoinedDocument]:
    """List what the ranks had decided apart."""
    found = []
    for phase, name, joint in _values(plan):
        own: dict[str, list[int]] = {}
        for rank, word in enumerate(words):
            own.setdefault(word.values[_place(name, phase)], []).append(rank)
        if len(own) > 1:
            where = None if phase is None else phase.value
            found.append(JoinedDocument(capability=name, phase=where, joint=joint, own=own))
    return found


def _rank(started: Started, done: DryRun, rank: int) -> RankRunDocument:
    whole = done.plan.stands_in()
    memory = done.memory
    has_streams = started.engine.streams.traits.has_streams
    is_simulated = started.engine.streams.traits.is_stand_in
    return RankRunDocument(
        rank=rank,
        host=host_name(),
        num_steps=done.num_steps,
        num_retracted=done.num_retracted,
        phases=[_phase(own, done, started) for own in (*_in_order(done.phases), done.around)],
        steps=[
            _kind(name, own, whole, has_streams=has_streams, is_simulated=is_simulated)
            for name, own in done.kinds.items()
        ],
        hidden_syncs=None if done.hidden is None else dict(done.hidden),
        memory=RunMemoryDocument(
            stand_in=whole,
            kv_cache_bytes=memory.kv_cache_bytes,
            draft_kv_cache_bytes=memory.draft_kv_cache_bytes,
            page_table_bytes=memory.page_table_bytes,
            graph_pool_bytes=memory.graph_pool_bytes,
            graph_static_bytes=memory.graph_static_bytes,
            num_graphs=memory.num_graphs,
        ),
        findings=[
            NotAsDecidedDocument(
                code=own.code.value, phase=own.phase, stand_in=own.stand_in, message=own.message
            )
            for own in findings_of(done, started)
        ],
    )


def _in_order(phases: Sequence[PhaseRun]) -> list[PhaseRun]:
    order = [*NAMES]
    return sorted(phases, key=lambda own: order.index(own.place))


def _phase(own: PhaseRun, done: DryRun, started: Started) -> PhaseRunDocument:
    spent = own.spent
    stand_in = done.plan.stands_in(own.role, own.phase)
    return PhaseRunDocument(
        phase=AROUND if own.role is None else NAMES[own.place],
        stand_in=stand_in,
        num_forwards=own.num_forwards,
        num_full=own.modes[GraphMode.FULL],
        num_piecewise=own.modes[GraphMode.PIECEWISE],
        num_eager=own.modes[GraphMode.EAGER],
        eager_because=_eager_because(own, started),
        host_waits=None if spent is None else spent.waits.total(),
        waits=None if spent is None else dict(spent.waits.most_common()),
        bytes_to_host=None if spent is None else spent.bytes_to_host,
        bytes_of_lengths=None if spent is None else spent.bytes_of_lengths,
        bytes_to_device=None if spent is None else spent.bytes_to_device,
    )


def _eager_because(own: PhaseRun, started: Started) -> list[str]:
    """Say why forwards were not replayed: what keeps the phase from graphs, or their size."""
    if own.role is None or not own.modes[GraphMode.EAGER]:
        return []
    assert own.phase is not None, "a forward has a phase"
    choices = effective_choices(started.engine)[own.role]
    phase = next(each for each in choices if each.phase is own.phase)
    if phase.effective is not GraphMode.EAGER:
        return ["no graph was captured that holds its batches"]
    refused = refused_because(phase)
    return [f"not {mode}: {', '.join(words)}" for mode, words in refused.items()]


def _kind(
    name: str, own: StepKind, stand_in: str | None, *, has_streams: bool, is_simulated: bool
) -> StepKindDocument:
    times = None if is_simulated else sorted(own.seconds)
    return StepKindDocument(
        kind=name,
        stand_in=stand_in,
        num_steps=own.num_steps,
        num_replayed=own.num_replayed,
        mean_requests=own.num_requests / own.num_steps,
        num_tokens=own.num_tokens,
        num_made=own.num_made,
        waits_for_lengths=own.waits_for_lengths if has_streams else None,
        planned_bytes_to_host=own.bytes_to_host if has_streams else None,
        planned_bytes_to_device=own.bytes_to_device if has_streams else None,
        median_us=None if times is None else median(times) * _US,
        p95_us=None if times is None else times[math.ceil(_MOST * len(times)) - 1] * _US,
    )
