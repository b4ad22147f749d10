"""Decode steps of a server's configuration as a timeline, recorded at levels of the mirror.

On the simulated device a recorder's clock counts chosen costs; on CUDA `torch.profiler` measures.
"""

from __future__ import annotations

import platform
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from backend_caps.capability.vocabulary import HostSeqLens
from backend_caps.insight import run_sizes
from backend_caps.insight.dry_run import dry_start
from backend_caps.insight.errors import InsightError
from backend_caps.insight.measure import at_level, at_levels, bytes_on, drafts_document, handle_of
from backend_caps.insight.profiler_export import MARK, STEP, timeline_from
from backend_caps.insight.recorder import (
    CLOCK_SAYS,
    COSTS,
    Recorder,
    RegionObserver,
    observed_regions,
)
from backend_caps.insight.stand_ins import RunPlan
from backend_caps.relay.streams import declared_traits
from backend_caps.report.plans import plan_document
from backend_caps.report.step_costs import LeftOutDocument
from backend_caps.report.trace_documents import TraceDetails, TracedLevelDocument
from backend_caps.report.trace_timeline import US, Lane, Timeline
from backend_caps.report.words import decided_by
from backend_caps.resolution.plan import Plan
from backend_caps.runtime.engine import Engine
from backend_caps.runtime.speculation import SpecSettings
from backend_caps.simulator import DEVICE_NAME, Simulation, simulate

