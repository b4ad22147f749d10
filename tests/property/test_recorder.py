"""Whatever a program launches, orders and waits for, its clock breaks no order."""

from __future__ import annotations

from itertools import pairwise

import torch
from hypothesis import given
from hypothesis import strategies as st

from backend_caps.insight.recorder import Recorder
from backend_caps.report.trace_timeline import TimedOp
from backend_caps.simulator import register, simulate
from backend_caps.simulator import streams as sim
from backend_caps.simulator.streams import Event, Stream

STREAMS = (1, 2, 3)
_stream = st.sampled_from(STREAMS)
ACTS = st.lists(
    st.one_of(
        st.tuples(st.just("launch"), _stream, st.none()),
        st.tuples(st.just("wait"), _stream, _stream),
        st.tuples(st.just("stand"), _stream, st.none()),
    ),
    max_size=24,
)


def _played(acts: list[tuple[str, int, int | None]]) -> tuple[Recorder, list[tuple[int, int]]]:
    """Run a program; return its recorder, and which operator has to end before which begins.

    Orders are kept by hand: an operator's number, and that of one that waits for it.
    """
    register()
    recorder = Recorder({handle: f"lane {handle}" for handle in STREAMS})
    orders: list[tuple[int, int]] = []
    last: dict[int, set[int]] = {handle: set() for handle in STREAMS}
    host: set[int] = set()
    with simulate() as simulation:
        simulation.watcher = recorder
        for act, handle, other in acts:
            if act == "launch":
                number = len(recorder.ran)
                orders += [(before, number) for before in last[handle] | host]
                with sim.stream(Stream(handle=handle)):
                    torch.zeros(1, device="sim")
                last[handle] = {number}
            elif act == "wait" and other is not None:
                event = Event()
                event.record(Stream(handle=other))
                event.wait(Stream(handle=handle))
                last[handle] |= last[other]
            else:
                Stream(handle=handle).synchronize()
                host |= last[handle]
    return recorder, orders


@given(ACTS)
def test_nothing_begins_before_what_it_waits_for(acts: list[tuple[str, int, int | None]]) -> None:
    """What stream order, events and the host's waits put behind another begins behind its end."""
    recorder, orders = _played(acts)

    ran = recorder.ran
    assert all(ran[one].end_ns <= ran[other].begin_ns for one, other in orders)


@given(ACTS)
def test_no_lane_overlaps_itself(acts: list[tuple[str, int, int | None]]) -> None:
    """A stream runs one operator at a time."""
    recorder, _ = _played(acts)

    for lane in recorder.lanes:
        ops = [own for own in recorder.ran if own.lane == lane]
        assert all(one.end_ns <= other.begin_ns for one, other in pairwise(ops))


@given(ACTS)
def test_nothing_waits_for_nobody(acts: list[tuple[str, int, int | None]]) -> None:
    """An operator begins when its launch, its stream's last one, or an arrow into it allows."""
    recorder, _ = _played(acts)

    for place, own in enumerate(recorder.ran):
        assert own.begin_ns in _reasons(recorder, own, place)


def _reasons(recorder: Recorder, own: TimedOp, place: int) -> set[int | None]:
    before = [each.end_ns for each in recorder.ran[:place] if each.lane == own.lane]
    arrows = [arrow.begin_ns for arrow in recorder.arrows if arrow.end_lane == own.lane]
    return {own.launched_ns, *before[-1:], *arrows}


@given(ACTS)
def test_arrows_lead_forward(acts: list[tuple[str, int, int | None]]) -> None:
    """Nothing goes on before what it waited for was there."""
    recorder, _ = _played(acts)

    assert all(arrow.begin_ns <= arrow.end_ns for arrow in recorder.arrows)
