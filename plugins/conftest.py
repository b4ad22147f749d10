"""What holds for every plugin's tests where they are run together with the others.

One core a process, as in `tests/conftest.py`. Nor are they traced: what a plugin's tests run of
`backend_caps`, tests of its own run too.
"""

import os
from pathlib import Path

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what lies beside this file."""
    here = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here):
            item.add_marker("no_cover")
