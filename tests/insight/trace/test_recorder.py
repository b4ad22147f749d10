"""The clock of a recording: what begins when, by hand."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from backend_caps.insight.recorder import Recorder
from backend_caps.report.trace_documents import CostsDocument
from backend_caps.report.trace_timeline import Lane, Signal
from backend_caps.simulator import register, simulate
from backend_caps.simulator import streams as sim
from backend_caps.simulator.streams import CUDAGraph, Stream, graph

COSTS = CostsDocument(
    python_call_ns=1,
    launch_ns=10,
    replay_ns=30,
    event_ns=2,
    op_ns=100,
    product_ns=1000,
    copy_ns=50,
    bytes_per_ns=2,
)
FORWARD, OTHER = Stream(handle=3), Stream(handle=4)


@contextmanager
def recording() -> Iterator[tuple[Recorder, torch.Tensor]]:
    """Record what is done to a tensor of four numbers."""
    register()
    with simulate() as simulation:
        numbers = torch.zeros(4, device="sim")
        sim.synchronize()
        recorder = Recorder({3: "forward", 4: "copy"}, COSTS)
        simulation.watcher = recorder
        yield recorder, numbers


def _times(recorder: Recorder) -> list[tuple[str, int, int, str]]:
    return [(own.lane, own.begin_ns, own.end_ns, own.held_by) for own in recorder.ran]


def test_operator_begins_when_it_is_launched() -> None:
    """An idle stream begins an operator as soon as the host has launched it."""
    with recording() as (recorder, numbers), sim.stream(FORWARD):
        numbers.add_(1)

        assert _times(recorder) == [("forward", 10, 110, Lane.HOST)]


def test_operator_begins_when_its_stream_is_ready() -> None:
    """The host launches ahead, and a stream runs one operator after the other."""
    with recording() as (recorder, numbers), sim.stream(FORWARD):
        numbers.add_(1)
        numbers.add_(1)

        assert _times(recorder)[1] == ("forward", 110, 210, "forward")
        assert recorder.now_ns == 20


def test_operator_begins_when_an_event_is_there() -> None:
    """A stream that waits begins behind what was recorded, and the host goes on."""
    with recording() as (recorder, numbers):
        with sim.stream(FORWARD):
            numbers.add_(1)
        OTHER.wait_stream(FORWARD)
        with sim.stream(OTHER):
            numbers.add_(1)

        assert _times(recorder)[1] == ("copy", 110, 210, "forward")
        assert recorder.now_ns == 24


def test_host_waits_until_a_stream_is_ready() -> None:
    """A synchronize takes the host's clock to the end of the stream's work."""
    with recording() as (recorder, numbers):
        with sim.stream(OTHER):
            numbers.add_(1)
        OTHER.synchronize()

        (wait,) = recorder.host_spans
        assert (wait.name, wait.begin_ns, wait.end_ns) == ("wait for lengths", 10, 110)


def test_host_waits_for_no_more_than_an_event() -> None:
    """Who waits for an event does not wait for what came behind it."""
    with recording() as (recorder, numbers), sim.stream(FORWARD):
        numbers.add_(1)
        event = FORWARD.record_event()
        numbers.add_(1)
        event.synchronize()

        assert recorder.now_ns == 110


def test_host_waits_for_the_whole_device() -> None:
    """A synchronize of the device takes the host to the end of the last stream's work."""
    with recording() as (recorder, numbers):
        with sim.stream(FORWARD):
            numbers.add_(1)
        sim.synchronize()

        assert recorder.now_ns == 110
        assert recorder.host_spans[0].for_lane is None


def test_number_that_is_read_is_a_hidden_wait() -> None:
    """A wait that no synchronize shows is named by its operator."""
    with recording() as (recorder, numbers), sim.stream(FORWARD):
        numbers[0].item()

        assert recorder.host_spans[0].name == "hidden wait aten::_local_scalar_dense"


def test_graph_costs_the_host_one_launch() -> None:
    """A replay's operators are launched together, and named by the line that was captured."""
    with recording() as (recorder, numbers):
        captured = CUDAGraph()
        with graph(captured, stream=FORWARD):
            numbers.add_(1)
            numbers.add_(1)
        before = recorder.now_ns
        with sim.stream(FORWARD):
            captured.replay()

        assert recorder.now_ns - before == COSTS.replay_ns
        assert [own.replayed for own in recorder.ran] == [True, True]
        assert {str(own.site).partition(":")[0] for own in recorder.ran} == {"test_recorder.py"}


def test_bytes_that_cross_take_their_time() -> None:
    """A copy takes a fixed time, and one for its bytes."""
    with recording() as (recorder, numbers), sim.stream(FORWARD):
        pinned = torch.empty(4, pin_memory=True)
        pinned.copy_(numbers, non_blocking=True)

        (ran,) = recorder.ran
        assert (ran.end_ns - ran.begin_ns, ran.num_bytes) == (50 + 16 // 2, 16)


def test_wait_for_an_earlier_recording_is_none() -> None:
    """An event of before the recording holds nothing, and no arrow leads from it."""
    register()
    with simulate() as simulation:
        event = FORWARD.record_event()
        simulation.watcher = recorder = Recorder({}, COSTS)
        OTHER.wait_event(event)
        with sim.stream(OTHER):
            torch.zeros(1, device="sim")

        assert (recorder.arrows, recorder.lanes) == ([], ("stream 4",))


def test_wait_is_one_arrow() -> None:
    """Only the next operator goes on from a wait; what comes behind it does not wait again."""
    with recording() as (recorder, numbers):
        with sim.stream(FORWARD):
            numbers.add_(1)
        OTHER.wait_stream(FORWARD)
        with sim.stream(OTHER):
            numbers.add_(1)
            numbers.add_(1)

        assert len(recorder.arrows) == 1


def test_wait_that_nobody_knows_is_another() -> None:
    """An arrow whose ends are in no region of the runtime says nothing but that it is there."""
    with recording() as (recorder, numbers):
        FORWARD.wait_stream(OTHER)
        with sim.stream(FORWARD):
            numbers.add_(1)

        assert [own.signal for own in recorder.arrows] == [Signal.OTHER]


def test_calls_and_regions_are_spans_of_the_host() -> None:
    """A region is as long as the calls in it, and knows how deep it lies."""
    recorder = Recorder({}, COSTS)
    recorder.enter("launch")
    recorder.enter("forward")
    recorder.called()
    recorder.leave()
    recorder.leave()

    spans = [(own.name, own.length_ns, own.depth) for own in recorder.host_spans]
    assert spans == [("forward", 1, 1), ("launch", 1, 0)]
