"""A trace as a picture: it is well formed, says what it shows, and nothing runs out of it."""

from __future__ import annotations

import re
from xml.etree.ElementTree import Element, fromstring

import pytest

from backend_caps.report.trace_documents import TraceDetails
from backend_caps.report.trace_layout import WIDTH
from backend_caps.report.trace_views import picture_of, sentences_of
from tests.unit.report.timelines import EXACT, NONE, details, level

SVG = "{http://www.w3.org/2000/svg}"


def _drawn(told: TraceDetails | None = None) -> Element:
    return fromstring(picture_of(told or details(), [EXACT, NONE]).svg)  # noqa: S314 - of our own making


def _texts(drawn: Element) -> list[str]:
    return ["".join(own.itertext()) for own in drawn.iter(f"{SVG}text")]


def _boxes(drawn: Element, kind: str) -> list[Element]:
    found = (own for own in drawn.iter(f"{SVG}rect") if own.get("class") == f"box {kind}")
    return [own for own in found if own.find(f"{SVG}title") is not None]


def test_picture_names_and_describes_itself() -> None:
    """A screen reader gets a title, and all sentences of the caption."""
    drawn = _drawn()
    title, described = drawn.findtext(f"{SVG}title"), drawn.findtext(f"{SVG}desc")

    assert (drawn.get("role"), drawn.get("aria-labelledby")) == (
        "img",
        "trace-title trace-description",
    )
    assert title == "Who waits for whom: host_seq_lens exact above none"
    assert described is not None
    assert " ".join(sentences_of(details())) in described


def test_picture_says_which_clock_it_has() -> None:
    """Nobody takes the recording's clock for a measurement."""
    assert "Clock: the recording's." in _texts(_drawn())


def test_own_level_is_marked() -> None:
    """The plan's level is said to be the plan's."""
    texts = _texts(_drawn())

    none = "host_seq_lens none (this plan): no length crosses, and the host launches at once"
    exact = "host_seq_lens exact: lengths cross in each step, and the host waits for them"
    assert {none, exact} <= {*texts}


def test_stream_that_is_not_there_is_said_to_be_missing() -> None:
    """A level without a copy stream has its lane all the same, and says why it is empty."""
    texts = _texts(_drawn())

    assert texts.count("no such stream: no length crosses") == 1
    assert texts.count("no such stream") == 1


def test_host_wait_is_drawn_with_what_it_is_for() -> None:
    """A wait is hatched, named and measured."""
    texts = _texts(_drawn())

    assert len(_boxes(_drawn(), "wait")) == 2
    assert texts[texts.index("lengths") + 1] == "170 µs"


def test_wait_for_the_whole_device_is_hidden() -> None:
    """A wait that is for no stream of the relay says so."""
    told = fromstring(picture_of(details(level("exact", 1)), [EXACT]).svg)  # noqa: S314 - as above

    assert {"wait for lengths, step 1: 30 µs"} <= {
        "".join(own.itertext()) for own in _boxes(told, "wait")
    }


def test_idle_stretches_have_their_length() -> None:
    """Idle stretches that cannot be told apart are drawn as one, with the sum."""
    told = {"".join(own.itertext()) for own in _boxes(_drawn(), "idle")}

    assert told == {
        "the forward stream is idle for 216 µs",
        "the forward stream is idle for 5 µs",
        "the forward stream is idle for 85 µs",
    }
    assert {"216 µs", "85 µs"} <= {*_texts(_drawn())}


def test_arrows_tell_whence_and_where_to() -> None:
    """Each arrow within the steps says what it is; those of other times are left out."""
    lines = (own.findtext(f"{SVG}title") for own in _drawn().iter(f"{SVG}line"))

    told = [text for text in lines if text]
    assert "lengths: forward → copy" in told
    assert "WAR barrier: forward → schedule" in told
    assert not any(text.startswith("other") for text in told)