_BATCH_SIZE = 4
"""Requests of every step, where as many run at once."""
_SETTLING = 6
"""Steps before the first recorded one: a prefill, then decode until overlap is steady."""
_MODEL = replace(run_sizes.SMALL_MODEL, num_layers=6)
"""A target with enough layers that its graph hides the host's launches, as on a server."""
_PROFILER_SAYS = (
    "torch.profiler's, on the host and on the device; marking regions slows the host down"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """What to record."""

    run: RunPlan
    server: run_sizes.ServerSizes
    device: str
    num_steps: int
    seed: int = 0


class Traced(NamedTuple):
    """A run at each level that can be shown."""

    timelines: Mapping[HostSeqLens, Timeline]
    """By level, from `exact` down."""
    left_out: list[LeftOutDocument]
    """Levels that could not run, each with its reason."""


def check_recordable(device: str) -> None:
    """Require a device whose steps can be recorded.

    Raises:
        InsightError: the device has no streams, or no recorder reads its records.
    """
    if torch.device(device).type in RECORDERS:
        return
    has_streams = declared_traits(torch.device(device)).has_streams
    why = "its records are not read here" if has_streams else "it has no streams"
    raise InsightError(
        "no-timeline",
        f"there is no timeline of device {device!r}: {why}. Expected 'sim' or 'cuda'. Take "
        "--device sim, which simulates streams on the CPU.",
    )


def traced_levels(decided: Plan, recording: Recording) -> Traced:
    """Record a plan's steps with an exact mirror and with none, and as the plan itself has it.

    Where no lengths are relayed the level does nothing, and the plan's own is the only one.

    Args:
        decided: the plan of the server's own backends, whose needs limit the levels.
        recording: the same plan with installed backends, on a recordable device.

    Raises:
        InsightError: the engine cannot be made, the server's requests are shorter than the steps,
            or a step at the plan's own level raised; another level whose step raised is left
            out.
    """
    record = RECORDERS[torch.device(recording.device).type]
    own = decided.host_seq_lens
    wanted = {own, *((HostSeqLens.EXACT, HostSeqLens.NONE) if decided.relays_speculation else ())}

    def recorded(level: HostSeqLens) -> Timeline:
        at = replace(recording.run, plan=at_level(recording.run.plan, level))
        return record(replace(recording, run=at))

    return Traced(*at_levels(decided, sorted(wanted, reverse=True), recorded))


def trace_details(plan: Plan, recording: Recording, traced: Traced) -> TraceDetails:
    """Write down what was run, by which clock, and the means of each level."""
    most = recording.server.max_running_requests
    is_simulated = torch.device(recording.device).type == DEVICE_NAME
    return TraceDetails.of(
        recording,
        plan=plan.fingerprint,
        level=plan.host_seq_lens.value,
        decided_by=decided_by(plan_document(plan, ()).server["host_seq_lens"]),
        clock="simulated" if is_simulated else "torch.profiler",
        clock_says=CLOCK_SAYS if is_simulated else _PROFILER_SAYS,
        costs=COSTS if is_simulated else None,
        batch_size=min(_BATCH_SIZE, most or _BATCH_SIZE),
        drafts=drafts_document(plan),
        relays_lengths=plan.relays_speculation,
        stand_in=recording.run.stands_in(),
        changes=recording.run.changes,
        not_here=recording.run.left_out,
        levels=[
            _level(pid, level, timeline, is_planned=level is plan.host_seq_lens)
            for pid, (level, timeline) in enumerate(traced.timelines.items(), 1)
        ],
        left_out=traced.left_out,
        versions={
            "backend-caps": version("backend-caps"),
            "python": platform.python_version(),
            "rules": plan.rules.name,
            "torch": torch.__version__,
        },
    )


def _level(
    pid: int, level: HostSeqLens, timeline: Timeline, *, is_planned: bool
) -> TracedLevelDocument:
    steps = timeline.num_steps
    return TracedLevelDocument(
        level=level.value,
        is_planned=is_planned,
        pid=pid,
        step_us=timeline.step_ns / US,
        lengths_us=timeline.waited_ns(Lane.COPY) / steps / US,
        tokens_us=timeline.waited_ns(Lane.HOST_COPY) / steps / US,
        idle_us=timeline.idle_ns(Lane.FORWARD) / steps / US,
        bytes_to_host=timeline.bytes_to_host / steps,
        bytes_of_lengths=timeline.bytes_of_lengths / steps,
    )


@contextmanager
def _started(recording: Recording, simulation: Simulation | None = None) -> Iterator[Engine]:
    """Make an engine with submitted requests, of which no step ran yet, for a `with` block."""
    run, server = recording.run, recording.server
    num_new = _num_new(run.plan, run_sizes.RunSizes.of(run.plan, server), recording.num_steps)
    with dry_start(
        run,
        server,
        recording.device,
        model_sizes=_MODEL,
        simulation=simulation,
        seed=recording.seed,
    ) as own:
        run_sizes.submit_endless(
            own.engine, min(_BATCH_SIZE, own.sizes.max_running_requests), num_new
        )
        yield own.engine


def _num_new(plan: Plan, sizes: run_sizes.RunSizes, num_steps: int) -> int:
    """Return an output length that no request reaches within the recorded steps.

    Raises:
        InsightError: no context of the server is that long.
    """
    settings = SpecSettings.from_flags(plan.flags)
    accepts = 1 if settings is None else settings.accept_tokens
    num_new = sizes.context_length - run_sizes.STEADY_PROMPT
    most = num_new // accepts - _SETTLING - 2
    if num_steps > most:
        raise InsightError(
            "too-many-steps",
            f"{num_steps} decode steps cannot be recorded: a context of {sizes.context_length} "
            f"tokens has {most} for sure, where every draft is accepted. Expected no more than "
            "that. Ask for fewer by --steps, or give the server a longer context.",
        )
    return num_new


def record_simulated(recording: Recording) -> Timeline:
    """Record steps on the simulated device, by the clock of a recorder."""
    with simulate("eager") as simulation, _started(recording, simulation) as engine:
        recorder = Recorder(_lanes(engine))
        for backends in engine.all_backends:
            backends.observer = recorder
        simulation.watcher = recorder
        with observed_regions(recorder):
            for step in range(1 - _SETTLING, 1):
                recorder.step = step
                engine.step()
            before, begin_ns = simulation.counts, recorder.now_ns
            for step in range(1, recording.num_steps + 1):
                recorder.step = step
                recorder.enter(f"{STEP}{step}")
                engine.step()
                recorder.leave()
            counts, end_ns = simulation.counts - before, recorder.now_ns
            recorder.step += 1
            engine.step()  # ends the last gaps and arrows of the recorded steps
        return Timeline(
            level=recording.run.plan.host_seq_lens.value,
            lanes=(Lane.HOST, *recorder.lanes),
            spans=tuple(recorder.host_spans),
            arrows=tuple(recorder.arrows),
            gaps=(),
            begin_ns=begin_ns,
            end_ns=end_ns,
            num_steps=recording.num_steps,
            bytes_to_host=counts.bytes_to_host,
            bytes_of_lengths=bytes_on(counts, handle_of(engine.relay.copy_stream)),
        ).cut(recorder.ran)


def _lanes(engine: Engine) -> dict[int, str]:
    """Map the handles of an engine's streams to their lanes, in the order of the picture."""
    on = engine.step_streams
    lanes = (Lane.SCHEDULE, Lane.FORWARD, Lane.COPY, Lane.HOST_COPY)
    streams = (on.schedule, on.forward, engine.relay.copy_stream, on.host_copy)
    handles = zip(map(handle_of, streams), lanes, strict=True)
    return {handle: lane for handle, lane in handles if handle is not None}


class _Marks(RegionObserver):
    """Mark regions of the host for the profiler."""

    def __init__(self) -> None:
        self._open: list[ExitStack] = []

    def enter(self, name: str) -> None:
        """Begin a region."""
        self._open.append(ExitStack())
        self._open[-1].enter_context(record_function(f"{MARK}{name}"))

    def leave(self) -> None:
        """End the innermost region."""
        self._open.pop().close()


def record_profiled(recording: Recording) -> Timeline:
    """Record steps on a device that `torch.profiler` supports, by its clock."""
    level, num_steps = recording.run.plan.host_seq_lens.value, recording.num_steps
    with _started(recording) as engine, TemporaryDirectory(prefix="backend-caps-") as folder:
        file = Path(folder) / "export.json"
        _export_steps(engine, num_steps, file)
        return timeline_from(file, level=level, num_steps=num_steps)


def _export_steps(engine: Engine, num_steps: int, file: Path) -> None:
    """Run steps of an engine that has requests, and write what the profiler records of them."""
    marks = _Marks()
    for backends in engine.all_backends:
        backends.observer = marks
    for _ in range(_SETTLING - 1):
        engine.step()
    is_cuda = engine.device.type == "cuda"
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if is_cuda else [])]
    # Without this the export has no `cuda_sync` events, which name what streams wait for.
    settings = torch._C._profiler._ExperimentalConfig(enable_cuda_sync_events=True)  # noqa: SLF001
    with profile(activities=activities, experimental_config=settings) as profiler:
        with observed_regions(marks):
            for step in range(num_steps + 2):  # one before the shown steps, and one after them
                marks.enter(f"{STEP}{step}")
                engine.step()
                marks.leave()
        engine.streams.synchronize()
    profiler.export_chrome_trace(str(file))


RECORDERS = {DEVICE_NAME: record_simulated, "cuda": record_profiled}
"""The recorder of each device type."""
