"""`backend-caps report`: what is installed, and the plan where server flags are given."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import click

from backend_caps.capability.backend import Status
from backend_caps.capability.evidence import Standing
from backend_caps.cli.engines import engine_options
from backend_caps.cli.examples import examples
from backend_caps.cli.invocation import Invocation
from backend_caps.cli.options import Request, ServerCommand, request_of, request_options
from backend_caps.discovery.evidence import read_standings
from backend_caps.discovery.registry import Registry
from backend_caps.report.documents import PlanDocument, report_document
from backend_caps.report.views import report_view
from backend_caps.resolution.errors import PlanRefusedError, raise_all
from backend_caps.resolution.plan import Policy

if TYPE_CHECKING:
    from backend_caps.engines.reading import EngineReading


@request_options
@engine_options
@click.command(
    cls=ServerCommand,
    epilog=examples(
        "backend-caps report",
        "backend-caps report --engine sglang --source new.whl -- \\\n  --attention-backend fa3",
    ),
)
@click.pass_context
def report(ctx: click.Context, /, **_options: object) -> None:
    """Show every installed backend with what it declares and what is wrong with it.

    With server flags after --, the plan for that server too.
    """
    request = request_of(ctx)
    registry = request.registry(ctx.ensure_object(Invocation))
    plan = request.plan(registry) if request.flags.given() else None
    standings = read_standings(registry.entries, path=request.path)
    if request.reading is None:
        document = report_document(registry.entries, registry.problems, plan, standings)
        request.show(document, report_view(document))
    else:
        _show_engine(request, request.reading, registry, plan, standings)
    _refuse_faults(request, registry)


def _show_engine(
    request: Request,
    reading: EngineReading,
    registry: Registry,
    plan: PlanDocument | None,
    standings: Mapping[str, Standing],
) -> None:
    # Loaded where an engine was asked for: the plain report is measured against `import torch`.
    from backend_caps.report.engine_report import engine_report_document  # noqa: PLC0415
    from backend_caps.report.engine_views import engine_report_view  # noqa: PLC0415

    document = engine_report_document(reading, registry.entries, registry.problems, plan, standings)
    request.show(document, engine_report_view(document))


def _refuse_faults(request: Request, registry: Registry) -> None:
    """Under strict, a plugin that could not be read is an error."""
    if request.policy is not Policy.STRICT:
        return
    faults = [
        *(
            found
            for backend in registry.entries
            if backend.status in {Status.BROKEN, Status.CONFLICT}
            for found in backend.problems
        ),
        *(found for found in registry.problems if found not in registry.remarks),
    ]
    refused = [
        PlanRefusedError(code=found.code, problem=found.message, remedy=found.remedy)
        for found in faults
    ]
    raise_all("plugins refused (strict)", refused)
