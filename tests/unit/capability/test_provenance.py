from __future__ import annotations

import pytest

from backend_caps.capability.provenance import BY_HAND, Source


@pytest.mark.parametrize(
    ("source", "text"),
    [
        (BY_HAND, "by hand"),
        (Source(distribution="fa3"), "fa3"),
        (Source(declared_at="fa3.py:3"), "fa3.py:3"),
        (Source(distribution="fa3", version="1.0", declared_at="fa3.py:3"), "fa3 1.0, fa3.py:3"),
    ],
)
def test_source_names_distribution_version_and_line(source: Source, text: str) -> None:
    """A source is written with what is known of it."""
    written = str(source)

    assert written == text
