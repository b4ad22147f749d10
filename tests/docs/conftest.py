"""The browser that the site is opened in."""

from tests.browser.chromium import chromium

__all__ = ["chromium"]
