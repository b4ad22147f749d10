"""`backend-caps explain`: every cause of a value, and what would change it."""

from __future__ import annotations

import click

from backend_caps.capability.kind import Phase, Scope
from backend_caps.capability.vocabulary import CAPABILITIES, SPELLINGS
from backend_caps.cli.engines import routed_engine_options
from backend_caps.cli.invocation import Invocation
from backend_caps.cli.options import ServerCommand, request_of, request_options
from backend_caps.report.views import explain_view

_EXPLAINED = [name for name, kind in CAPABILITIES.items() if kind.scope is not Scope.USE]


@request_options
@routed_engine_options
@click.command(cls=ServerCommand)
@click.argument(
    "capability",
    nargs=-1,
    metavar="[CAPABILITY...]",
    type=click.Choice([*_EXPLAINED, *SPELLINGS]),
)
@click.option(
    "--phase", type=click.Choice([phase.value for phase in Phase]), help="Only this phase."
)
@click.pass_context
def explain(
    ctx: click.Context, /, capability: tuple[str, ...], phase: str | None, **_options: object
) -> None:
    """Show every cause of a capability's value on a server; of host_seq_lens unless named."""
    request = request_of(ctx)
    document = request.plan(request.registry(ctx.ensure_object(Invocation)))
    names = [SPELLINGS.get(name, name) for name in capability or ["host_seq_lens"]]
    request.show(document, explain_view(document, names, phase))
