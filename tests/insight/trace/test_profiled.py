"""A profiler's export is read as the run that it is of."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from backend_caps.insight import trace
from backend_caps.insight.errors import InsightError
from backend_caps.insight.profiler_export import MARK, timeline_from
from backend_caps.insight.run_sizes import ServerSizes
from backend_caps.insight.stand_ins import RunPlan
from backend_caps.insight.trace import Recording, check_recordable, record_profiled
from backend_caps.report.trace_timeline import Arrow, Lane, Span, Timeline
from tests.insight.trace.conftest import CHAIN, planned
from tests.insight.trace.kineto_shaped import Profiler

EXACT = planned(CHAIN.replace(" --disable-piecewise-cuda-graph", ""))
"""Under SGLang's rules pieces keep a mirror."""
Both = tuple[Timeline, Timeline]


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Both:
    """Two steps with a mirror, as the simulator's clock has them and as an export tells them."""
    profilers: list[Profiler] = []

    def keep(lanes: dict[int, str]) -> Profiler:
        profilers.append(Profiler(lanes))
        return profilers[-1]

    recording = Recording(run=RunPlan(plan=EXACT), server=ServerSizes(), device="sim", num_steps=2)
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
    """What a graph's launch ran is told from what was launched by itself."""
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
    """An operator whose launch nobody told, and a wait for an unknown event, are not shown."""
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
