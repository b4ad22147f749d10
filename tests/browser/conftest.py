"""One Chromium for the folder, Debian's or the system's; nothing is downloaded."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from shutil import which

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright
from pydantic import BaseModel

from backend_caps.report.html.page import page as page_of
from backend_caps.report.sections import Sections

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
Golden = Callable[[str, str], None]
Open = Callable[..., Page]


@pytest.fixture(scope="package")
def chromium() -> Iterator[Browser]:
    """Start the browser, where there is one."""
    found = next(filter(None, map(which, _NAMES)), None)
    if found is None:
        pytest.skip("there is no Chromium on the path; `make browser` installs it")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=_ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture
def context(chromium: Browser) -> Iterator[BrowserContext]:
    """Open a window of its own, as wide as a small screen."""
    opened = chromium.new_context(viewport={"width": 1280, "height": 900})
    yield opened
    opened.close()


@pytest.fixture
def show(context: BrowserContext, tmp_path: Path) -> Iterator[Open]:
    """Open a document's page from disk; whatever its console says, or asks, fails the test."""
    said: list[str] = []

    def open_(document: BaseModel, sections: Sections = (), *opened: str) -> Page:
        file = tmp_path / "page.html"
        file.write_text(page_of(document, sections, opened), "utf-8")
        page = context.new_page()
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("dialog", lambda dialog: said.append(dialog.message))
        page.goto(file.as_uri())
        page.on("request", lambda request: said.append(request.url))
        return page

    yield open_
    assert said == []


@pytest.fixture
def golden() -> Golden:
    """Compare a text with the whole of a file; `GOLDEN=write` writes the file and fails."""

    def compare(name: str, text: str) -> None:
        file = Path(__file__).parent / "golden" / name
        if os.environ.get("GOLDEN") == "write":
            file.parent.mkdir(exist_ok=True)
            file.write_bytes(f"{text}\n".encode())
            pytest.fail(f"{name} is written; read it, and run again")
        assert f"{text}\n" == file.read_bytes().decode()

    return compare
