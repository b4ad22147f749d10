"""`backend-caps trace`: steps of a server's configuration as a timeline."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from backend_caps.cli import options
from backend_caps.cli.dry_run import stand_in_option
from backend_caps.cli.invocation import engine_options
from backend_caps.cli.output import CommandError, loading_torch, working
from backend_caps.errors import BackendCapsError
from backend_caps.report.document import json_text
from backend_caps.report.sections import Picture
from backend_caps.report.trace_documents import TraceDocument, events_of

if TYPE_CHECKING:
    from backend_caps.cli.dry_run_job import SmallServer


@options.server_command(
    "Record steps: who does what when, and waits for whom.",
    "backend-caps trace -- --attention-backend torch_padded",
    "backend-caps trace --output steps.json --svg steps.svg -- \\\n"
    "  --attention-backend torch_padded --speculative-algorithm EAGLE3 \\\n"
    "  --disable-piecewise-cuda-graph",
    engine=partial(engine_options, engines=("sglang",)),
)
@click.option(
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Write the trace here, as JSON that Perfetto opens.",
)
@click.option(
    "--svg",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Write the picture here, as one SVG.",
)
@options.device_option(
    "sim", "The torch device to run on; 'sim' simulates one on the CPU, and its times are counted."
)
@options.steps_option(3, "Decode steps to record.", most=32)
@options.seed_option("Of random weights.")
@stand_in_option
@click.pass_context
def trace(ctx: click.Context, /, **_options: object) -> None:
    """Record decode steps of a server's configuration: who does what when, and waits for whom.

    An exact mirror is shown above none, where the backends can do without it. Times are those of
    the device that it ran on; the simulated one counts by chosen costs, and measures nothing.

    Exit status 0 where steps were recorded, 2 where none can be here.
    """
    # Loads torch, which a wrong command line is not worth.
    with loading_torch("trace"):
        from backend_caps.cli.dry_run_job import CANNOT_START, SmallServer, show_error  # noqa: PLC0415
        from backend_caps.simulator import is_simulated, register  # noqa: PLC0415

    if is_simulated(ctx.params["device"]):
        register()
    try:
        _record(ctx, SmallServer(ctx))
    except (BackendCapsError, ExceptionGroup) as error:
        show_error(error)
        ctx.exit(CANNOT_START)


def _record(ctx: click.Context, server: SmallServer) -> None:
    """Record what the server would do, write the files that were asked for, and show it."""
    from backend_caps.insight.trace import Recording, check_recordable, trace_details, traced_levels  # noqa: PLC0415
    from backend_caps.report.trace_views import picture_of, trace_view  # noqa: PLC0415
    from backend_caps.startup.configure import check_device  # noqa: PLC0415

    given, request, device = ctx.params, server.request, ctx.params["device"]
    for option in ("output", "svg"):
        if given[option] is not None and not given[option].parent.is_dir():
            raise _unwritten(given[option], "no such folder", option)
    server.read_sizes()
    check_device(device)
    check_recordable(device)
    plan = request.plan
    with options.importable(request.path), working("recording steps"):
        recording = Recording(
            run=server.run_plan_here(plan),
            server=server.sizes,
            device=device,
            num_steps=given["steps"],
            seed=given["seed"],
        )
        traced = traced_levels(plan, recording)
    details = trace_details(plan, recording, traced)
    timelines = [*traced.timelines.values()]
    document = TraceDocument(
        schema_="backend-caps/trace@1", otherData=details, traceEvents=events_of(timelines)
    )
    picture = picture_of(details, timelines)
    files = tuple(_written(document, picture, given["output"], given["svg"]))
    request.show(document, [*trace_view(document, files), picture])


def _written(
    document: TraceDocument, picture: Picture, output: Path | None, svg: Path | None
) -> Iterator[str]:
    """Write the files that were asked for; say what each is."""
    if output is not None:
        _write(output, json_text(document, indent=1) + "\n", "output")
        yield f"{output}: open it on ui.perfetto.dev, or at chrome://tracing"
    if svg is not None:
        _write(svg, picture.svg, "svg")
        yield f"{svg}: open it in a browser"


def _write(path: Path, text: str, option: str) -> None:
    try:
        path.write_text(text, "utf-8")
    except OSError as error:
        raise _unwritten(path, error.strerror or str(error), option) from error


def _unwritten(path: Path, cause: str, option: str) -> CommandError:
    return CommandError(
        "file-not-written",
        f"{str(path)!r} cannot be written: {cause}. Expected a folder that is there, with room for "
        f"it. Name another file with --{option}.",
    )
