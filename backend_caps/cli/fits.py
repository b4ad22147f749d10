"""`backend-caps fits`: whether plugins survive a release of an engine, and which line breaks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from backend_caps.cli import invocation
from backend_caps.cli.output import (
    Format,
    Writers,
    also_option,
    examples,
    printer,
    require_writable,
    say,
    working,
    write_also,
)
from backend_caps.cli.release_options import release_options, releases_of
from backend_caps.compatibility.sources import is_engine
from backend_caps.errors import BackendCapsError
from backend_caps.report.document import json_text
from backend_caps.report.fits import Question, fits_of
from backend_caps.report.fits_ci import fits_junit, fits_sarif
from backend_caps.report.fits_documents import FitsDocument
from backend_caps.report.fits_views import badge, fits_view
from backend_caps.report.sections import markdown

BREAKS = 1
"""Something breaks."""
CANNOT_SAY = 2
"""A plugin or an engine cannot be read, or has no point of contact."""
_STATUSES = {"holds": 0, "breaks": BREAKS, "cannot say": CANNOT_SAY}
_OF_CI = {"junit": fits_junit, "sarif": fits_sarif}


@invocation.format_option(*_OF_CI)
@click.command(
    short_help="Show what of a plugin breaks with a release.",
    epilog=examples(
        "backend-caps fits . vllm@0.33.0",
        "backend-caps fits my_plugin vllm@0.32.0 vllm@0.33.0 --also findings.sarif",
    ),
)
@click.argument("words", nargs=-1, required=True, metavar="PLUGIN... ENGINE [ENGINE]")
@also_option(
    "JSON, Markdown, JUnit, SARIF, a page or the badge alone, by its ending in .json, .md, .xml, "
    ".sarif, .html or .svg"
)
@click.option(
    "--since",
    "finds_since",
    is_flag=True,
    help="Compare older releases in the folders and among downloads too, for the first that has "
    "each break. A range says so by itself.",
)
@release_options
@click.pass_context
def fits(
    ctx: click.Context,
    /,
    words: Sequence[str],
    also: Sequence[Path],
    folders: Sequence[Path],
    index_url: str,
    *,
    finds_since: bool,
    offline: bool,
    format_: str,
) -> None:
    """Show what of PLUGIN breaks with ENGINE: names, signatures, calls, results, attributes.

    PLUGIN is a folder, a wheel, a source distribution, FOLDER@REVISION of a checkout, or the name
    of an installed distribution. ENGINE is vllm or sglang (the installed one), vllm@0.33.0,
    vllm@latest, vllm@PATH, vllm@PATH@REVISION, or a range such as 'vllm>=0.30'. With two releases,
    what the upgrade from the first to the second brings is shown. Nothing is imported or run.

    Exit status 0 where nothing breaks, 1 where something does, 2 where it cannot be said.
    """
    question = Question(
        plugins=[each for each in words if not is_engine(each)],
        engines=[each for each in words if is_engine(each)],
        releases=releases_of(folders, index_url, is_offline=offline),
        finds_since=finds_since,
    )
    if not question.plugins or not question.engines:
        missing = "plugin" if question.engines else "engine"
        raise click.UsageError(f"No {missing} is named. Write: backend-caps fits . vllm@0.33.0")
    require_writable(also, _WRITERS)
    try:
        with working("reading"):
            document = fits_of(question)
        _show(document, format_)
        write_also(document, also, _WRITERS)
    except BackendCapsError as error:
        click.echo(f"error: {error}", err=True)
        ctx.exit(CANNOT_SAY)
    ctx.exit(_STATUSES[document.status])


def _page(document: FitsDocument) -> str:
    from backend_caps.report.html.page import page  # noqa: PLC0415 - templates

    return page(document, fits_view(document))


_WRITERS: Writers[FitsDocument] = {
    ".html": _page,
    ".json": lambda document: f"{json_text(document, indent=2)}\n",
    ".md": lambda document: markdown(fits_view(document)),
    ".sarif": fits_sarif,
    ".svg": badge,
    ".xml": fits_junit,
}
"""What is written to a file of an ending."""


def _show(document: FitsDocument, format_: str) -> None:
    writer = _OF_CI.get(format_)
    if writer is None:
        printer(Format(format_))(document, fits_view(document))
    else:
        say(writer(document))
