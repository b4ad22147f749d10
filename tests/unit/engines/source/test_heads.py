"""Class statements as the text of files has them."""

from __future__ import annotations

from time import process_time

import pytest

from backend_caps.engines.source.heads import Heads

SIZE = 200_000


@pytest.mark.parametrize(
    ("text", "found"),
    [
        pytest.param("class A(B): pass", [("A", {"B"})], id="a base"),
        pytest.param("if a:\n\tclass A[T: int](m.B[int], C): 1", [("A", {"B", "C"})], id="inner"),
        pytest.param(
            "class A(\n  B,  # class C (one)\n  D): pass", [("A", {"B", "D"})], id="lines"
        ),
        pytest.param("class A(f(B), C): pass", [("A", {"f", "B", "C"})], id="a call"),
        pytest.param("class A((\nclass B(C): pass", [("A", set()), ("B", {"C"})], id="not closed"),
        pytest.param("# class A(B)\nx = 'class A(B)'\n", [], id="no statement"),
    ],
)
def test_heads_are_the_class_statements_of_a_text(text: str, found: list[object]) -> None:
    """A statement begins its line; its bases are the last words between its brackets."""
    heads = Heads({"m.py": text.encode()}).by_file.get("m.py", [])

    assert [(head.name, set(head.bases)) for head in heads] == found


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
