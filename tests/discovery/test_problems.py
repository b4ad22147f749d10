"""The codes of problems."""

from __future__ import annotations

from backend_caps.discovery import problems


def test_codes_are_sorted() -> None:
    """The reference lists them in the order of the table."""
    assert list(problems.texts()) == sorted(problems.texts())
