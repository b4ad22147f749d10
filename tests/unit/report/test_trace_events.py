"""A timeline as events that Perfetto opens."""

from __future__ import annotations

from itertools import groupby

import pytest

from backend_caps.report.trace_documents import (
    FlowDocument,
    NameDocument,
    SliceDocument,
    TraceDocument,
    events_of,
)
from backend_caps.report.trace_timeline import Timeline
from tests.unit.report.timelines import EXACT, NONE, details, document

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


def test_bytes_are_told_where_they_cross() -> None:
    """A copy says how much it moves, and what moves nothing does not."""
    bytes_ = {event.args.num_bytes for event in SLICES if event.cat == "operator"}

    assert bytes_ == {None, 72}


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


def test_nothing_is_a_document_too() -> None:
    """No timelines are no events."""
    assert events_of([]) == []


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
