"""`backend-caps explain`: every cause of a value, and what would change it."""

from __future__ import annotations

import gc
from itertools import chain
from pathlib import Path

import click

from backend_caps.capability.kind import Phase, Scope
from backend_caps.capability.vocabulary import CAPABILITIES, SPELLINGS
from backend_caps.cli.engines import routed_engine_options
from backend_caps.cli.examples import examples
from backend_caps.cli.invocation import Invocation
from backend_caps.cli.options import ServerCommand, importable, request_of, request_options
from backend_caps.cli.working import TORCH, working
from backend_caps.report.sections import Opened
from backend_caps.report.views import explain_view

_EXPLAINED = [name for name, kind in CAPABILITIES.items() if kind.scope is not Scope.USE]

NOT_MEASURED = 2
"""The exit status where what was asked to be measured cannot be run here."""


@request_options
@routed_engine_options
@click.command(
    cls=ServerCommand,
    epilog=examples(
        "backend-caps explain -- --attention-backend torch_native",
        "backend-caps explain graph_replay --phase decode -- \\\n  --attention-backend triton",
    ),
)
@click.argument(
    "capability",
    nargs=-1,
    metavar="[CAPABILITY...]",
    type=click.Choice([*_EXPLAINED, *SPELLINGS]),
)
@click.option(
    "--phase", type=click.Choice([phase.value for phase in Phase]), help="Only this phase."
)
@click.option(
    "--measure",
    is_flag=True,
    help="Add what the mirror costs a step: a few steps are run on a simulated device and counted.",
)
@click.option(
    "--results",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    metavar="FOLDER",
    help="With --measure, where results of GPUs are stored; those of a checkout unless given.",
)
@click.pass_context
def explain(
    ctx: click.Context,
    /,
    capability: tuple[str, ...],
    phase: str | None,
    results: Path | None,
    *,
    measure: bool,
    **_options: object,
) -> None:
    """Show every cause of a capability's value on a server; of host_seq_lens unless named."""
    if results is not None and not measure:
        raise click.UsageError(f"--results {results} is shown with --measure; add it.")
    request = request_of(ctx)
    registry = request.believed(request.registry(ctx.ensure_object(Invocation)))
    plan = request.resolved(registry)
    document = request.written(plan, registry)
    names = [SPELLINGS.get(name, name) for name in capability or ["host_seq_lens"]]
    explained = explain_view(document, names, phase)
    opened = [Opened(name=name, phase=phase) for name in names]
    if not measure:
        request.show(document, explained, opened)
        return
    # Loads torch, which an explanation alone does not.
    with working(TORCH):
        from backend_caps.insight.measure import measure_document  # noqa: PLC0415
        from backend_caps.report.step_costs import measured_view  # noqa: PLC0415

    gc.enable()  # the program switched it off, for commands that end before it would matter
    with working("counting steps on a simulated device"), importable(request.path):
        found = measure_document(plan, document, results)
    costs = () if found.measured is None else measured_view(found.measured, document)
    request.show(found, chain(explained, costs), opened)
    if found.problem is not None:
        click.echo(f"error: {found.problem}", err=True)
        ctx.exit(NOT_MEASURED)
