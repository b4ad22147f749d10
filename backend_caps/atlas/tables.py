"""A release as a compact table, which a page of the site filters and asks."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from pydantic import JsonValue

from backend_caps.atlas.documents import CellDocument, ClassDocument, ReleaseDocument
from backend_caps.atlas.question import served_cells, shown
from backend_caps.capability.vocabulary import CAPABILITIES

_ORIGINS = ("declared", "conditional", "inherited", "undeclared", "not-known")


class _Numbered:
    """Values in the order in which they are first met, each with its number."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self.values: list[JsonValue] = []

    def number(self, value: JsonValue) -> int:
        """Return the number of a value, a new one where it is met first."""
        key = repr(value)
        if key not in self._numbers:
            self._numbers[key] = len(self.values)
            self.values.append(value)
        return self._numbers[key]


def page_of(distribution: str, name: str) -> str:
    """Return the address of a class's page, from the site's first page."""
    return f"backends/{distribution}/{name}.html"


def table_of(release: ReleaseDocument, only: Collection[str] | None = None) -> dict[str, Any]:
    """Return a release's classes and cells; values, files and names stand for their numbers.

    Args:
        release: the release.
        only: the capabilities that a first view shows; a question needs all, and settings too.
    """
    values, files, names, texts = _Numbered(), _Numbered(), _Numbered(), _Numbered()
    capabilities = [*CAPABILITIES]

    def cells(stated: Mapping[str, CellDocument]) -> list[list[int]]:
        return [
            [
                capabilities.index(name),
                values.number(cell.value),
                _ORIGINS.index(cell.origin),
                *_place(cell.declared_at, files),
                -1 if cell.inherited_from is None else names.number(cell.inherited_from),
                *(values.number(each.value) for each in cell.when or ()),
            ]
            for name, cell in stated.items()
            if only is None or name in only
        ]

    def settings(own: ClassDocument) -> list[list[int]]:
        return [
            [
                names.number(each.name),
                texts.number(dict(each.settings)),
                int(each.accepted),
                texts.number(each.words),
                *_place(each.declared_at, files),
            ]
            for each in own.settings or ()
        ]

    rows = [
        [
            name,
            own.registered_as,
            own.platforms or {},
            page_of(release.distribution, name),
            cells(served_cells(release, name)),
            settings(own) if only is None else [],
            own.refuted,
        ]
        for name, own in release.classes.items()
    ]
    root = [] if release.root is None else cells(release.root.cells)
    return {
        "distribution": release.distribution,
        "version": release.version,
        "capabilities": capabilities,
        "origins": _ORIGINS,
        "rows": rows,
        "tried": (release.tried or {}) if only is None else None,
        "root": root,
        "values": values.values,
        "words": [*map(shown, values.values)],
        "files": files.values,
        "names": names.values,
        "texts": texts.values,
    }


def _place(at: str | None, files: _Numbered) -> tuple[int, int]:
    file, _, line = (at or "").rpartition(":")
    return (files.number(file), int(line)) if at else (-1, 0)
