"""The Chromium of this machine, Debian's or another's; none is downloaded."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from shutil import which

import pytest
from playwright.sync_api import Browser, sync_playwright

MISSING = "there is no Chromium on the path; `make browser` installs it"
_NAMES = ("chromium", "chromium-browser", "google-chrome")
_ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


def executable() -> str | None:
    """Find it on the path."""
    return next(filter(None, map(which, _NAMES)), None)


@contextmanager
def started(found: str) -> Iterator[Browser]:
    """Start it, without a window."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=_ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """Start it for the tests of a module, where there is one.

    It ends with them: playwright's event loop runs for as long, and a process has room for one.
    """
    found = executable()
    if found is None:
        pytest.skip(MISSING)
    with started(found) as browser:
        yield browser
