"""Steps of a server's configuration on the simulated device, recorded at levels of the mirror."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from backend_caps.capability.vocabulary import HostSeqLens
from backend_caps.conformance.dry_run import RunPlan, ServerSizes, Sizes, dry_start
from backend_caps.conformance.dry_run.running import Started, fitting_models
from backend_caps.conformance.dry_run.spending import NAMES
from backend_caps.conformance.measuring.levels import LeftOut, reason_against
from backend_caps.conformance.simulator import Simulation, simulate
from backend_caps.conformance.simulator.streams import Stream
from backend_caps.conformance.tracing.blocks import blocks, gaps
from backend_caps.conformance.tracing.costs import Costs
from backend_caps.conformance.tracing.errors import TooManyStepsError
from backend_caps.conformance.tracing.recorder import COPY, FORWARD, HOST_COPY, SCHEDULE, Recorder
from backend_caps.conformance.tracing.regions import told_regions
from backend_caps.capability.kind import Phase, Role
from backend_caps.relay.streams import StreamLike
from backend_caps.report.trace_timeline import HOST, Span, Timeline
from backend_caps.resolution.plan import Plan, Resolved
from backend_caps.runtime.engine import Engine
from backend_caps.runtime.graphs import GraphMode
from backend_caps.runtime.request import Sampling
from backend_caps.runtime.speculative.settings import SpecSettings

_BATCH_SIZE = 4
"""Requests of every step, where as many run at once."""
_SETTLING = 6
"""Steps before the first that is shown: one of prompts, then until each has one before it."""
_PROMPT = 4
_NUM_LAYERS = 6
"""Of the target, beside the one of what drafts for it: a server's has more, and one with a GPU's
launches to hide behind its graph needs some."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Traced:
    """A run at each level that can be shown."""

    timelines: Mapping[HostSeqLens, Timeline]
    """From the most that the host is told to the least."""
    left_out: tuple[LeftOut, ...]
    """Levels that the backends cannot run with."""
    batch_size: int


class _Forwards:
    """Name what is launched within a forward by its role and phase."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def began(self, role: Role, phase: Phase) -> None:
        """Take in that a forward begins."""
        self._recorder.enter(NAMES.get((role, phase), f"{role.value} {phase.value}"))

    def ended(self, graph_mode: GraphMode) -> None:  # noqa: ARG002 - its operators say so
        """Take in that it was enqueued."""
        self._recorder.leave()


def traced_levels(
    decided: Plan, run: RunPlan, server: ServerSizes, *, num_steps: int, seed: int = 0
) -> Traced:
    """Record a plan's steps with an exact mirror and with none, and as the plan itself has it.

    Where no lengths are relayed the level does nothing, and the plan's own is the only one.

    Args:
        decided: the plan of the server's own backends: they say which levels they can run with.
        run: the same, with code that is there.
        server: the server's sizes.
        num_steps: the decode steps to record.
        seed: of the weights.

    Raises:
        DryStartError: the engine cannot be made.
        TooManyStepsError: the server's requests are shorter than that.
    """
    own = decided.host_seq_lens
    wanted = {own, *((HostSeqLens.EXACT, HostSeqLens.NONE) if decided.relays_speculation else ())}
    timelines, left_out = {}, []
    for level in sorted(wanted, reverse=True):
        reason = None if level is own else reason_against(decided, level)
        if reason is None:
            timelines[level] = _traced(_at(run, level), server, num_steps, seed)
        else:
            left_out.append(LeftOut(level=level, reason=reason))
    size = min(_BATCH_SIZE, server.max_running_requests or _BATCH_SIZE)
    return Traced(timelines=timelines, left_out=tuple(left_out), batch_size=size)


def _at(run: RunPlan, level: HostSeqLens) -> RunPlan:
    """Put a level in the place of the plan's own; all else stays as it was decided."""

    def put(_: object, own: Resolved) -> Resolved:
        return replace(own, value=level) if own.capability == "host_seq_lens" else own

    return replace(run, plan=run.plan.with_values(put))


