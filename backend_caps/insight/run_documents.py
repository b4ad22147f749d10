"""What an engine and its steps were, as parts of documents: graphs, a rank's run, findings."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from statistics import fmean, median

from backend_caps.capability.kind import RELAY_LOOP, Phase, Role
from backend_caps.capability.vocabulary import HostSeqLens
from backend_caps.insight.dry_run import NAMES, DryRun, PhaseFigures, Spent, StepFigures
from backend_caps.report.dry_run_documents import (
    NotAsDecidedDocument,
    PhaseRunDocument,
    RankRunDocument,
    RunMemoryDocument,
    StepKindDocument,
)
from backend_caps.report.generate_documents import (
    GraphModeDocument,
    GraphsDocument,
    PhaseGraphsDocument,
)
from backend_caps.runtime.engine import Engine
from backend_caps.runtime.graphs.capture import total_usage
from backend_caps.runtime.memory import TokenToKVPool
from backend_caps.startup.graph_choice import SUPPORTED_BECAUSE, GraphChoice, Obstacle, kind_of
from backend_caps.startup.graph_modes import GraphMode, Requested
from backend_caps.startup.statement import host_name

_AROUND = "around"
"""What is no forward: batches are built, lengths and tokens cross, results are processed."""
_US = 1e6
_MOST = 0.95


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


def rank_document(done: DryRun, rank: int) -> RankRunDocument:
    """Write down what one rank's steps did, and where that is not what the plan says."""
    figures, order = done.figures, [*NAMES]
    phases = [figures.phases[place] for place in sorted(figures.phases, key=order.index)]
    return RankRunDocument(
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


def _forwards(own: PhaseFigures, done: DryRun) -> PhaseRunDocument:
    spent, modes = own.spent, own.modes
    return PhaseRunDocument(
        phase=own.name or _AROUND,
        stand_in=done.run.stands_in(own.role, own.phase),
        num_forwards=modes.total(),
        num_full=modes[GraphMode.FULL],
        num_piecewise=modes[GraphMode.PIECEWISE],
        num_eager=modes[GraphMode.EAGER],
        eager_because=_eager_because(own, done.engine),
        host_waits=None if spent is None else spent.waits.total(),
        waits=None if spent is None else dict(spent.waits.most_common()),
        bytes_to_host=None if spent is None else spent.bytes_to_host,
        bytes_of_lengths=None if spent is None else spent.bytes_of_lengths,
        bytes_to_device=None if spent is None else spent.bytes_to_device,
    )


def _eager_because(own: PhaseFigures, engine: Engine) -> list[str]:
    """Say why forwards were not replayed: what keeps the phase from graphs, or their size."""
    if own.role is None or own.phase is None or not own.modes[GraphMode.EAGER]:
        return []
    choice = effective_choices(engine)[own.role, own.phase]
    if choice.effective is not GraphMode.EAGER:
        return ["no graph was captured that holds its batches"]
    refused = refused_because(choice).items()
    return [f"not {mode}: {', '.join(reasons)}" for mode, reasons in refused]


def _steps(name: str, own: StepFigures, done: DryRun) -> StepKindDocument:
    """Write down steps of one kind; times of a real device alone, and moves of one with streams."""
    traits = done.engine.streams.traits
    times = None if traits.is_stand_in else sorted(own.seconds)
    has_streams = traits.has_streams
    bytes_to_host = sum(each.bytes_to_host for each in own.steps)
    bytes_to_device = sum(each.bytes_to_device for each in own.steps)
    return StepKindDocument(
        kind=name,
        stand_in=done.run.stands_in(),
        num_steps=len(own.steps),
        num_replayed=sum(each.replayed for each in own.steps),
        mean_requests=fmean(each.num_requests for each in own.steps),
        num_tokens=sum(each.num_tokens for each in own.steps),
        num_made=sum(each.num_made for each in own.steps),
        waits_for_lengths=own.waits_for_lengths if has_streams else None,
        planned_bytes_to_host=bytes_to_host if has_streams else None,
        planned_bytes_to_device=bytes_to_device if has_streams else None,
        median_us=None if times is None else median(times) * _US,
        p95_us=None if times is None else times[math.ceil(_MOST * len(times)) - 1] * _US,
    )


def _memory(engine: Engine, stand_in: str | None) -> RunMemoryDocument:
    caches: dict[Role, TokenToKVPool] = {}
    for own in engine.all_backends:
        cache = own.site.token_to_kv_pool
        assert isinstance(cache, TokenToKVPool), "the engine's own"
        caches.setdefault(own.role, cache)
    drafts, usage = caches.get(Role.DRAFT), total_usage(engine.graphs.values())
    return RunMemoryDocument(
        stand_in=stand_in,
        kv_cache_bytes=caches[Role.TARGET].num_bytes,
        draft_kv_cache_bytes=0 if drafts is None else drafts.num_bytes,
        page_table_bytes=engine.memory.rows.req_to_token.nbytes,
        graph_pool_bytes=usage.pool_bytes,
        graph_static_bytes=usage.static_bytes,
        num_graphs=usage.num_graphs,
    )


def findings_of(done: DryRun) -> Iterator[NotAsDecidedDocument]:
    """List where steps were not as the plan has them."""
    if done.failure is not None:
        message = f"step {done.figures.num_steps + 1} raised: {done.failure}"
        yield _finding(done, Finding.FAILURE, message)
    for place, own in done.figures.phases.items():
        if own.spent is not None:
            yield from _of_forwards(place, own, own.spent, done)
    yield from _of_hidden(done)
    yield from _of_lengths(done)
    if done.failure is None:
        yield from _of_graphs(done)


def _finding(
    done: DryRun, code: Finding, message: str, own: PhaseFigures | None = None
) -> NotAsDecidedDocument:
    """Write a finding down: of one phase's forwards, or of the whole server."""
    of = own or PhaseFigures()
    stand_in = done.run.stands_in(of.role, of.phase)
    return NotAsDecidedDocument(code=code.value, phase=of.name, stand_in=stand_in, message=message)


def _of_forwards(
    place: tuple[Role, Phase], own: PhaseFigures, spent: Spent, done: DryRun
) -> Iterator[NotAsDecidedDocument]:
    """Report bytes to the host where the plan takes none, and waits that backends declare not."""
    plan, num_forwards = done.run.plan, own.modes.total()
    has_no_mirror = plan.relays_speculation and plan.host_seq_lens is not HostSeqLens.EXACT
    if spent.bytes_to_host and has_no_mirror and place in RELAY_LOOP:
        message = (
            f"{spent.bytes_to_host} bytes crossed to the host in {num_forwards} forwards; "
            f"host_seq_lens is {plan.host_seq_lens.value}, so none was expected"
        )
        yield _finding(done, Finding.BYTES, message, own)
    if spent.num_hidden and plan["sync_free_prepare", place[1]].value is True:
        message = (
            f"the host waited {spent.num_hidden} times in {num_forwards} forwards, by "
            f"{', '.join(spent.waits)}; sync_free_prepare is yes, so none was expected"
        )
        yield _finding(done, Finding.WAIT, message, own)


def _of_hidden(done: DryRun) -> Iterator[NotAsDecidedDocument]:
    """Report waits that CUDA's watch has seen, where no backend may have any."""
    plan, figures = done.run.plan, done.figures
    free = all(plan["sync_free_prepare", phase].value is True for _, phase in figures.phases)
    if done.hidden and free:
        message = (
            f"the host waited {done.hidden.total()} times in {figures.num_steps} steps, by "
            f"{', '.join(done.hidden)}; sync_free_prepare is yes, so none was expected"
        )
        yield _finding(done, Finding.WAIT, message)


def _of_lengths(done: DryRun) -> Iterator[NotAsDecidedDocument]:
    """Report lengths that cross though the plan has no mirror, or do not though it has one."""
    own, plan = done.figures.kinds.get("speculative"), done.run.plan
    if own is None or not plan.relays_speculation:
        return
    expected = len(own.steps) if plan.host_seq_lens is HostSeqLens.EXACT else 0
    if own.waits_for_lengths != expected:
        message = (
            f"the host waited for lengths in {own.waits_for_lengths} of {len(own.steps)} "
            f"speculative steps; host_seq_lens is {plan.host_seq_lens.value}, so {expected} were "
            "expected"
        )
        yield _finding(done, Finding.LENGTHS, message)


def _of_graphs(done: DryRun) -> Iterator[NotAsDecidedDocument]:
    """Report phases whose batches were captured, and never replayed."""
    choices = effective_choices(done.engine)
    for place, own in done.figures.phases.items():
        mode, num_forwards = choices[place].effective, own.modes.total()
        is_captured = mode is not GraphMode.EAGER and _holds_all(own, mode, done)
        if is_captured and own.modes[GraphMode.EAGER] == num_forwards:
            message = (
                f"none of {num_forwards} forwards was replayed, for no graph was captured "
                f"that holds one; their graph mode is {mode.value}, so replays were expected"
            )
            yield _finding(done, Finding.GRAPHS, message, own)


def _holds_all(own: PhaseFigures, mode: GraphMode, done: DryRun) -> bool:
    """Return whether graphs hold all batches of a phase; the server's own sizes may leave some."""
    by_tokens = mode is GraphMode.PIECEWISE or own.phase is Phase.PREFILL
    return done.sizes.graphs_hold_prompts if by_tokens else done.sizes.graphs_hold_batches


def graphs_document(engine: Engine) -> GraphsDocument:
    """Write down what an engine has captured, and how its batches run."""
    usage = total_usage(engine.graphs.values())
    in_halves = engine.plan.flags.enable_two_batch_overlap
    return GraphsDocument(
        phases=[
            PhaseGraphsDocument(
                role=role.value,
                phase=choice.phase.value,
                kind=choice.kind.value,
                supported={mode.value: _supported(choice, mode) for mode in GraphMode},
                requested=choice.requested.request.value,
                requested_because=choice.requested.cause,
                effective=choice.effective.value,
                refused=refused_because(choice),
                in_halves=choice.two_batch.runs_halves if in_halves else None,
                in_halves_because=choice.two_batch.because,
            )
            for (role, _), choice in effective_choices(engine).items()
        ],
        num_graphs=usage.num_graphs,
        pool_bytes=usage.pool_bytes,
        static_bytes=usage.static_bytes,
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


def _supported(choice: GraphChoice, mode: GraphMode) -> GraphModeDocument:
    against = choice.obstacles.get(mode, ())
    because = _reasons(choice.phase, mode, against) or [SUPPORTED_BECAUSE[mode]]
    return GraphModeDocument(supported=mode in choice.supported, because=because)


def _reasons(phase: Phase, mode: GraphMode, against: Iterable[Obstacle | Requested]) -> list[str]:
    """Write what keeps batches from a mode; of missing sizes, the option that would name them."""
    by_tokens = mode is GraphMode.PIECEWISE or phase is Phase.PREFILL
    no_sizes = f"--graph-{'token-counts' if by_tokens else 'batch-sizes'} names none"
    return [
        own.cause
        if isinstance(own, Requested)
        else (no_sizes if own is Obstacle.SIZES else own.value)
        for own in against
    ]
