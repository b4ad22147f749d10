"""From a server's flags to a recorded timeline, and the files that show it. Loads torch."""

from __future__ import annotations

import gc
import platform
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path

import click
import torch

from backend_caps.capability.kind import Role
from backend_caps.capability.vocabulary import HostSeqLens
from backend_caps.cli.dry_run_document import worsened_documents
from backend_caps.cli.dry_running import CANNOT_START, tell
from backend_caps.cli.errors import CommandError
from backend_caps.cli.invocation import Invocation
from backend_caps.cli.options import importable, request_of
from backend_caps.cli.output import working
from backend_caps.cli.server_sizes import is_size, sizes_in
from backend_caps.errors import BackendCapsError
from backend_caps.insight.dry_run import RunPlan, run_plan
from backend_caps.insight.levels import drafts_document
from backend_caps.insight.trace import (
    CLOCK_SAYS,
    PROFILER_SAYS,
    Costs,
    Traced,
    check_recordable,
    traced_levels,
)
from backend_caps.report.document import json_text
from backend_caps.report.plans import plan_document
from backend_caps.report.sections import Picture
from backend_caps.report.trace_documents import (
    CostsDocument,
    TraceDetails,
    TracedLevelDocument,
    TraceDocument,
)
from backend_caps.report.trace_events import events_of
from backend_caps.report.trace_svg import picture_of
from backend_caps.report.trace_timeline import COPY, FORWARD, HOST_COPY, Timeline
from backend_caps.report.trace_views import trace_view
from backend_caps.report.words import decided_by
from backend_caps.resolution.plan import Plan
from backend_caps.simulator import DEVICE_NAME, register
from backend_caps.startup.configure import check_device

_US = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceAsked:
    """What to record, and where to write it."""

    device: str
    num_steps: int
    seed: int
    stand_ins: Mapping[Role, str]
    output: Path | None
    svg: Path | None

    @property
    def files(self) -> tuple[tuple[Path, str], ...]:
        """The files that were asked for, each with its option."""
        named = ((self.output, "--output"), (self.svg, "--svg"))
        return tuple((path, option) for path, option in named if path is not None)

    @classmethod
    def from_context(cls, ctx: click.Context) -> TraceAsked:
        """Read what the command line says."""
        options = ctx.params
        return cls(
            device=options["device"],
            num_steps=options["steps"],
            seed=options["seed"],
            stand_ins=options["stand_ins"],
            output=options["output"],
            svg=options["svg"],
        )


def status_of(ctx: click.Context) -> int:
    """Decide what a server would, record steps of it, show them, and return the exit status."""
    gc.enable()  # the program switched it off, for commands that end before it would matter
    register()
    try:
        _show(ctx)
    except (BackendCapsError, ExceptionGroup) as error:
        tell(error)
        return CANNOT_START
    return 0


def _show(ctx: click.Context) -> None:
    asked, request = TraceAsked.from_context(ctx), request_of(ctx, reads=is_size)
    for path, option in asked.files:
        if not path.parent.is_dir():  # said before the run, and not after it
            raise _unwritten(path, "no such folder", option)
    sizes = sizes_in(ctx, request)
    check_device(asked.device)
    check_recordable(asked.device)
    decided = request.decided(ctx.ensure_object(Invocation))
    plan = decided.plan
    with importable(request.path):
        run = run_plan(plan, decided.plugins, asked.device, asked.stand_ins)
        with working("recording steps"):
            traced = traced_levels(
                plan, run, sizes, device=asked.device, num_steps=asked.num_steps, seed=asked.seed
            )
    told = _details(plan, run, traced, asked)
    timelines = [*traced.timelines.values()]
    document = TraceDocument(
        schema_="backend-caps/trace@1", otherData=told, traceEvents=events_of(timelines)
    )
    picture = picture_of(told, timelines)
    files = tuple(_written(document, picture, asked))
    request.show(document, [*trace_view(document, files), picture])


def _written(document: TraceDocument, picture: Picture, asked: TraceAsked) -> Iterator[str]:
    """Write the files that were asked for; say what each is."""
    if asked.output is not None:
        _write(asked.output, json_text(document, indent=1) + "\n", "--output")
        yield f"{asked.output}: open it on ui.perfetto.dev, or at chrome://tracing"
    if asked.svg is not None:
        _write(asked.svg, picture.svg, "--svg")
        yield f"{asked.svg}: open it in a browser"


def _write(path: Path, text: str, option: str) -> None:
    try:
        path.write_text(text, "utf-8")
    except OSError as error:
        raise _unwritten(path, error.strerror or str(error), option) from error


def _unwritten(path: Path, cause: str, option: str) -> CommandError:
    return CommandError(
        "file-not-written",
        f"{str(path)!r} cannot be written: {cause}. Expected a folder that is there, with room for "
        f"it. Name another file with {option}.",
    )


def _details(plan: Plan, run: RunPlan, traced: Traced, asked: TraceAsked) -> TraceDetails:
    written = plan_document(plan, ())
    is_simulated = torch.device(asked.device).type == DEVICE_NAME
    return TraceDetails(
        plan=plan.fingerprint,
        level=plan.host_seq_lens.value,
        decided_by=decided_by(written.server["host_seq_lens"]),
        clock="simulated" if is_simulated else "torch.profiler",
        clock_says=CLOCK_SAYS if is_simulated else PROFILER_SAYS,
        costs=CostsDocument.model_validate(asdict(Costs())) if is_simulated else None,
        device=asked.device,
        num_steps=asked.num_steps,
        batch_size=traced.batch_size,
        drafts=drafts_document(plan),
        relays_lengths=plan.relays_speculation,
        stand_in=run.stands_in(),
        changes=worsened_documents(run),
        not_here=[*run.left_out],
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
        step_us=timeline.step_ns / _US,
        lengths_us=timeline.waited_ns(COPY) / steps / _US,
        tokens_us=timeline.waited_ns(HOST_COPY) / steps / _US,
        idle_us=timeline.idle_ns(FORWARD) / steps / _US,
        bytes_to_host=timeline.bytes_to_host / steps,
        bytes_of_lengths=timeline.bytes_of_lengths / steps,
    )
