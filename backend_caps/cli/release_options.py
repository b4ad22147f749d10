"""The options of commands that read releases: folders, a package index, or no download."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import click
from click.decorators import FC

from backend_caps.compatibility.releases import PYPI, Releases, cache_folder

_OPTIONS = (
    click.option(
        "--releases",
        "folders",
        multiple=True,
        type=click.Path(exists=True, file_okay=False, path_type=Path),
        metavar="FOLDER",
        help="A folder with wheels and source distributions of engines. Repeatable.",
    ),
    click.option(
        "--index-url",
        envvar="PIP_INDEX_URL",
        default=PYPI,
        show_default=True,
        metavar="URL",
        help="The package index that other releases are downloaded from.",
    ),
    click.option("--offline", is_flag=True, help="Download nothing."),
)


def release_options(command: FC) -> FC:
    """Add the options that `releases_of` reads: `folders`, `index_url` and `offline`."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def releases_of(folders: Sequence[Path], index_url: str, *, is_offline: bool) -> Releases:
    """Return the releases of these options; downloads are kept in the user's cache."""
    cache = cache_folder(os.environ)
    return Releases(folders=folders, cache=cache, index_url=index_url, is_offline=is_offline)
