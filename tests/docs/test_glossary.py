"""One word per concept."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.pages import PAGES, REFERENCE, name_of, prose_of

GLOSSARY = REFERENCE / "glossary.md"
_TERM = re.compile(r"^\*\*(.+?)\*\*", re.MULTILINE)
_REJECTED = re.compile(r"\*Not:\* ([^.]+)\.")
REQUIRED = {
    *("backend", "cause", "draft", "draft_extend", "fact", "flag", "flip", "mirror", "need"),
    *("phase", "plan", "pool row", "publish", "role", "rule", "stash", "support", "target", "use"),
}


def test_glossary_has_every_word() -> None:
    """Each word of the design has an entry."""
    terms = set(_TERM.findall(GLOSSARY.read_text("utf-8")))

    assert REQUIRED - terms == set()


def test_glossary_is_sorted_and_has_each_word_once() -> None:
    """Each word has one meaning, where a reader looks for it."""
    terms = _TERM.findall(GLOSSARY.read_text("utf-8"))

    assert terms == sorted(set(terms), key=str.lower)


@pytest.mark.parametrize("page", [p for p in PAGES if p != GLOSSARY], ids=name_of)
def test_page_uses_no_second_word(page: Path) -> None:
    """No page says by another word what the glossary has a word for."""
    rejected = [
        word.strip()
        for listed in _REJECTED.findall(GLOSSARY.read_text("utf-8"))
        for word in listed.split(",")
    ]

    used = [word for word in rejected if re.search(rf"\b{re.escape(word)}\b", prose_of(page))]

    assert used == []
