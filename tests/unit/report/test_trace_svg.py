"""A trace as a picture: it is well formed, says what it shows, and nothing runs out of it."""

from __future__ import annotations

import re
from xml.etree.ElementTree import Element, fromstring

import pytest

from backend_caps.report.trace_documents import TraceDetails
from backend_caps.report.trace_timeline import Timeline
from backend_caps.report.trace_views import picture_of, sentences_of
from tests.unit.report.conftest import Golden
from tests.unit.report.timelines import EXACT, NONE, details, level

SVG = "{http://www.w3.org/2000/svg}"


def _drawn(told: TraceDetails | None = None) -> Element:
    return fromstring(picture_of(told or details(), [EXACT, NONE]).svg)  # noqa: S314 - of our own making


def _texts(drawn: Element) -> list[str]:
    return ["".join(own.itertext()) for own in drawn.iter(f"{SVG}text")]


_ONE = details(level("none", 1)).model_copy(update={"drafts": None})


@pytest.mark.parametrize(
    ("name", "told", "timelines"),
    [("trace.svg", details(), [EXACT, NONE]), ("trace-of-one-level.svg", _ONE, [NONE])],
    ids=["both", "one"],
)
def test_picture_is_known_to_the_last_letter(
    name: str, told: TraceDetails, timelines: list[Timeline], golden: Golden
) -> None:
    """Title, lanes, blocks, waits, idle stretches, arrows, marks, legend and caption."""
    golden(name, picture_of(told, timelines).svg)


def test_long_sentence_is_folded() -> None:
    """A sentence that is wider than the picture goes on in the next line, word by word."""
    reason = " ".join(f"word{number}" for number in range(60))

    texts = _texts(_drawn(details(stand_in=reason)))

    lines = texts[texts.index(next(own for own in texts if own.startswith("Code"))) :]
    assert " ".join(lines) == f"Code that ran: {reason}."
    assert max(map(len, lines)) <= 188


def test_hostile_words_are_text() -> None:
    """A backend's name is shown, and never becomes part of the picture."""
    name = "<script>alert(1)</script>\x1b\u202e & 'co'"

    text = picture_of(details(stand_in=name), [EXACT, NONE]).svg

    assert "<script" not in text
    assert "\x1b" not in text
    assert any("<script>alert(1)</script>\\x1b\\u202e" in own for own in _texts(fromstring(text)))  # noqa: S314 - as above


def test_picture_fetches_nothing() -> None:
    """The file needs no other: its only addresses are names of its own parts."""
    text = picture_of(details(), [EXACT, NONE]).svg

    assert re.findall(r"url\((?!#)", text) == []
    assert re.findall(r"https?://\S+", text) == ['http://www.w3.org/2000/svg"']


def test_caption_says_what_a_bound_comes_to() -> None:
    """Each level has a sentence of its own, that too which the pictures here do not show."""
    _, of_level, *_ = sentences_of(details(level("upper_bound", 1)))

    assert of_level.startswith("upper_bound: the host counts a bound")


def test_caption_claims_nothing_of_lengths_that_are_not_relayed() -> None:
    """Where no lengths are relayed a level is said to do nothing, and no barrier is told of."""
    told = details(level("exact", 1)).model_copy(update={"relays_lengths": False, "left_out": []})

    _, sentence = sentences_of(told, has_barrier=False)

    assert sentence.startswith("exact: no lengths are relayed from step to step")
