"""Class statements as the text of files has them."""

from __future__ import annotations

from time import process_time

import pytest

from backend_caps.engines.source.heads import Heads
from tests.unit.engines.tables import table

SIZE = 200_000


@table("source_heads", "heads_are_the_class_statements_of_a_text")
def test_heads_are_the_class_statements_of_a_text(
    text: str, found: list[tuple[str, list[str]]]
) -> None:
    """A statement begins its line; its bases are the last words between its brackets."""
    heads = Heads({"m.py": text.encode()}).by_file.get("m.py", [])

    assert [(head.name, sorted(head.bases)) for head in heads] == found


@pytest.mark.no_cover
@pytest.mark.parametrize(
    "row", ["class X[", "class X(", "class X(\n", "class X[a](#\n", "class X((\n", " ", "class "]
)
def test_no_text_makes_heads_slow(row: str) -> None:
    """What looks like many class statements without an end is read once, not once each."""
    text = (row * (SIZE // len(row))).encode()
    start = process_time()

    Heads({"m.py": text}).names_below({"X"})

    assert process_time() - start < 5  # read once: 0.2 s; once each: over 10 s
