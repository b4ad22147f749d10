"""Commands about lock files: `lock` writes one, `verify` and `diff` compare with one."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import click

from backend_caps.cli import invocation
from backend_caps.cli.options import has_server_flags, request_of, server_command
from backend_caps.cli.output import Format, examples, printer, say
from backend_caps.cli.request import Request
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
    read_lock,
    write_lock,
)
from backend_caps.report.plans import PlanDocument
from backend_caps.resolution.engine import installed_engine as installed_version

DIFFERS = 1
"""The exit status where something is not the same."""
_INSTALLED = ("", "installed")
"""The PATHs of `engine@PATH` that name the installed distribution."""


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
        invocation.engine_options,
        words=" Unless this or --path is given, the one that is installed.",
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
    request = request_of(ctx)
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
    try:
        reading = invocation.reading_of(locked.engine, ctx.params["source"])
    except BackendCapsError as error:
        raise click.UsageError(f"nothing was compared: {error}") from error
    return Request(
        search=invocation.PluginSearch.from_context(ctx),
        rules=locked.rules or (reading and reading.rules) or installed_version()[0],
        policy=locked.policy,
        facts=locked.facts,
        override=locked.unsafe_override,
        flags=locked.flags,
        show=printer(Format(ctx.params["format_"])),
        reading=reading,
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


@invocation.config_option
@invocation.format_option()
@click.command(
    short_help="Show what differs between two locks or engines.",
    epilog=examples(
        "backend-caps diff sglang@old.whl sglang@new.whl",
        "backend-caps diff before.lock after.lock",
    ),
)
@click.argument("before", metavar="A")
@click.argument("after", metavar="B")
@click.pass_context
def diff(ctx: click.Context, /, before: str, after: str, format_: str, **_: object) -> None:
    """Show what differs between A and B: what became stricter or looser, what is gone or new.

    Each is a lock file, or an engine: sglang@PATH or vllm@PATH, where PATH is a folder or a
    wheel; without a PATH, the installed one.

    Exit status 0 where nothing differs, 1 where something does.
    """
    show = printer(Format(format_))
    (one, label), (other, label_after) = _side(before), _side(after)
    labels = (label, label_after) if label != label_after else (before, after)
    found = differences(one, other)
    document = diff_document(*labels, found)
    show(document, diff_view(document))
    if found:
        ctx.exit(DIFFERS)


def _side(named: str) -> tuple[Side, str]:
    """Read a side, with its name; an unreadable side is wrong usage, not a difference."""
    engine, _, place = named.partition("@")
    if engine not in invocation.ENGINES or "@" not in named:
        return _of_lock(Path(named)), named
    try:
        reading = invocation.reading_of(engine, None if place in _INSTALLED else Path(place))
    except BackendCapsError as error:
        raise click.UsageError(str(error)) from error
    assert reading is not None, f"{engine} was asked for"
    return Side.of_reading(reading), reading.title


def _of_lock(path: Path) -> Side:
    """Read a lock file; refuse an engine's source without the engine's name."""
    is_wheel = path.suffix == ".whl"
    if is_wheel or path.is_dir():
        kind = "wheel" if is_wheel else "folder"
        spelled = " or ".join(f"{engine}@{path}" for engine in invocation.ENGINES)
        raise click.UsageError(
            f"{str(path)!r} is a {kind}; expected a lock file, or an engine with its source. "
            f"Write {spelled}."
        )
    return Side.of_lock(read_lock(path))