def test_everything_lies_within_the_picture() -> None:
    """No box reaches over the edge, although what it shows goes on."""
    boxes = [own for own in _drawn().iter(f"{SVG}rect") if "box" in (own.get("class") or "")]

    ends = [float(own.get("x", "0")) + float(own.get("width", "0")) for own in boxes]
    assert max(ends) <= WIDTH - 20


def test_time_at_the_edge_has_no_words() -> None:
    """A time that would run out of the picture is a line alone."""
    texts = _texts(_drawn())

    assert ("0.9 ms" in texts, "1 ms" in texts) == (True, False)


def test_long_sentence_is_folded() -> None:
    """A sentence that is wider than the picture goes on in the next line, word by word."""
    reason = " ".join(f"word{number}" for number in range(60))

    texts = _texts(_drawn(details(stand_in=reason)))

    lines = texts[texts.index(next(own for own in texts if own.startswith("Code"))) :]
    assert " ".join(lines) == f"Code that ran: {reason}."
    assert max(map(len, lines)) <= 188


def test_each_level_says_how_long_its_steps_took() -> None:
    """The whole of a level's steps is among its figures, of the longest level too."""
    figures = [text for text in _texts(_drawn()) if " · of a step: " in text]

    assert [text.partition(" · ")[0] for text in figures] == ["whole 1.00 ms", "whole 0.60 ms"]


def test_barrier_begins_at_a_mark() -> None:
    """The end of the shared reads is marked; where the publish is as early, they are one mark."""
    marks = [own for own in _drawn().iter(f"{SVG}text") if own.get("class") == "mark"]

    assert [own.text for own in marks] == ["P R", "R"]


def test_legend_has_a_key_for_each_kind_of_arrow() -> None:
    """An arrow's colour and strokes are explained as a block's are, and no arrow that is none."""
    keys = {"lengths on their way to the host", "WAR barrier", "waits for"}

    both = {*_texts(_drawn())}
    none = {*_texts(fromstring(picture_of(details(level("none", 1)), [NONE]).svg))}  # noqa: S314 - as above

    assert (keys & both, keys & none) == (keys, {"WAR barrier"})


def test_legend_goes_on_in_the_next_line() -> None:
    """No key begins so far to the right that its words run out of the picture."""
    drawn = {own.text: own for own in _drawn().iter(f"{SVG}text")}

    first, last = drawn["build batch"], drawn["waits for"]
    assert float(last.get("y", "0")) > float(first.get("y", "0"))


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


def test_one_level_is_not_above_another() -> None:
    """A picture of one level is named by it."""
    told = details(level("none", 1)).model_copy(update={"drafts": None})

    drawn = fromstring(picture_of(told, [NONE]).svg)  # noqa: S314 - as above

    assert drawn.findtext(f"{SVG}title") == "Who waits for whom, with host_seq_lens none"


@pytest.mark.parametrize(
    ("own", "words"),
    [
        pytest.param("exact", "exact: the host waits 85 µs of a step until verify", id="exact"),
        pytest.param("upper_bound", "upper_bound: the host counts a bound", id="upper bound"),
        pytest.param("none", "none: no length crosses", id="none"),
    ],
)
def test_caption_says_what_a_level_comes_to(own: str, words: str) -> None:
    """Each level has a sentence of its own."""
    told = details(level(own, 1))  # type: ignore[arg-type] # a word of the scale

    _, of_level, *_ = sentences_of(told)

    assert of_level.startswith(words)


def test_caption_says_first_how_the_picture_is_read() -> None:
    """Whoever sees nothing but the picture is told what the lanes and the levels are."""
    first = next(sentences_of(details()))

    assert first.startswith("host_seq_lens is what the host is told of the lengths of requests.")
    assert "every other lane is a stream of the device" in first


def test_caption_claims_nothing_of_lengths_that_are_not_relayed() -> None:
    """Where no lengths are relayed a level is said to do nothing, and no barrier is told of."""
    told = details(level("exact", 1)).model_copy(update={"relays_lengths": False, "left_out": []})

    _, sentence = sentences_of(told, has_barrier=False)

    assert sentence.startswith("exact: no lengths are relayed from step to step")
