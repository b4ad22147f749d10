"""`backend-caps lock`: what is installed and what is planned, as a file to keep."""

from __future__ import annotations

from pathlib import Path

import click

from backend_caps.cli.engines import installed_engine, locked_engine_options
from backend_caps.cli.examples import examples
from backend_caps.cli.invocation import Invocation
from backend_caps.cli.options import (
    Request,
    ServerCommand,
    request_of,
    request_options,
    server_is_told,
)
from backend_caps.cli.output import say
from backend_caps.discovery.registry import Registry
from backend_caps.report.documents import PlanDocument
from backend_caps.report.lock import LockDocument, LockedRequest, lock_document
from backend_caps.report.lock_file import write_lock


def _always_json(command: click.Command) -> click.Command:
    """Hide the choice of a format: a lock has one."""
    for option in command.params:
        if isinstance(option, click.Option) and option.name == "format":
            option.hidden, option.default = True, "json"
    return command


@_always_json
@request_options
@locked_engine_options
@click.command(
    cls=ServerCommand,
    epilog=examples(
        "backend-caps lock --output server.lock -- --attention-backend torch_native",
        "backend-caps lock > installed.lock",
    ),
)
@click.option(
    "--output",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    help="Write to this file instead of standard output.",
)
@click.pass_context
def lock(ctx: click.Context, /, output: Path | None, **_options: object) -> None:
    """Write down what is installed, and the plan where server flags are given.

    The same releases and flags give the same bytes on every machine. `backend-caps verify`
    tells later what has changed.
    """
    ctx.params["engine"] = _engine(ctx)
    request = request_of(ctx)
    registry = request.registry(ctx.ensure_object(Invocation))
    plan = request.plan(registry) if request.flags.given() else None
    text = lock_of(request, registry, plan).text()
    if output is None:
        say(text)
    else:
        write_lock(text, output)


def _engine(ctx: click.Context) -> str | None:
    """Take the engine that was named, or the installed one where the environment is locked."""
    named: str | None = ctx.params["engine"]
    if named is None and not ctx.params["path"] and ctx.params["source"] is None:
        return installed_engine(routed=server_is_told(ctx))
    return named


def lock_of(request: Request, registry: Registry, plan: PlanDocument | None) -> LockDocument:
    """Write a request, and what was found for it, as a lock."""
    reading = request.reading
    asked = LockedRequest(
        flags=request.flags,
        facts=request.facts,
        unsafe_override=request.override,
        policy=request.policy,
        rules=request.rules if isinstance(request.rules, str) else None,
        engine=None if reading is None else reading.engine,
        requires_evidence=request.requires_evidence or None,
    )
    return lock_document(
        asked,
        backends=registry.entries,
        problems=registry.problems,
        rules=registry.rules(request.rules),
        reading=reading,
        plan=plan,
    )
