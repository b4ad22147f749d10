"""A trace's page: the picture is in it, and its style is known to the page's policy."""

from __future__ import annotations

import re
from base64 import b64encode
from hashlib import sha256
from html import unescape

import pytest

from backend_caps.report import terminal
from backend_caps.report.html.page import page
from backend_caps.report.sections import Lines, Picture, markdown
from backend_caps.report.trace_views import picture_of
from tests.unit.report.timelines import EXACT, NONE, details, document

DOCUMENT = document(details())


@pytest.fixture(scope="module")
def picture() -> Picture:
    """Both levels."""
    return picture_of(details(), [EXACT, NONE])


def test_page_holds_the_picture(picture: Picture) -> None:
    """The picture stands in the page as a whole, in the letters of the page."""
    written = picture.svg.encode("ascii", "xmlcharrefreplace").decode("ascii")

    assert written in page(DOCUMENT, [picture])


def test_policy_lets_every_style_of_the_page_through(picture: Picture) -> None:
    """Both style elements are named by their digests, and nothing is styled in an attribute."""
    text = page(DOCUMENT, [picture])

    styles = re.findall(r"<style>(.*?)</style>", text, re.DOTALL)
    digests = [b64encode(sha256(own.encode()).digest()).decode() for own in styles]
    allowed = " ".join(f"'sha256-{own}'" for own in digests)
    assert len(styles) == 2
    assert f"style-src {allowed};" in unescape(text)
    assert " style=" not in text


def test_picture_styles_nothing_outside_of_itself(picture: Picture) -> None:
    """Each rule of its style begins with its own class: the page's parts are not touched."""
    rules = re.findall(r"(?:^|[{}])\s*([^{}@]+?)\s*\{", picture.style)

    selectors = [own.strip() for rule in rules for own in rule.split(",")]
    assert selectors
    assert {own for own in selectors if not own.startswith((".trace", "figure > .trace"))} == set()


def test_words_have_no_picture(picture: Picture, capsys: pytest.CaptureFixture[str]) -> None:
    """A terminal and markdown show what is written, and leave the picture out."""
    terminal.show([Lines(("a word",)), picture])

    assert capsys.readouterr().out == "a word\n"
    assert markdown([Lines(("a word",)), picture]) == "- a word\n"
