"""The codes of what can be wrong with an engine's source."""

from __future__ import annotations

from backend_caps.discovery.problems import texts
from backend_caps.engines import reading


def test_codes_are_sorted() -> None:
    """The reference lists them in the order of the table."""
    codes = list(texts(reading.__file__))

    assert codes == sorted(codes)
