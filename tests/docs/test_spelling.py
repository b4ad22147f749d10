"""Words are spelled as in a dictionary or the word list, and links lead somewhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from docs.tools import engines
from docs.tools.spelling import OWN_WORDS, docstrings, needless_words, unknown_words
from tests.docs.pages import PAGES, ROOT, anchors_of, links_of, name_of

NAMES = {page.path for page in engines.PAGES.values()}
"""Pages of an engine's own names."""
TEXTS = sorted({*PAGES, *ROOT.glob("changelog/**/*.md"), *ROOT.glob("plugins/*/README.md")} - NAMES)
MODULES = sorted(
    path
    for folder in ("backend_caps", "plugins", "benchmarks", "docs")
    for path in (ROOT / folder).rglob("*.py")
)
WHERE = name_of(OWN_WORDS)


@pytest.mark.parametrize("page", TEXTS, ids=name_of)
def test_page_is_spelled_right(page: Path) -> None:
    """Every word of a page's prose is a word."""
    assert unknown_words(page.read_text("utf-8")) == set(), f"mend them, or add them to {WHERE}"


def test_docstrings_are_spelled_right() -> None:
    """Every word of a docstring is a word."""
    found = {
        name_of(path): words
        for path in MODULES
        if (words := unknown_words("\n\n".join(docstrings(path.read_text("utf-8")))))
    }

    assert found == {}, f"mend them, put names in backticks, or add words to {WHERE}"


def test_own_words_are_sorted() -> None:
    """The list of words has each once, where it is looked for."""
    words = OWN_WORDS.read_text("utf-8").split()

    assert words == sorted(set(words))


def test_own_words_are_in_no_dictionary() -> None:
    """The list of words has none that the dictionary has."""
    assert needless_words() == set()


@pytest.mark.parametrize(
    ("prose", "expected"),
    [
        pytest.param("A plan is resolwed.", {"resolwed"}, id="a misspelling"),
        pytest.param("The backend's lengths.", set(), id="a word of ours"),
        pytest.param("Call `resolwe(x)` now.", set(), id="code"),
        pytest.param("See [it](resolwed.md).", set(), id="a link's place"),
        pytest.param("```text\nresolwed\n```", set(), id="a block"),
        pytest.param("A FutureMap on CUDA, in seq_lens.", set(), id="names"),
    ],
)
def test_unknown_word_is_found(prose: str, expected: set[str]) -> None:
    """What is no word is reported, and what is no prose is not asked."""
    assert unknown_words(prose) == expected


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_resolve(page: Path) -> None:
    """Every link to a page names one that is there, and a heading that it has."""
    assert [link for link in links_of(page) if not _resolves(page, link)] == []


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
