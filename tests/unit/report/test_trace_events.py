"""A timeline as events that Perfetto opens, as a picture, and as a table."""

from __future__ import annotations

import re
from itertools import groupby
from xml.etree.ElementTree import Element, fromstring

import pytest

from backend_caps.report.sections import markdown
from backend_caps.report.trace_documents import (
    FlowDocument,
    NameDocument,
    SliceDocument,
    TraceDetails,
    TraceDocument,
    events_of,
)
from backend_caps.report.trace_timeline import Timeline
from backend_caps.report.trace_views import picture_of, sentences_of, trace_view
from tests.unit.report.conftest import Golden
from tests.unit.report.timelines import EXACT, NONE, details, document, level

EVENTS = events_of([EXACT, NONE])
SLICES = [event for event in EVENTS if isinstance(event, SliceDocument)]
FLOWS = [event for event in EVENTS if isinstance(event, FlowDocument)]


def _slice(name: str) -> SliceDocument:
    return next(event for event in SLICES if event.name == name)


def test_levels_are_processes_and_lanes_are_threads() -> None:
    """Each level has a process by its name, each lane a thread, and no two the same number."""
    names = [event for event in EVENTS if isinstance(event, NameDocument)]

    threads = [event.tid for event in names if event.name == "thread_name"]
    processes = [event.args["name"] for event in names if event.name == "process_name"]
    assert processes == ["host_seq_lens exact", "host_seq_lens none"]
    assert len(threads) == len({*threads}) == len(EXACT.lanes) + len(NONE.lanes)


def test_no_time_is_below_zero() -> None:
    """What reaches into the steps from before them is there as a whole."""
    assert min(event.ts for event in SLICES) == 0.0


def test_steps_of_all_levels_begin_together() -> None:
    """Both levels' first steps begin at the same time, so that they can be compared."""
    firsts = [event.ts for event in SLICES if event.name == "step 1"]

    assert len({*firsts}) == 1


def test_slices_of_a_thread_lie_in_one_another_or_apart() -> None:
    """A slice ends before the one that holds it does, as the format demands."""
    for _, group in groupby(SLICES, key=lambda event: (event.pid, event.tid)):
        held: list[float] = []
        for event in group:
            while held and held[-1] <= event.ts:
                held.pop()
            end = round(event.ts + event.dur, 3)
            assert not held or end <= held[-1]
            held.append(end)


def test_block_holds_its_operators() -> None:
    """An operator is a child of its block, with the line that launched it."""
    verify = _slice("verify")
    child = SLICES[SLICES.index(verify) + 1]

    assert (child.cat, child.args.site) == ("operator", "acme/model.py:3")
    assert (verify.args.busy_us, verify.args.step) == (150.0, 0)


def test_bytes_are_reported_where_they_cross() -> None:
    """A copy says how much it moves, and what moves nothing does not."""
    assert {event.args.num_bytes for event in SLICES if event.cat == "operator"} == {None, 72}


def test_waits_and_gaps_name_whom_they_wait_for() -> None:
    """The host's wait names a stream, and an idle stretch who let the stream go on."""
    wait, idle = _slice("wait for lengths"), _slice("idle: waits for schedule")

    assert (wait.cat, wait.args.waits_for) == ("host wait", "copy")
    assert (idle.cat, idle.args.waits_for) == ("idle", "schedule")


def test_each_end_of_an_arrow_lies_in_a_slice() -> None:
    """A flow is bound to the slice that runs at its time, or the next; without one it is lost."""
    for flow in FLOWS:
        own = [event for event in SLICES if event.tid == flow.tid]
        within = any(event.ts <= flow.ts < event.ts + event.dur for event in own)

        assert within if flow.bp == "e" else any(event.ts >= flow.ts for event in own)


def test_arrows_are_pairs_and_none_that_leads_nowhere_is_written() -> None:
    """Both ends of an arrow have its number; one that ends in no slice is left out."""
    begins = {flow.id: flow.name for flow in FLOWS if flow.ph == "s"}
    ends = {flow.id: flow.name for flow in FLOWS if flow.ph == "f"}

    assert begins == ends
    assert [*begins.values()] == ["lengths", "lengths to the host", "gather", "WAR barrier"]


def test_document_is_read_back() -> None:
    """What is written can be read, and is the same."""
    written = document(details(), EVENTS)

    assert TraceDocument.model_validate_json(written.model_dump_json()) == written


@pytest.mark.parametrize("timeline", [EXACT, NONE])
def test_idle_time_is_counted_within_the_steps(timeline: Timeline) -> None:
    """Idle time outside of the steps is nobody's."""
    expected = {"exact": 216_000 + 5_000 + 85_000, "none": 0}

    assert timeline.idle_ns("forward") == expected[timeline.level]


def test_waits_are_summed_up_by_stream() -> None:
    """The host's waits for a stream are summed up, and a step's length is a mean."""
    assert (EXACT.waited_ns("copy"), EXACT.step_ns) == (170_000, 500_000)


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
    """Where no lengths are relayed a level is said to do nothing, and no barrier is reported."""
    told = details(level("exact", 1)).model_copy(update={"relays_lengths": False, "left_out": []})

    _, sentence = sentences_of(told, has_barrier=False)

    assert sentence.startswith("exact: no lengths are relayed from step to step")


_PLAIN = details(level("exact", 1)).model_copy(update={"drafts": None})


@pytest.mark.parametrize(
    ("name", "told", "files"),
    [
        ("trace.md", details(stand_in="acme in place of fa3"), ("t.json: open it",)),
        ("trace-of-plain-decode.md", _PLAIN, ()),
    ],
    ids=["with a stand-in", "plain"],
)
def test_trace_view_is_known_to_the_last_letter(
    name: str, told: TraceDetails, files: tuple[str, ...], golden: Golden
) -> None:
    """What ran and by which clock, a row for each level, what was left out, and the files."""
    golden(name, markdown(trace_view(document(told), files)))
