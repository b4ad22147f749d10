"""A trace in a terminal."""

from __future__ import annotations

from backend_caps.report.sections import Heading, Lines, Table
from backend_caps.report.trace_documents import TraceDocument
from backend_caps.report.trace_views import trace_view
from tests.unit.report.timelines import details, level

DOCUMENT = TraceDocument(
    schema_="backend-caps/trace@1",
    otherData=details(stand_in="acme in place of fa3"),
    traceEvents=[],
)


def test_view_says_what_ran_and_by_which_clock() -> None:
    """Before the figures stand the plan, the drafts, whose code ran, and the clock."""
    heading, lines, *_ = trace_view(DOCUMENT, ())

    assert heading == Heading("2 decode steps of 4 requests on sim")
    assert isinstance(lines, Lines)
    assert [line.partition(":")[0] for line in lines.lines] == [
        "plan 0123456789abcdef",
        "drafts",
        "code",
        "with it graph_metadata in verify is b, decided was a",
        "with it deterministic is b, decided was a",
        "left out",
        "clock",
    ]


def test_view_has_a_row_for_each_level() -> None:
    """A level's figures are one row, and the plan's own is marked."""
    (table,) = (own for own in trace_view(DOCUMENT, ()) if isinstance(own, Table))

    assert table.rows == (
        ("exact", "500", "85", "150", "72"),
        ("none (this plan)", "500", "85", "150", "72"),
    )


def test_view_says_what_was_left_out_and_what_was_written() -> None:
    """Levels that were not run are named with who needs more, and files with what they are."""
    *_, left_out, files = trace_view(DOCUMENT, ("t.json: open it",))

    assert isinstance(left_out, Lines)
    assert left_out.lines[-1] == "not run with upper_bound: backend 'acme' reads lengths"
    assert files == Lines(("t.json: open it",), "places")


def test_view_of_plain_decode_has_no_drafts() -> None:
    """Where nothing drafts nothing is said of drafts."""
    told = details(level("exact", 1)).model_copy(update={"drafts": None})
    document = DOCUMENT.model_copy(update={"otherData": told})

    _, lines, *_ = trace_view(document, ())

    assert isinstance(lines, Lines)
    assert [line.partition(":")[0] for line in lines.lines] == ["plan 0123456789abcdef", "clock"]
