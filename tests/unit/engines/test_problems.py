"""The codes of what can be wrong with an engine's source."""

from __future__ import annotations

import re
from pathlib import Path

from backend_caps.engines import problems


def test_codes_lists_every_code_once_and_sorted() -> None:
    """The table of codes leaves none out."""
    source = Path(problems.__file__).read_text("utf-8")

    written = re.findall(r'\bcode="([a-z-]+)"', source)

    assert list(problems.CODES) == sorted(written)
