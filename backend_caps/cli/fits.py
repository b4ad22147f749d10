"""`backend-caps fits`: whether plugins survive a release of an engine, and which line breaks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import click

from backend_caps.cli import invocation
from backend_caps.cli.output import Format, examples, printer, working
from backend_caps.compatibility.comparison import Comparison, compare, upgrade
from backend_caps.compatibility.plugin import Plugin
from backend_caps.compatibility.releases import PYPI, Releases
from backend_caps.compatibility.sources import EngineSource, engine_sources, is_engine, open_plugin
from backend_caps.errors import BackendCapsError
from backend_caps.report.fits_documents import fits_document
from backend_caps.report.fits_views import fits_view

BREAKS = 1
"""Something breaks."""
CANNOT_SAY = 2
"""A plugin or an engine cannot be read, or has no point of contact."""
_CACHE = Path("~/.cache/backend-caps/releases")


@invocation.format_option()
@click.command(
    short_help="Show what of a plugin breaks with a release.",
    epilog=examples(
        "backend-caps fits . vllm@0.33.0",
        "backend-caps fits ./my_plugin-1.0-py3-none-any.whl vllm@0.32.0 vllm@0.33.0",
        "backend-caps fits . 'vllm>=0.30'",
    ),
)
@click.argument("words", nargs=-1, required=True, metavar="PLUGIN... ENGINE [ENGINE]")
@click.option(
    "--releases",
    "folders",
    multiple=True,
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    metavar="FOLDER",
    help="A folder with wheels and source distributions of engines. Repeatable.",
)
@click.option(
    "--index-url",
    envvar="PIP_INDEX_URL",
    default=PYPI,
    show_default=True,
    metavar="URL",
    help="The package index that other releases are downloaded from.",
)
@click.option("--offline", is_flag=True, help="Download nothing.")
@click.pass_context
def fits(
    ctx: click.Context,
    /,
    words: Sequence[str],
    folders: Sequence[Path],
    index_url: str,
    *,
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
    plugins = [each for each in words if not is_engine(each)]
    engines = [each for each in words if is_engine(each)]
    if not plugins or not engines:
        missing = "plugin" if engines else "engine"
        raise click.UsageError(f"No {missing} is named. Write: backend-caps fits . vllm@0.33.0")
    show = printer(Format(format_))
    releases = Releases(
        folders=folders, cache=_CACHE.expanduser(), index_url=index_url, is_offline=offline
    )
    try:
        with working("reading"):
            sources = [each for word in engines for each in engine_sources(word, releases)]
            found = [
                each
                for word in plugins
                for each in _compared(open_plugin(word), engines, sources, releases)
            ]
    except BackendCapsError as error:
        click.echo(f"error: {error}", err=True)
        ctx.exit(CANNOT_SAY)
    document = fits_document(found)
    show(document, fits_view(document))
    if any(each.breaks for each in found):
        ctx.exit(BREAKS)
    if any(each.is_open for each in found):
        ctx.exit(CANNOT_SAY)


def _compared(
    plugin: Plugin, engines: Sequence[str], sources: Sequence[EngineSource], releases: Releases
) -> Iterator[Comparison]:
    """Compare a plugin with each release; with two that are named, with the upgrade."""
    found = [compare(plugin, source.open()) for source in sources]
    if len(engines) == 2:
        yield from (upgrade(old, new) for old, new in pairwise(found))
        return
    yield from found
