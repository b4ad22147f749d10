"""One Chromium for a module, and pages that are opened from disk."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page

from tests.browser.chromium import chromium
from tests.cases import Golden, golden_in

__all__ = ["Golden", "chromium"]

Show = Callable[[str], Page]


@dataclass(frozen=True)
class Window:
    """A page, and what it has said, asked or fetched of its own."""

    page: Page
    said: list[str]


@pytest.fixture(scope="module")
def window(chromium: Browser) -> Window:
    """Open a window for a module's tests, for each costs half a second."""
    page, said = chromium.new_page(), list[str]()
    page.set_default_timeout(30_000)
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("dialog", lambda dialog: said.append(dialog.message))
    page.on("request", lambda request: said.append(request.url))
    return Window(page, said)


@pytest.fixture
def show(window: Window, tmp_path: Path) -> Iterator[Show]:
    """Open a page from disk, as on a small screen in light; it has to keep silent."""

    def open_(text: str) -> Page:
        file = tmp_path / "page.html"
        file.write_text(text, "utf-8")
        window.page.set_viewport_size({"width": 1280, "height": 900})
        window.page.emulate_media(media="null", color_scheme="light")
        window.page.goto(file.as_uri())
        window.said.remove(file.as_uri())
        return window.page

    window.said.clear()
    yield open_
    assert window.said == []


@pytest.fixture
def golden() -> Golden:
    """Compare a text with the whole of a file."""
    return golden_in(Path(__file__).parent / "golden")
