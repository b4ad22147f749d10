"""Where a name is set by anything but a statement on `self`."""

from __future__ import annotations

from cProfile import Profile
from pstats import Stats

import pytest

from tests.unit.engines.source.trees import stated_of
from tests.unit.engines.tables import table

CLASS = "class A:\n    x = 1\n"


@table("source_elsewhere", "what_is_set_elsewhere_may_be_true")
def test_what_is_set_elsewhere_may_be_true(text: str, line: int) -> None:
    """A name that anything else sets is open: it may be true."""
    words = stated_of(f"{CLASS}{text}\n")

    assert words == f"x = 1; x = True where it is set elsewhere (engine/m.py:{line})"


@table("source_elsewhere", "what_sets_nothing_of_the_class_is_left_out")
def test_what_sets_nothing_of_the_class_is_left_out(text: str) -> None:
    """Reads, and what is set of others, leave a class as it is."""
    assert stated_of(f"{CLASS}{text}\n") == "x = 1"


def test_what_sets_a_base_elsewhere_counts_below_it() -> None:
    """A class has what the file of its base does to the base."""
    base = "class B:\n    x = 1\nclass C: pass\nB.x = 2\nC.x = 2\n"

    words = stated_of("from .n import B\nclass A(B): pass\n", n=base)

    assert words == "x = 1; x = True where it is set elsewhere (engine/n.py:4)"


def test_each_file_says_once_that_it_sets_a_class() -> None:
    """Of several places that set the same of a class the first is told."""
    words = stated_of(f"{CLASS}a.x = 2\nb.x = 2\nA.x = 2\nA.x = 3\n")

    assert words == (
        "x = 1; x = True where it is set elsewhere (engine/m.py:5); "
        "x = True where it is set elsewhere (engine/m.py:3)"
    )


@pytest.mark.parametrize("row", ["self.x;", "self.x\n        ", "self.x = 1;", "a.x = 1;"])
def test_calls_grow_with_the_text_and_no_faster(row: str) -> None:
    """A text that has the name everywhere is read once: calls grow as the text does."""
    small, large = (_calls_for(row, count) for count in (200, 800))

    assert large / small < 4.4


def _calls_for(row: str, count: int) -> int:
    """Count the calls that read a class of so many rows."""
    text = f"{CLASS}    def __init__(self):\n        {row * count}\n"
    with Profile() as profile:
        words = stated_of(text)
    assert words.startswith("x = 1")
    calls: int = Stats(profile).total_calls  # type: ignore[attr-defined]
    return calls
