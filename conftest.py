"""What holds for every test, and for every process that one starts.

Tests run one per core, in processes of their own. Were each of them to take a thread per core for
its matrices too, as torch does unasked, the threads would wait for one another, spinning: the
same tests were seen to take five times as long on two cores. So each process computes on one.
What whoever starts the tests has set for terminals, or for this package, is not taken along.
"""

import gc
import os
import signal
import sys
from collections import defaultdict
from collections.abc import Generator
from pathlib import Path

import pytest
from hypothesis import settings

_OF_TERMINALS = ("COLUMNS", "FORCE_COLOR", "LINES", "NO_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE")
for _name in (name for name in tuple(os.environ) if name.startswith("BACKEND_CAPS_")):
    del os.environ[_name]
for _name in _OF_TERMINALS:
    os.environ.pop(_name, None)
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Beside what is made by `make`, so that `make clean` takes what a killed compiler left half done.
os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(Path(__file__).parent / ".cache" / "inductor")
settings.register_profile("unhurried", settings(), deadline=None)
settings.load_profile("unhurried")  # one case of many may meet a machine that is busy
# What is started in the background ignores Ctrl-C, its children too; some tests send it to theirs.
signal.signal(signal.SIGINT, signal.default_int_handler)

_MOST_TRACED = 4
"""Cases of one test that are traced: the others run the same lines, and tracing doubles them."""
_HEAVY = tuple(
    Path(__file__).parent / "tests" / name
    for name in ("kit", "insight", "races", "relay", "runtime", "simulator", "upstream")
)
"""Where tests compute: what they are to cover is measured in parts of a hundred."""
_OTHERS = tuple(
    Path(__file__).parent / name
    for name in (
        "plugins",
        "tests/architecture/test_imports.py",
        "tests/architecture/test_sizes.py",
        "tests/docs",
        "tests/plugins",
        "tests/property",
        "tests/release",
    )
)
"""Where what runs of `backend_caps` is run, line by line, by tests of its own too."""
_WITH_CHILDREN = tuple(
    Path(__file__).parent / "tests" / name
    for name in (
        "cli/test_dry_run.py",
        "cli/test_output.py",
        "cli/test_process.py",
        "kit/test_supervisor.py",
        "discovery",
    )
)
"""Whose processes are traced too, for lines that no test runs in its own."""
_LONG = frozenset(
    {
        "test_decision.py",
        "test_environments.py",
        "test_examples.py",
        "test_new_plugin.py",
        "test_triton_conformance.py",
    }
)
"""Files with tests of ten seconds and more: they come first, lest one process ends alone on one."""


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None]:
    """Look for no garbage while tests are collected, nor ever again in what that has made.

    Torch and ten thousand tests are a million objects that stay. Each capture of a graph looks for
    garbage in everything, as CUDA's does: engines took a tenth to a quarter of their time for it.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None]:
    """Leave out of collections what a file's tests leave: sources of engines, compilers' tables.

    What dies in a circle ends here, beside the tests that made it, and not within another file's.
    """
    yield
    if nextitem is not None and nextitem.path != item.path:
        gc.collect()
        gc.freeze()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Trace as many tests as tell which lines are run, and no more; put long ones first."""
    cases: defaultdict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if _is_run_elsewhere(item):
            item.add_marker("no_cover")
        elif any(map(item.path.is_relative_to, _HEAVY)):
            cases[item.nodeid.partition("[")[0]].append(item)
    items.sort(key=lambda item: item.path.name not in _LONG)
    for same in cases.values():
        same.sort(key=lambda item: item.nodeid)
        traced = {len(same) * place // _MOST_TRACED for place in range(_MOST_TRACED)}
        for place in {*range(len(same))} - traced:
            same[place].add_marker("no_cover")


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None]:
    """Trace no fixture either where no test is traced: it is shared with none that is."""
    return (yield from _traced_as_little(item, no_more=_is_run_elsewhere(item)))


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None]:
    """Trace nothing where `no_cover` says so."""
    no_more = item.get_closest_marker("no_cover") is not None
    return (yield from _traced_as_little(item, no_more=no_more))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Let no test ask for a GPU that `make gpu` would not select: by `-k cuda`."""
    report = yield
    names = f"{item.path.name} {item.name}".lower()
    if report.skipped and "no CUDA device" in str(report.longrepr) and "cuda" not in names:
        report.outcome = "failed"
        report.longrepr = f"{item.nodeid} needs CUDA, and has no 'cuda' in its name"
    return report


def _is_run_elsewhere(item: pytest.Item) -> bool:
    return any(map(item.path.is_relative_to, _OTHERS))


def _traced_as_little(item: pytest.Item, *, no_more: bool) -> Generator[None]:
    """Be the body of a hook that traces no processes but those above; with `no_more`, nothing.

    In processes of pytest-xdist two coverages run, one on top of the other, and pytest-cov 7.1
    stops the upper one alone. So the trace is taken away whole, inside of what it does.
    """
    with pytest.MonkeyPatch.context() as patch:
        if no_more or not any(map(item.path.is_relative_to, _WITH_CHILDREN)):
            patch.delenv("COVERAGE_PROCESS_CONFIG", raising=False)
        if not no_more:
            return (yield)
        trace = sys.gettrace()
        sys.settrace(None)
        try:
            return (yield)
        finally:
            sys.settrace(trace)
