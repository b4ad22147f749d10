"""Commands about lock files: `lock` writes one, `verify` compares with one."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import click

from backend_caps.cli import invocation
from backend_caps.cli.launch import launch_options, model_option
from backend_caps.cli.options import has_server_flags, request_of, server_command
from backend_caps.cli.output import Format, examples, printer, say
from backend_caps.cli.request import Request, query_of
from backend_caps.engines.command_line import locked_words
from backend_caps.errors import BackendCapsError
from backend_caps.report.diff import Side, differences
from backend_caps.report.difference import (
    NOWHERE,
    DifferenceDocument,
    DifferenceKind,
    diff_document,
    diff_view,
    in_order,
)
from backend_caps.report.lock import (
    LockDocument,
    LockedRequest,
    lock_document,
    portable_place,
    read_lock,
    write_lock,
)
from backend_caps.report.plans import PlanDocument
from backend_caps.resolution.engine import installed_engine as installed_version

DIFFERS = 1
"""The exit status where something is not the same."""


def _always_json(command: click.Command) -> click.Command:
    """Hide the choice of a format: a lock has one."""
    for option in command.params:
        if isinstance(option, click.Option) and option.name == "format_":
            option.hidden, option.default = True, "json"
    return command


@_always_json
@server_command(
    "Write down what is installed, and the plan of a server.",
    "backend-caps lock --output server.lock -- --attention-backend torch_native",
    "backend-caps lock > installed.lock",
    engine=partial(
        launch_options, words=" Unless this or --path is given, the one that is installed."
    ),
)
@click.option(
    "--output",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    help="Write to this file instead of standard output.",
)
@click.pass_context
def lock(ctx: click.Context, /, output: Path | None, **_: object) -> None:
    """Write down what is installed, and the plan where server flags are given.

    The same releases and flags give the same bytes on every machine. `backend-caps verify`
    tells later what has changed.
    """
    given = ctx.params
    # Where the environment is locked, its engine is the one that is installed.
    # vLLM reads flags by its own functions, which --engine has to name.
    engines = ("sglang",) if has_server_flags(ctx) else invocation.ENGINES
    if given["engine"] is None and not given["path"] and given["source"] is None:
        given["engine"] = invocation.installed_engine(engines)
    request = request_of(ctx, always_plans=False)
    plan = request.document if request.is_about_server else None
    text = lock_of(request, plan).text()
    if output is None:
        say(text)
    else:
        write_lock(text, output)


def lock_of(request: Request, plan: PlanDocument | None) -> LockDocument:
    """Make the lock of a request and of its backends."""
    registry, reading = request.found, request.reading
    locked = LockedRequest(
        flags=request.flags,
        facts=request.facts,
        unsafe_override=request.override,
        policy=request.policy,
        rules=request.rules if isinstance(request.rules, str) else None,
        engine=reading and reading.engine,
        words=locked_words(request.words) if request.model is not None else None,
        model=None if request.model is None else portable_place(request.model),
        requires_evidence=request.requires_evidence or None,
    )
    return lock_document(locked, registry, registry.rules(request.rules), plan, reading)


@invocation.search_options
@invocation.format_option()
@click.command(
    short_help="Compare a lock with what is installed now.",
    epilog=examples(
        "backend-caps verify server.lock", "backend-caps verify server.lock --format json"
    ),
)
@click.argument("lockfile", required=False, type=click.Path(path_type=Path))
@invocation.source_option(
    "Read the lock's engine from this folder or wheel instead of the installed one."
)
@model_option
@click.pass_context
def verify(ctx: click.Context, /, lockfile: Path | None, source: Path | None, **_: object) -> None:
    """Repeat the request that LOCKFILE was written for, and show what differs now.

    Without LOCKFILE, the one that the setting lock names.

    Exit status 0 where nothing differs, 1 where something does, 2 where nothing could be compared.
    """
    traced = invocation.traced_in(ctx)
    if lockfile is None and traced is not None:
        lockfile = traced.settings.lock
    if lockfile is None:
        raise click.UsageError("Name the LOCKFILE, here or as the setting lock.")
    locked = read_lock(lockfile)
    request = _repeated_request(ctx, locked.request)
    differing = in_order(_differences(locked, request))
    now = "what is installed" if source is None else source.name
    document = diff_document(str(lockfile), now, differing)
    request.show(document, diff_view(document))
    if differing:
        ctx.exit(DIFFERS)


def _repeated_request(ctx: click.Context, locked: LockedRequest) -> Request:
    """Repeat a lock's request; an engine's own rules are read anew."""
    model = None if locked.words is None else ctx.params["model_config"] or locked.model
    if locked.words is not None and model is None:
        raise click.UsageError(
            "nothing was compared: the lock is of a server of a folder's model, and folders lie "
            "elsewhere on each machine. Add --model-config FOLDER."
        )
    search, source = invocation.PluginSearch.from_context(ctx), ctx.params["source"]
    try:
        query = query_of([locked.words or ()], model, locked.facts) if model else None
        reading = invocation.reading_of(locked.engine, source, query=query, search=search)
    except BackendCapsError as error:
        raise click.UsageError(f"nothing was compared: {error}") from error
    return Request(
        search=search,
        rules=locked.rules or (reading and reading.rules) or installed_version()[0],
        policy=locked.policy,
        facts=locked.facts,
        override=locked.unsafe_override,
        flags=locked.flags,
        show=printer(Format(ctx.params["format_"])),
        reading=reading,
        words=locked.words or (),
        model=model,
        requires_evidence=bool(locked.requires_evidence),
    )


def _differences(locked: LockDocument, request: Request) -> Iterator[DifferenceDocument]:
    """Compare a lock with what is installed; of a refused plan, list every fault."""
    plan: PlanDocument | None = None
    refused: list[str] = []
    if locked.plan is not None or request.is_about_server:
        try:
            plan = request.document
        except* BackendCapsError as faults:
            refused = [str(fault) for fault in faults.exceptions]
    for fault in refused:
        yield DifferenceDocument(
            kind=DifferenceKind.STRICTER,
            subject="plan",
            field="",
            before="made",
            after=f"refused: {fault}",
            where=NOWHERE,
        )
    for difference in differences(Side.of_lock(locked), Side.of_lock(lock_of(request, plan))):
        # The refusals above stand in for the plan that vanished.
        if not (refused and (difference.subject, difference.field) == ("plan", "")):
            yield difference
