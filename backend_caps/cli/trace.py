"""`backend-caps trace`: steps of a server's configuration as a timeline."""

from __future__ import annotations

from pathlib import Path

import click

from backend_caps.cli.dry_run import stand_in_option
from backend_caps.cli.engines import routed_engine_options
from backend_caps.cli.invocation import SettingOption
from backend_caps.cli.options import ServerCommand, request_options
from backend_caps.cli.output import TORCH, examples, working


@request_options
@routed_engine_options
@click.command(
    cls=ServerCommand,
    epilog=examples(
        "backend-caps trace -- --attention-backend torch_padded",
        "backend-caps trace --output steps.json --svg steps.svg -- \\\n"
        "  --attention-backend torch_padded --speculative-algorithm EAGLE3 \\\n"
        "  --disable-piecewise-cuda-graph",
    ),
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
@click.option(
    "--device",
    cls=SettingOption,
    default="sim",
    show_default=True,
    help="The torch device to run on; 'sim' simulates one on the CPU, and its times are counted.",
)
@click.option(
    "--steps",
    default=3,
    show_default=True,
    type=click.IntRange(min=1, max=32),
    help="Decode steps to record.",
)
@click.option(
    "--seed",
    default=0,
    show_default=True,
    type=click.IntRange(min=0, max=2**63 - 1),
    help="Of random weights.",
)
@stand_in_option
@click.pass_context
def trace(ctx: click.Context, /, **_options: object) -> None:
    """Record decode steps of a server's configuration: who does what when, and waits for whom.

    An exact mirror is shown above none, where the backends can do without it. Times are those of
    the device that it ran on; the simulated one counts by chosen costs, and measures nothing.

    Exit status 0 where steps were recorded, 2 where none can be here.
    """
    # Loads torch, which a wrong command line is not worth.
    with working(TORCH):
        from backend_caps.cli.tracing import status_of  # noqa: PLC0415

    ctx.exit(status_of(ctx))
