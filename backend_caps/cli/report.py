"""`backend-caps report`: installed backends, and the plan of a server's flags."""

from __future__ import annotations

import click

from backend_caps.capability.backend import Status
from backend_caps.cli.launch import launch_options
from backend_caps.cli.options import request_of, server_command
from backend_caps.cli.request import Request
from backend_caps.discovery.evidence import read_standings
from backend_caps.discovery.registry import Registry
from backend_caps.report.backend_views import report_view
from backend_caps.report.backends import report_document
from backend_caps.resolution.errors import PlanRefusedError, raise_all
from backend_caps.resolution.plan import Policy


@server_command(
    "Show installed backends, what they declare and what is wrong.",
    "backend-caps report",
    "backend-caps report --engine sglang --source new.whl -- \\\n  --attention-backend fa3",
    engine=launch_options,
)
@click.pass_context
def report(ctx: click.Context, /, **_options: object) -> None:
    """Show every installed backend with what it declares and what is wrong with it.

    With server flags after --, the plan for that server too.
    """
    request = request_of(ctx, always_plans=False)
    registry = request.found
    plan = request.document if request.is_about_server else None
    standings = read_standings(registry.entries, path=request.path)
    document = report_document(
        registry.entries, registry.problems, plan, standings, reading=request.reading
    )
    request.show(document, report_view(document))
    _refuse_faults(request, registry)


def _refuse_faults(request: Request, registry: Registry) -> None:
    """Under strict, a plugin that could not be read is an error."""
    if request.policy is not Policy.STRICT:
        return
    unread = [b for b in registry.entries if b.status in {Status.BROKEN, Status.CONFLICT}]
    faults = [problem for backend in unread for problem in backend.problems]
    faults += [problem for problem in registry.problems if problem not in registry.remarks]
    refused = (
        PlanRefusedError(code=problem.code, problem=problem.message, remedy=problem.remedy)
        for problem in faults
    )
    raise_all("plugins refused (strict)", [*refused])
