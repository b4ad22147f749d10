"""The pictures on the pages are what the program draws."""

from __future__ import annotations

from docs.tools import pictures
from docs.tools.schemas import RENEW


def test_pictures_are_not_stale() -> None:
    """Each committed picture is drawn again to the last byte."""
    stale = pictures.stale()

    assert stale == [], f"renew them by {RENEW}"
