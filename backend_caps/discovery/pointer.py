"""What `"package.module:Class"` misnames, found in files: nothing is imported."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from pathlib import Path

from backend_caps.discovery.metadata import read_regular
from backend_caps.resolution.errors import nearest

_MADE_AT_RUN_TIME = re.compile(
    r"import \*|^def __getattr__|\bglobals\(|\bsetattr\(|sys\.modules", re.MULTILINE
)
"""Source whose names are not all written in it."""
_TOP_LEVEL = re.compile(r"^(?:class|def|async def) +(\w+)|^(\w+) *[:=]", re.MULTILINE)
_CLOSE = 0.6


def misnamed(pointer: str, imports: Sequence[str]) -> str | None:
    """Describe a module or class that is not there, with the nearest one that is.

    None where it is there, or where that cannot be told: a package that is not installed, a module
    without source, or one that makes its names while it runs.

    Args:
        pointer: a module and a name in it, with a colon between.
        imports: the folders that modules are imported from.
    """
    dotted, _, name = pointer.partition(":")
    root, *parts = dotted.split(".")
    spec = top_level(root, imports)
    known = root
    for part in parts:
        folders = [] if spec is None else [*(spec.submodule_search_locations or ())]
        if not folders:
            return None
        spec = PathFinder.find_spec(f"{known}.{part}", folders)
        if spec is None:
            return _missing(f"{known} has no module {part!r}", part, _modules(folders), f"{known}.")
        known = f"{known}.{part}"
    return _missing_name(dotted, name.partition(".")[0], spec)


def top_level(name: str, imports: Sequence[str]) -> ModuleSpec | None:
    """Find a top-level module; None if absent.

    Editable installs, whose import hooks find modules that no folder has, are found too.
    """
    with suppress(ImportError, ValueError, AttributeError):
        return PathFinder.find_spec(name, imports) or find_spec(name)
    return None


def _missing_name(module: str, name: str, spec: ModuleSpec | None) -> str | None:
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        return None
    try:
        source = read_regular(spec.origin).decode("utf-8", errors="replace")
    except OSError:
        return None
    if re.search(rf"\b{re.escape(name)}\b", source) or _MADE_AT_RUN_TIME.search(source):
        return None
    names = [first or second for first, second in _TOP_LEVEL.findall(source)]
    modules = _modules(spec.submodule_search_locations or ())
    return _missing(f"{module} has no {name!r}", name, [*names, *modules], f"{module}:")


def _missing(what: str, name: str, known: Sequence[str], before: str) -> str:
    close = nearest(name, known, cutoff=_CLOSE)
    return f"{what}; the nearest is {before}{close}" if close else what


def _modules(folders: Sequence[str]) -> list[str]:
    """List the modules and packages in folders."""
    return sorted(set(_named_in(folders)))


def _named_in(folders: Sequence[str]) -> Iterator[str]:
    for folder in map(Path, folders):
        with suppress(OSError):
            for entry in folder.iterdir():
                if entry.suffix == ".py" or entry.is_dir():
                    yield entry.stem