def _traced(run: RunPlan, server: ServerSizes, num_steps: int, seed: int) -> Timeline:
    sizes = Sizes.of(run.plan, server)
    with (
        fitting_models(run.plan, sizes, seed=seed, num_layers=_NUM_LAYERS) as models,
        simulate("eager") as simulation,
        dry_start(run, server, "sim", models=models, simulation=simulation) as started,
    ):
        recorder = Recorder(_lanes(started.engine))
        for backends in started.engine.all_backends:
            backends.observer = _Forwards(recorder)
        simulation.watcher = recorder
        with told_regions(recorder):
            return _recorded(started, simulation, recorder, num_steps)


def _recorded(
    started: Started, simulation: Simulation, recorder: Recorder, num_steps: int
) -> Timeline:
    engine = started.engine
    _submit(started, num_steps)
    for step in range(1 - _SETTLING, 1):
        recorder.step = step
        engine.step()
    before, begin_ns = simulation.counts, recorder.now_ns
    for step in range(1, num_steps + 1):
        recorder.step = step
        recorder.enter(f"step {step}")
        engine.step()
        recorder.leave()
    counts, end_ns = simulation.counts - before, recorder.now_ns
    recorder.step += 1
    engine.step()  # it lets the last gaps and arrows of the steps before end
    copy = engine.relay.copy_stream
    on_copy = None if copy is None else _handle(copy)
    return timeline_of(
        recorder,
        level=engine.relay.host_seq_lens,
        begin_ns=begin_ns,
        end_ns=end_ns,
        num_steps=num_steps,
        bytes_to_host=counts.bytes_to_host,
        bytes_of_lengths=0 if on_copy is None else counts.bytes_to_host_on.get(on_copy, 0),
    )


def timeline_of(
    recorder: Recorder,
    *,
    level: HostSeqLens,
    begin_ns: int,
    end_ns: int,
    num_steps: int,
    bytes_to_host: int,
    bytes_of_lengths: int,
) -> Timeline:
    """Cut what was recorded to a stretch: what reaches into it is whole."""

    def reaches(begin: int, end: int) -> bool:
        return begin < end_ns and end > begin_ns

    lanes = recorder.lanes
    host = sorted(recorder.host_spans, key=lambda own: (own.begin_ns, own.depth))
    spans = (*host, *(block for lane in lanes for block in blocks(recorder.ran, lane)))
    return Timeline(
        level=level.value,
        lanes=(HOST, *lanes),
        spans=tuple(own for own in spans if reaches(own.begin_ns, own.end_ns)),
        arrows=tuple(own for own in recorder.arrows if reaches(own.begin_ns, own.end_ns)),
        gaps=tuple(
            gap
            for lane in lanes
            for gap in gaps(recorder.ran, lane)
            if reaches(gap.begin_ns, gap.end_ns)
        ),
        begin_ns=begin_ns,
        end_ns=end_ns,
        num_steps=num_steps,
        bytes_to_host=bytes_to_host,
        bytes_of_lengths=bytes_of_lengths,
    )


def _lanes(engine: Engine) -> dict[int, str]:
    """Name the streams of an engine, from the host down."""
    on, copy = engine.step_streams, engine.relay.copy_stream
    named = [(on.schedule, SCHEDULE), (on.forward, FORWARD)]
    if copy is not None:
        named.append((copy, COPY))
    named.append((on.host_copy, HOST_COPY))
    return {_handle(stream): lane for stream, lane in named}


def _submit(started: Started, num_steps: int) -> None:
    """Let requests wait that none of the steps ends."""
    settings, sizes = SpecSettings.from_flags(started.run.plan.flags), started.sizes
    accepts = 1 if settings is None else settings.accept_tokens
    num_new = sizes.context_length - _PROMPT
    most = num_new // accepts - _SETTLING - 2
    if num_steps > most:
        raise TooManyStepsError(asked=num_steps, most=most, context_length=sizes.context_length)
    endless = Sampling(max_new_tokens=num_new, stop_token_ids=frozenset())
    for number in range(min(_BATCH_SIZE, sizes.max_running_requests)):
        started.engine.submit([number + place for place in range(_PROMPT)], endless)


def _handle(stream: StreamLike) -> int:
    assert isinstance(stream, Stream), "the engine runs on the simulated device"
    return stream.handle
