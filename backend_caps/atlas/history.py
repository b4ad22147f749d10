"""Since which release each statement has been as it is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from backend_caps.atlas.documents import CellDocument, ClassDocument, ReleaseDocument


def with_history(releases: Iterable[ReleaseDocument]) -> Iterator[ReleaseDocument]:
    """Fill in `since` of every class and cell.

    Args:
        releases: of one engine, the oldest first.
    """
    before: ReleaseDocument | None = None
    for release in releases:
        known = {} if before is None else before.classes
        classes = {
            name: _class(known.get(name), each, release.version)
            for name, each in release.classes.items()
        }
        old_root = None if before is None else before.root
        root = release.root and _class(old_root, release.root, release.version)
        before = release.model_copy(update={"classes": classes, "root": root})
        yield before


def _class(before: ClassDocument | None, now: ClassDocument, version: str) -> ClassDocument:
    known = {} if before is None else before.cells
    cells = {name: _cell(known.get(name), each, version) for name, each in now.cells.items()}
    since = version if before is None else before.since
    return now.model_copy(update={"cells": cells, "since": since})


def _cell(before: CellDocument | None, now: CellDocument, version: str) -> CellDocument:
    is_same = before is not None and before.says() == now.says()
    return now.model_copy(update={"since": before.since if before and is_same else version})
