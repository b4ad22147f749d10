"""The codes of problems."""

from __future__ import annotations

import re
from pathlib import Path

from backend_caps.discovery import problems


def test_codes_lists_every_code_once_and_sorted() -> None:
    """The table that the reference is made from leaves none out."""
    source = Path(problems.__file__).read_text()

    written = re.findall(r'\bcode="([a-z-]+)"', source)

    assert list(problems.CODES) == sorted(written)
