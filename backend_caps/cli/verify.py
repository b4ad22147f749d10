"""`backend-caps verify`: whether what is installed is still what a lock says."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click

from backend_caps.cli.engines import reading_of
from backend_caps.cli.examples import examples
from backend_caps.cli.invocation import Invocation
from backend_caps.cli.lock import lock_of
from backend_caps.cli.options import Request
from backend_caps.cli.output import Format, Show, printer
from backend_caps.cli.settings import (
    PluginSearch,
    SettingOption,
    format_option,
    search_options,
    traced_in,
)
from backend_caps.discovery.registry import Registry
from backend_caps.errors import BackendCapsError
from backend_caps.report.diff import Difference, DifferenceKind, differences, in_order
from backend_caps.report.diff_document import diff_document
from backend_caps.report.diff_views import diff_view
from backend_caps.report.documents import PlanDocument
from backend_caps.report.lock import LockDocument, LockedRequest
from backend_caps.report.lock_file import read_lock
from backend_caps.report.snapshot import Snapshot
from backend_caps.resolution.engine import DEFAULT_ENGINE

DIFFERS = 1
"""The exit status where something is not the same."""


@search_options
@format_option
@click.command(
    epilog=examples(
        "backend-caps verify server.lock",
        "backend-caps verify server.lock --format json",
    ),
)
@click.argument("lockfile", required=False, type=click.Path(path_type=Path))
@click.option(
    "--source",
    cls=SettingOption,
    type=click.Path(exists=True, path_type=Path),
    help="Read the lock's engine from this folder or wheel instead of the installed one.",
)
@click.pass_context
def verify(
    ctx: click.Context,
    /,
    lockfile: Path | None,
    source: Path | None,
    format_: str,
    **_options: object,
) -> None:
    """Ask again what LOCKFILE was written for, and show what is another now.

    Without LOCKFILE, the one that the setting lock names.

    Exit status 0 where nothing is, 1 where something is, 2 where nothing could be compared.
    """
    traced = traced_in(ctx)
    if lockfile is None and traced is not None:
        lockfile = traced.settings.lock
    if lockfile is None:
        raise click.UsageError("Name the LOCKFILE, here or as the setting lock.")
    locked = read_lock(lockfile)
    search, show = PluginSearch.from_context(ctx), printer(Format(format_))
    request = _again(locked.request, search=search, source=source, show=show)
    registry = request.registry(ctx.ensure_object(Invocation))
    found = in_order((*_differences(locked, request, registry),))
    now = "what is installed" if source is None else source.name
    document = diff_document(str(lockfile), now, found)
    request.show(document, diff_view(document))
    if found:
        ctx.exit(DIFFERS)


def _again(
    asked: LockedRequest, *, search: PluginSearch, source: Path | None, show: Show
) -> Request:
    """Repeat a lock's request; an engine's own rules are those it has now."""
    try:
        reading = reading_of(asked.engine, source)
    except BackendCapsError as error:
        raise click.UsageError(f"nothing was compared: {error}") from error
    own = None if reading is None else reading.rules
    return Request(
        search=search,
        rules=asked.rules or own or DEFAULT_ENGINE,
        policy=asked.policy,
        facts=asked.facts,
        override=asked.unsafe_override,
        flags=asked.flags,
        show=show,
        reading=reading,
        requires_evidence=bool(asked.requires_evidence),
    )


def _differences(
    locked: LockDocument, request: Request, registry: Registry
) -> Iterator[Difference]:
    is_planned = locked.plan is not None or bool(request.flags.given())
    plan, refused = _planned(request, registry) if is_planned else (None, [])
    for fault in refused:
        yield Difference(
            kind=DifferenceKind.STRICTER,
            subject="plan",
            field="",
            before="made",
            after=f"refused: {fault}",
        )
    now = lock_of(request, registry, plan)
    for found in differences(Snapshot.of_lock(locked), Snapshot.of_lock(now)):
        if not (refused and (found.subject, found.field) == ("plan", "")):  # told already
            yield found


def _planned(request: Request, registry: Registry) -> tuple[PlanDocument | None, list[str]]:
    """Resolve once more; where that is refused now, tell every fault."""
    plan: PlanDocument | None = None
    refused: list[str] = []
    try:
        plan = request.plan(registry)
    except* BackendCapsError as faults:
        refused = [str(fault) for fault in faults.exceptions]
    return plan, refused
