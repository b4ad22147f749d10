"""What holds for every test, and for every process that one starts.

Tests run one per core, in processes of their own. Were each of them to take a thread per core for
its matrices too, as torch does unasked, the threads would wait for one another, spinning: the
same tests were seen to take five times as long on two cores. So each process computes on one.
"""

import os
import sys
from collections.abc import Generator
from pathlib import Path

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Trace no test of a plugin: what it runs of `backend_caps`, tests of its own run too."""
    plugins = Path(__file__).parent / "plugins"
    for item in items:
        if item.path.is_relative_to(plugins):
            item.add_marker("no_cover")


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None]:
    """Trace nothing where `no_cover` says so.

    In processes of pytest-xdist two coverages run, one on top of the other, and pytest-cov 7.1
    stops the upper one alone. Inside of what it does, the trace is taken away whole.
    """
    if item.get_closest_marker("no_cover") is None:
        return (yield)
    trace = sys.gettrace()
    sys.settrace(None)
    try:
        return (yield)
    finally:
        sys.settrace(trace)
