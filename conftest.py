"""What holds for every test, and for every process that one starts.

Tests run one per core, in processes of their own. Were each of them to take a thread per core for
its matrices too, as torch does by default, the threads would wait for one another, spinning: the
same tests were seen to take five times as long on two cores. So each process computes on one.
Variables for terminals and for this package that are set outside of the tests are removed.
"""

import os
import signal
import sys
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
# No deadline: one case of many may meet a machine that is busy.
settings.register_profile("brief", settings(), deadline=None, max_examples=20)
settings.register_profile("thorough", settings(), deadline=None)
settings.load_profile("brief")  # `make test-all` loads the other
# What is started in the background ignores Ctrl-C, its children too; some tests send it to theirs.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish() -> None:
    """Refuse modules that register the simulated device: torch pins for one device a process.

    Raises:
        pytest.UsageError: the device is registered before any test runs.
    """
    device = sys.modules.get("backend_caps.simulator.device")
    if device is not None and device.register.cache_info().currsize:
        raise pytest.UsageError(
            "a test module registers the device 'sim' when it is imported, and no test on CUDA "
            "could pin memory behind it: register it in a fixture or in the test"
        )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Fail a test that needs a GPU and that `make gpu` does not select by `-k cuda`."""
    report = yield
    names = f"{item.path.name} {item.name}".lower()
    if report.skipped and "no CUDA device" in str(report.longrepr) and "cuda" not in names:
        report.outcome = "failed"
        report.longrepr = f"{item.nodeid} needs CUDA, and has no 'cuda' in its name"
    return report
