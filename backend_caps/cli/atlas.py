"""`backend-caps atlas`: what the backends of every release can do, as data and as a site."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

import click

from backend_caps.atlas.build import RELEASES, Built, Progress, ReleaseStore, build
from backend_caps.cli.output import examples, say, working
from backend_caps.cli.release_options import release_options, releases_of
from backend_caps.extras import require_extra


@click.group(
    short_help="Show what backends of every release can do.",
    epilog=examples(
        "backend-caps atlas build atlas", "backend-caps atlas build atlas 'vllm>=0.30'"
    ),
)
def atlas() -> None:
    """Show what the attention backends of every release of SGLang and vLLM can do."""


@atlas.command(
    "build",
    short_help="Read the releases that a folder lacks.",
    epilog=examples(
        "backend-caps atlas build atlas",
        "backend-caps atlas build atlas 'vllm>=0.30' --releases wheels --offline",
    ),
)
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
@click.argument("ranges", nargs=-1, metavar="[RELEASES]...")
@release_options
@click.option(
    "--workers",
    type=click.IntRange(min=1),
    default=2,
    show_default=True,
    help="Processes that read releases.",
)
def build_command(
    folder: Path,
    ranges: Sequence[str],
    folders: Sequence[Path],
    index_url: str,
    *,
    offline: bool,
    workers: int,
) -> None:
    """Read the releases that FOLDER lacks: RELEASES, such as 'vllm>=0.30', or all that are known.

    Each is written to FOLDER/data as it is read, so that a build which was ended goes on where it
    stood. A release is read again where the reader has changed.
    """
    require_extra("html", "backend-caps atlas build")
    from backend_caps.atlas.site import write_site  # noqa: PLC0415 - templates

    store = ReleaseStore(folder / "data")
    releases = releases_of(folders, index_url, is_offline=offline)
    with progress_bar() as progress:
        built = build(store, ranges or RELEASES, releases, workers=workers, progress=progress)
    with working("writing pages"):
        num_pages = write_site(store, folder, version("backend-caps"))
    say(_summary(built, num_pages, folder))


def _summary(built: Built, num_pages: int, folder: Path) -> str:
    kept = f", {len(built.kept)} kept" if built.kept else ""
    return (
        f"{len(built.read)} releases read{kept}\n"
        f"{num_pages} pages written: open {folder / 'index.html'}\n"
    )


@contextmanager
def progress_bar() -> Iterator[Progress]:
    """Draw a bar on a terminal, while releases are read."""
    if sys.stderr is None or not sys.stderr.isatty():
        yield lambda *_: None
        return
    from rich.progress import MofNCompleteColumn, TextColumn  # noqa: PLC0415 - for terminals alone

    from backend_caps.report.progress import bar, progress_line  # noqa: PLC0415

    line = progress_line(
        TextColumn("reading releases"),
        bar(),
        MofNCompleteColumn(),
        TextColumn("{task.description}"),
    )
    with line:
        task = line.add_task("", total=None)

        def show(name: str, done: int, total: int) -> None:
            line.update(task, description=name, completed=done, total=total)

        yield show
