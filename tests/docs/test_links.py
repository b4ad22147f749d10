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


def test_every_page_is_linked_from_the_index() -> None:
    """`docs/README.md` names every page below it."""
    index = ROOT / "docs" / "README.md"
    linked = {(index.parent / link.partition("#")[0]).resolve() for link in links_of(index)}

    missing = [name_of(page) for page in PAGES if page.is_relative_to(ROOT / "docs")]

    assert [name for name in missing if ROOT / name not in {index, *linked}] == []
