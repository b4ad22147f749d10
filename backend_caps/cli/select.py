"""`backend-caps select`: the backends that fit a server, and the one that `auto` is."""

from __future__ import annotations

import click

from backend_caps.capability.spelling import AUTO
from backend_caps.cli.examples import examples
from backend_caps.cli.invocation import Invocation
from backend_caps.cli.options import Request, ServerCommand, request_of, request_options
from backend_caps.discovery.registry import Registry
from backend_caps.report.selection_documents import (
    SelectionDocument,
    choice_documents,
    facts_document,
)
from backend_caps.report.selection_views import selection_view
from backend_caps.resolution.flags import ServerFlags
from backend_caps.resolution.selection import BACKEND_FLAGS, select

NONE_FITS = 1
"""The exit status where a flag finds no backend."""


@request_options
@click.command(
    "select",
    cls=ServerCommand,
    epilog=examples(
        "backend-caps select -- --attention-backend auto",
        "backend-caps select --fact device=cuda -- --attention-backend auto",
    ),
)
@click.pass_context
def select_command(ctx: click.Context, /, **_options: object) -> None:
    """Show which installed backends fit a server, which of them auto is, and why not the others.

    Where no flag says auto, those that name a backend are asked as if they did: what would do in
    its place. Exit status 1 where no backend fits.
    """
    request = request_of(ctx)
    registry = request.believed(request.registry(ctx.ensure_object(Invocation)))
    document = _document(request, registry)
    request.show(document, selection_view(document))
    if any(choice.chosen is None for choice in document.choices):
        ctx.exit(NONE_FITS)


def _document(request: Request, registry: Registry) -> SelectionDocument:
    flags, rules = _asking(request.flags), registry.rules(request.rules)
    selection = select(registry, flags, rules=rules, facts=request.facts, policy=request.policy)
    return SelectionDocument(
        schema_="backend-caps/selection@1",
        facts=facts_document(flags.with_facts(request.facts)),
        policy=request.policy.value,
        rules=rules.name,
        choices=choice_documents(selection.choices),
    )


def _asking(flags: ServerFlags) -> ServerFlags:
    """Ask every flag that names a backend; without any, the one for all phases."""
    named = {field: name for field in BACKEND_FLAGS if (name := dict(flags)[field]) is not None}
    if AUTO in named.values():
        return flags
    return flags.updated(dict.fromkeys(named or ["attention_backend"], AUTO))
