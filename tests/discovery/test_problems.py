"""The codes of problems."""

from __future__ import annotations

from types import ModuleType

import pytest

from backend_caps.capability.provenance import problem_texts
from backend_caps.discovery import scan
from backend_caps.engines import reading
from backend_caps.resolution import errors


@pytest.mark.parametrize("module", [reading, errors, scan], ids=lambda own: own.__name__)
def test_codes_are_sorted(module: ModuleType) -> None:
    """The reference lists them in the order of the table."""
    assert module.__file__ is not None
    codes = [*problem_texts(module.__file__)]

    assert codes == sorted(codes)
