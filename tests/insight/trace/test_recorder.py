"""The clock of a recording: when operators begin, by hand and from a profile."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from backend_caps.insight import trace
from backend_caps.insight.errors import InsightError
from backend_caps.insight.profiler_export import MARK, timeline_from
from backend_caps.insight.recorder import Recorder
from backend_caps.insight.run_sizes import ServerSizes
from backend_caps.insight.stand_ins import RunPlan
from backend_caps.insight.trace import Recording, check_recordable, record_profiled
from backend_caps.report.trace_documents import CostsDocument
from backend_caps.report.trace_timeline import Arrow, Lane, Signal, Span, Timeline
from backend_caps.simulator import register, simulate
from backend_caps.simulator import streams as sim
from backend_caps.simulator.streams import CUDAGraph, Stream, graph
from tests.insight.trace.conftest import CHAIN, planned
from tests.insight.trace.kineto_shaped import Profiler

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
        torch.empty(4, pin_memory=True).copy_(numbers, non_blocking=True)

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


EXACT = CHAIN.replace(" --disable-piecewise-cuda-graph", "")
"""Under SGLang's rules pieces keep a mirror."""
Both = tuple[Timeline, Timeline]


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Both:
    """Two steps with a mirror, as the simulator's clock has them and as an export tells them."""
    profilers: list[Profiler] = []

    def keep(lanes: dict[int, str]) -> Profiler:
        profilers.append(Profiler(lanes))
        return profilers[-1]

    run = RunPlan(plan=planned(EXACT))
    recording = Recording(run=run, server=ServerSizes(), device="sim", num_steps=2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trace, "Recorder", keep)
        own = trace.record_simulated(recording)
    file = tmp_path_factory.mktemp("export") / "export.json"
    profilers[0].write(file)
    return own, timeline_from(file, level=own.level, num_steps=2)


def _told(span: Span) -> tuple[str, str, str | None, int]:
    return span.lane, span.name, span.for_lane, span.length_ns


def _lengths(arrows: tuple[Arrow, ...]) -> list[tuple[str, str, str, int]]:
    return sorted(
        (own.signal.value, own.begin_lane, own.end_lane, own.end_ns - own.begin_ns)
        for own in arrows
    )


def test_streams_get_the_names_of_what_they_run(both: Both) -> None:
    """An export has numbers for streams; what is launched on them says which they are."""
    own, told = both

    assert {*told.lanes} == {*own.lanes} == {Lane.HOST, "schedule", "forward", "copy", "host_copy"}


def test_blocks_are_those_of_the_run(both: Both) -> None:
    """Each stream's blocks of a step have the run's regions and lengths."""
    own, told = both

    of_run = [_told(span) for span in own.spans if span.lane != Lane.HOST and span.step in (1, 2)]
    read = [_told(span) for span in told.spans if span.lane != Lane.HOST and span.step in (1, 2)]
    assert sorted(read, key=str) == sorted(of_run, key=str) != []


@pytest.mark.slow
def test_host_spans_and_waits_are_those_of_the_run(both: Both) -> None:
    """What the host does, and how long it waits for whom, is read as it was."""
    own, told = both

    assert [_told(span) for span in told.on(Lane.HOST)] == [
        _told(span) for span in own.on(Lane.HOST)
    ]


def test_arrows_gaps_and_bytes_are_those_of_the_run(both: Both) -> None:
    """What was recorded leads to what went on, and idle stretches end by the same lanes."""
    own, told = both

    gaps, of_run = (
        sorted((gap.lane, gap.length_ns, gap.waits_for) for gap in each.gaps) for each in both
    )
    assert _lengths(told.arrows) == _lengths(own.arrows) != []
    assert gaps == of_run
    assert told.bytes_of_lengths == own.bytes_of_lengths > 0
    assert told.step_ns == own.step_ns


def test_replayed_operators_are_known(both: Both) -> None:
    """What a graph's launch ran is distinguished from what was launched by itself."""
    _, told = both

    (verify,) = [own for own in told.on("forward") if (own.name, own.step) == ("verify", 1)]
    assert any(op.replayed for op in verify.ops)


def test_torch_writes_what_is_read() -> None:
    """An export of torch's own, of a run on the CPU, has the host's regions and no stream."""
    recording = Recording(
        run=RunPlan(plan=planned(CHAIN)), server=ServerSizes(), device="cpu", num_steps=1
    )
    told = record_profiled(recording)

    names = [span.name for span in told.on(Lane.HOST)]
    assert told.lanes == (Lane.HOST,)
    assert {"step 1", "build batch", "launch", "draft", "verify", "publish"} <= {*names}
    assert {span.depth for span in told.on(Lane.HOST) if span.name == "step 1"} == {0}


def test_what_is_not_known_is_left_out(tmp_path: Path) -> None:
    """An operator whose launch was not reported, and a wait for an unknown event, are not shown."""
    mark = {"ph": "X", "cat": "user_annotation", "name": f"{MARK}step 1", "ts": 0, "dur": 9}
    call = {"ph": "X", "cat": "cuda_runtime", "name": "cudaStreamWaitEvent", "ts": 1, "dur": 1}
    sync = {"ph": "X", "cat": "cuda_sync", "name": "Stream Wait Event", "ts": 2, "dur": 1}
    kernel = {"ph": "X", "cat": "kernel", "name": "orphan", "ts": 3, "dur": 1}
    wait = {"ph": "X", "cat": "cuda_runtime", "name": "cudaDeviceSynchronize", "ts": 4, "dur": 1}
    idle = {"correlation": 1, "stream": 7, "wait_on_stream": 8}
    events = [
        mark,
        {**call, "args": {"correlation": 1}},
        {**sync, "args": {"correlation": 1, "stream": 7, "wait_on_stream": -1}},
        {**call, "name": "cudaEventRecord", "args": {"correlation": 3}},
        {**sync, "args": {**idle, "wait_on_cuda_event_record_corr_id": 3}},
        {**kernel, "args": {"correlation": 99, "stream": 7}},
        {**wait, "args": {"correlation": 2}},
    ]
    (tmp_path / "export.json").write_text(json.dumps({"traceEvents": events}))

    told = timeline_from(tmp_path / "export.json", level="none", num_steps=1)

    assert (told.lanes, told.arrows) == ((Lane.HOST,), ())
    assert [(own.name, own.for_lane) for own in told.on(Lane.HOST)] == [
        ("step 1", None),
        ("cudaDeviceSynchronize", None),
    ]


@pytest.mark.parametrize(
    ("device", "why"),
    [
        pytest.param("cpu", "it has no streams", id="no streams"),
        pytest.param("xpu", "its records are not read here", id="not read"),
    ],
)
def test_device_without_a_timeline_is_refused(device: str, why: str) -> None:
    """Where nothing overlaps, or nobody reads what does, there is no timeline."""
    with pytest.raises(InsightError, match=why):
        check_recordable(device)
