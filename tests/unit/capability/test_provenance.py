from __future__ import annotations

import pytest

from backend_caps.capability.provenance import BY_HAND, Source


@pytest.mark.parametrize(
    ("source", "text"),
    [
        pytest.param(BY_HAND, "by hand", id="nothing known"),
        pytest.param(Source(distribution="fa3-caps"), "fa3-caps", id="a distribution"),
        pytest.param(Source(declared_at="fa3_caps.py:3"), "fa3_caps.py:3", id="a line"),
        pytest.param(
            Source(distribution="fa3-caps", version="1.0", declared_at="fa3_caps.py:3"),
            "fa3-caps 1.0, fa3_caps.py:3",
            id="all of it",
        ),
    ],
)
def test_source_names_distribution_version_and_line(source: Source, text: str) -> None:
    """A source is written with what is known of it."""
    written = str(source)

    assert written == text
