"""`backend-caps resolve`: the plan for a server."""

from __future__ import annotations

import click

from backend_caps.cli.engines import routed_engine_options
from backend_caps.cli.examples import examples
from backend_caps.cli.invocation import Invocation
from backend_caps.cli.options import ServerCommand, request_of, request_options
from backend_caps.report.views import plan_view


@request_options
@routed_engine_options
@click.command(
    cls=ServerCommand,
    epilog=examples(
        "backend-caps resolve -- --attention-backend triton",
        "backend-caps resolve --fact device=cuda -- --attention-backend auto \\\n"
        "  --speculative-algorithm EAGLE3",
    ),
)
@click.pass_context
def resolve(ctx: click.Context, /, **_options: object) -> None:
    """Show what a server with these flags needs of its backends, and who decided it."""
    request = request_of(ctx)
    document = request.plan(request.registry(ctx.ensure_object(Invocation)))
    request.show(document, plan_view(document))
