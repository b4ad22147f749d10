"""Links lead somewhere, and every page can be reached."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.pages import PAGES, ROOT, anchors_of, links_of, name_of


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_resolve(page: Path) -> None:
    """Every link to a page names one that is there, and a heading that it has."""
    broken = [link for link in links_of(page) if not _resolves(page, link)]

    assert broken == []


def _resolves(page: Path, link: str) -> bool:
    if link.startswith(("https://", "http://")):
        return True
    path, _, anchor = link.partition("#")
    target = (page.parent / path).resolve() if path else page
    return target.exists() and (not anchor or anchor in anchors_of(target))


INDEXES = [page for page in PAGES if page.name == "README.md" and page.parent != ROOT]


@pytest.mark.parametrize("index", INDEXES, ids=name_of)
def test_index_names_every_page(index: Path) -> None:
    """A folder's README names each page of the folder, and the README of each folder in it."""
    linked = {(index.parent / link.partition("#")[0]).resolve() for link in links_of(index)}

    pages = {page for page in PAGES if page.parent == index.parent and page != index}
    folders = {page for page in INDEXES if page.parent.parent == index.parent}

    assert {name_of(page) for page in (pages | folders) - linked} == set()


def test_every_folder_has_an_index() -> None:
    """A page is found from the README of its folder."""
    folders = {page.parent for page in PAGES if page.is_relative_to(ROOT / "docs")}

    assert folders == {index.parent for index in INDEXES}
