"""The generated parts of the API's pages: what is public, a line each."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import griffe

from docs.tools.markdown import table
from docs.tools.public import is_error, public_names

ROOT = Path(__file__).resolve().parents[3]


def names(module: str) -> str:
    """Give each public name of a module with its first docstring line, or its value."""
    rows = [(_linked(module, name), _told(module, name)) for name in public_names(module)]
    return table(("name", "what it does"), rows)


def _linked(module: str, name: str) -> str:
    if is_error(module, name):
        return f"[`{name}`](../errors.md#{name.lower()})"
    return f"`{name}`"


def _told(module: str, name: str) -> str:
    own = _package()[f"{module}.{name}".removeprefix("backend_caps.")]
    if own.is_alias:
        own = own.final_target
    if own.docstring is not None:
        return str(own.docstring.value).partition("\n\n")[0]
    return f"`{own.value}`"


@cache
def _package() -> griffe.Object | griffe.Alias:
    return griffe.load("backend_caps", search_paths=[ROOT], resolve_aliases=True)
