"""Names, versions and requirements of distributions."""

# ruff: noqa: PTH119 - pathlib takes longer than what the scan does with a name

from __future__ import annotations

import os
import re
from dataclasses import dataclass

_SEPARATORS = re.compile(r"[-_.]+")
_EGG = re.compile(r"(?P<name>.+?)-(?P<version>\d[^-]*)(-py\d.*)?")
_OURS = re.compile(r"backend[-_.]caps(?![-_.\w])(?P<wanted>[^;]*).*", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Headers:
    """What a distribution's core metadata says."""

    name: str
    version: str | None
    requires: str | None
    """What it requires of backend-caps."""


def normalised(name: str) -> str:
    """Spell a distribution's name as PEP 503 does: `My_Pkg` and `my.pkg` are `my-pkg`."""
    return _SEPARATORS.sub("-", name.strip()).lower()


def named(folder: str, root: str) -> tuple[str, str | None]:
    """Read a distribution's name and version off its metadata folder."""
    if folder.lower() == "egg-info":
        return _split_egg(os.path.basename(root)[: -len(".egg")])
    stem, _, ending = folder.rpartition(".")
    if ending.lower() == "egg-info":
        return _split_egg(stem)
    # A dist-info's version has no dash, though a name may have one against the rules.
    name, dash, version = stem.rpartition("-")
    return (normalised(name), version) if dash else (normalised(stem), None)


def _split_egg(stem: str) -> tuple[str, str | None]:
    match = _EGG.fullmatch(stem)
    if match is None:
        return normalised(stem), None
    return normalised(match["name"]), match["version"]


def headers(data: bytes, name: str, version: str | None) -> Headers:
    """Read the headers of METADATA or PKG-INFO; what they lack stays as the folder says."""
    requires = None
    for raw in data.splitlines():
        if not raw.strip():
            break
        field, _, value = raw.decode("utf-8", "replace").partition(":")
        match field.strip().lower():
            case "name":
                name = normalised(value)
            case "version":
                version = value.strip()
            case "requires-dist":
                requires = requires or _wanted(value)
    return Headers(name, version, requires)


def _wanted(requirement: str) -> str | None:
    match = _OURS.fullmatch(requirement.strip())
    if match is None:
        return None
    return "backend-caps" + re.sub(r"[\s()]", "", match["wanted"])
