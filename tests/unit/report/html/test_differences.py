"""Two sides of a comparison beside each other."""

from __future__ import annotations

from backend_caps.report.difference import (
    NOWHERE,
    DifferenceDocument,
    DifferenceKind,
    diff_document,
)
from backend_caps.report.html.grid import Glyph, side_by_side
from backend_caps.report.html.page import page
from tests.unit.report.html.pages import diff


def test_sides_stand_beside_each_other_with_their_places() -> None:
    """A row has what it was, what it is, and where both say so."""
    row = side_by_side(diff()).rows[0]

    told = [(cell.text, cell.note) for cell in (row.head, *row.cells)]
    assert told == [
        ("class FlashAttentionBackend", ""),
        ("host_seq_lens", ""),
        ("stricter", ""),
        ("none", "fa3.py:11"),
        ("inherited from BaseAttnBackend, counts as exact", "base.py:7"),
    ]


def test_row_opens_both_sides_in_full() -> None:
    """What a cell cuts off is there where the row is opened."""
    words = "word " * 100
    found = DifferenceDocument(
        kind=DifferenceKind.APPEARED,
        subject="rule ngram",
        field="",
        before=None,
        after=words,
        where=NOWHERE,
    )
    row = side_by_side(diff_document("a", "b", [found])).rows[0]

    assert row.cells[-1].text.endswith("word …")
    assert row.head.detail == (
        ("appeared", "was not there"),
        ("before", "not there"),
        ("after", words),
    )


def test_legend_counts_the_differences_of_each_kind() -> None:
    """As many as there are of each kind stand in the legend, those that matter most first."""
    assert side_by_side(diff()).legend[:2] == ((Glyph.STRICTER, 4), (Glyph.BECAME_CONDITIONAL, 1))


def test_page_of_no_differences_says_so() -> None:
    """Where both sides are the same the page says which they are."""
    text = page(diff_document("a", "b", ()), ())

    assert "Nothing differs between a and b." in text
