"""What the picture of a trace says is so in the run."""

from __future__ import annotations

import inspect
import sys
from itertools import pairwise
from types import FrameType
from typing import cast

import pytest
import torch
from torch import Tensor

from backend_caps import BackendCapsError, HostSeqLens
from backend_caps.insight import trace
from backend_caps.insight.errors import InsightError
from backend_caps.insight.recorder import REGIONS, RegionObserver, observed_regions, profile
from backend_caps.insight.trace import Recording, Traced
from backend_caps.relay import FutureMap, future_map
from backend_caps.relay.host_lengths import ColumnCopy, HostLengths
from backend_caps.report.trace_timeline import Lane, Signal, Timeline
from tests.insight.trace.conftest import CHAIN, recorded


class Told(RegionObserver):
    """Keeps what it receives."""

    def __init__(self) -> None:
        self.num_calls = 0
        self.events: list[str] = []

    def called(self) -> None:
        """Count a call."""
        self.num_calls += 1

    def enter(self, name: str) -> None:
        """Keep a name."""
        self.events.append(name)

    def leave(self) -> None:
        """Keep an end."""
        self.events.append("end")


@pytest.fixture
def relay() -> FutureMap:
    """A relay whose publish is a region."""
    return FutureMap(pool_size=4, device="cpu", host_seq_lens=HostSeqLens.NONE, speculative=True)


def test_region_is_reported_while_its_function_runs(relay: FutureMap) -> None:
    """A publish is entered and left, and its calls are charged."""
    told = Told()
    with observed_regions(told):
        relay.publish(torch.tensor([1]), torch.tensor([7]))

    assert told.events == ["publish", "end"]
    assert told.num_calls > 1


def test_another_profiler_is_put_back() -> None:
    """Who profiled the thread before does so afterwards."""
    before = sys.getprofile()
    with observed_regions(Told()):
        pass

    assert sys.getprofile() is before


def test_foreign_code_is_not_charged() -> None:
    """A call of a function that is none of relay and runtime is free."""
    told = Told()
    frame = inspect.currentframe()
    assert frame is not None

    profile(told)(frame, "call", None)

    assert (told.num_calls, told.events) == (0, [])


def test_profile_tells_calls_and_returns(relay: FutureMap) -> None:
    """A frame of a region's code is entered by its call, charged, and left by its return."""
    told, frames = Told(), list[FrameType]()

    class Peeking:
        @property
        def shape(self) -> torch.Size:
            frame = inspect.currentframe()
            while frame is not None and frame.f_code not in REGIONS:
                frame = frame.f_back
            assert frame is not None
            frames.append(frame)
            return torch.Size([0])

    relay.publish(torch.empty(0, dtype=torch.int64), cast("torch.Tensor", Peeking()))
    profile(told)(frames[0], "call", None)
    profile(told)(frames[0], "return", None)

    assert (told.num_calls, told.events) == (1, ["publish", "end"])


class StartError(BackendCapsError):
    """A fault with a sentence."""

    def __init__(self, message: str) -> None:
        super().__init__()
        self.said = message

    @property
    def message(self) -> str:
        """The sentence."""
        return self.said


BOTH = pytest.mark.parametrize("level", [HostSeqLens.EXACT, HostSeqLens.NONE])


def test_exact_host_waits_for_the_copy_stream_in_each_step(exact: Timeline) -> None:
    """With an exact mirror the host waits once a step, and stands still."""
    waits = [span for span in exact.on(Lane.HOST) if span.for_lane == "copy"]

    assert [wait.step for wait in waits] == [1, 2]
    assert all(wait.length_ns > 0 for wait in waits)


def test_exact_host_goes_on_when_the_lengths_have_crossed(exact: Timeline) -> None:
    """Each wait for lengths ends with the copy that brings them."""
    copies = [span.end_ns for span in exact.on("copy") if span.step in (1, 2)]

    assert [span.end_ns for span in exact.on(Lane.HOST) if span.for_lane == "copy"] == copies


@pytest.mark.slow
def test_exact_lengths_cross_behind_the_publish(exact: Timeline) -> None:
    """No copy of lengths begins before the publish that it waits for."""
    arrows = [own for own in exact.arrows if own.signal is Signal.LENGTHS]

    assert [arrow.begin_lane for arrow in arrows] == ["forward"] * len(arrows) != []
    assert all(arrow.begin_ns <= arrow.end_ns for arrow in arrows)


def test_exact_forward_is_launched_behind_the_wait(exact: Timeline) -> None:
    """What a step runs on the forward stream is launched after its lengths are there."""
    waits = [span for span in exact.on(Lane.HOST) if span.for_lane == "copy"]
    (wait,) = [own for own in waits if own.step == 2]

    launched = [op.launched_ns for span in exact.on("forward") if span.step == 2 for op in span.ops]

    assert min(launch or 0 for launch in launched) > wait.end_ns


def test_none_host_never_waits_for_lengths(none: Timeline) -> None:
    """Without a mirror the host waits for tokens alone."""
    assert {span.for_lane for span in none.on(Lane.HOST) if span.for_lane} == {"host_copy"}


def test_none_launches_a_step_before_the_one_before_has_published(none: Timeline) -> None:
    """Without a mirror the forward of a step is launched while that of the last one runs."""
    published = next(span for span in none.on("forward") if span.name == "publish")

    launched = [op.launched_ns for s in none.on("forward") if s.step == 1 for op in s.ops]

    assert published.step == 0
    assert min(launch or 0 for launch in launched) < published.begin_ns


@pytest.mark.slow
def test_none_leaves_an_eager_forward_less_idle() -> None:
    """Where no forward is replayed, the stream runs out of work for longer under a mirror."""
    timelines = recorded(f"{CHAIN} --disable-cuda-graph").timelines

    idle = {level: own.idle_ns("forward") for level, own in timelines.items()}

    assert idle[HostSeqLens.NONE] < idle[HostSeqLens.EXACT]


@BOTH
def test_war_barrier_holds_the_schedule_stream(traced: Traced, level: HostSeqLens) -> None:
    """What the scheduler writes next begins behind the forward's last read."""
    barriers = [own for own in traced.timelines[level].arrows if own.signal is Signal.WAR_BARRIER]

    assert {(own.begin_lane, own.end_lane) for own in barriers} == {("forward", "schedule")}


@BOTH
def test_lanes_never_overlap_themselves(traced: Traced, level: HostSeqLens) -> None:
    """A stream runs one operator at a time, in the order in which blocks are listed."""
    timeline = traced.timelines[level]
    for lane in set(timeline.lanes) - {Lane.HOST}:
        ops = [op for span in timeline.on(lane) for op in span.ops]

        assert all(one.end_ns <= other.begin_ns for one, other in pairwise(ops))


@BOTH
def test_gaps_end_when_what_they_wait_for_is_there(traced: Traced, level: HostSeqLens) -> None:
    """An idle stretch that the host ends, ends with a launch."""
    timeline = traced.timelines[level]
    launches = {op.launched_ns for span in timeline.spans for op in span.ops}

    ends = [gap.end_ns for gap in timeline.gaps if gap.waits_for == Lane.HOST]

    assert {end for end in ends if end <= timeline.end_ns} <= launches


def test_forwards_are_named_by_what_they_do(none: Timeline) -> None:
    """A step's blocks on the forward stream are those of the relay's timeline, in order."""
    blocks = [span.name for span in none.on("forward") if span.step == 1]

    known = ("resolve_future", "draft", "verify", "publish", "draft_extend", "stash")

    assert [name for name in blocks if name in known] == [*known]


def test_verify_is_one_launch_of_a_graph(none: Timeline) -> None:
    """What a graph replays is launched at one time."""
    (verify,) = [s for s in none.on("forward") if (s.name, s.step) == ("verify", 1)]

    launches = {op.launched_ns for op in verify.ops if op.replayed}

    assert len(launches) == 1


@pytest.mark.slow
def test_missing_wait_is_a_missing_arrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """A relay that does not wait for the publish has no arrow from it to the copy."""

    class Hasty(ColumnCopy):
        def copy(self, req_pool_indices_cpu: Tensor, seq_lens: Tensor) -> Tensor:
            with self._streams.using(self.stream):
                self._column_pinned.copy_(self._column, non_blocking=True)
            self.stream.synchronize()
            return self._column_pinned.index_select(0, req_pool_indices_cpu).to(seq_lens.dtype)

    monkeypatch.setattr(future_map, "host_copy", Hasty)
    timeline = recorded(CHAIN, num_steps=1).timelines[HostSeqLens.EXACT]

    assert [own for own in timeline.arrows if own.signal is Signal.LENGTHS] == []


def test_level_below_a_backends_need_is_left_out() -> None:
    """Where a backend reads lengths on the host no run without them is shown."""
    traced = recorded(CHAIN.replace("torch_padded", "torch_native"), num_steps=1)

    assert [*traced.timelines] == [HostSeqLens.EXACT]
    assert [own.level for own in traced.left_out] == ["none"]


def _fails(*_arguments: object) -> None:
    raise RuntimeError("no such kernel")


@pytest.mark.slow
def test_level_whose_step_fails_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where only another level than the plan's fails, the plan's is shown."""
    monkeypatch.setattr(HostLengths, "refresh", _fails)

    traced = recorded(f"{CHAIN} --enable-two-batch-overlap", num_steps=1)

    assert [*traced.timelines] == [HostSeqLens.EXACT]
    assert "a step raised RuntimeError: no such kernel" in traced.left_out[0].reason


@pytest.mark.slow
def test_plan_whose_step_fails_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the plan's own level fails there is nothing to show."""
    monkeypatch.setattr(HostLengths, "refresh", _fails)

    with pytest.raises(InsightError, match="a step raised RuntimeError: no such kernel"):
        recorded(CHAIN, num_steps=1)


def test_faults_of_a_step_are_reported_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several faults of one step are one sentence."""

    def fail(_: Recording) -> Timeline:
        raise ExceptionGroup("faults", [StartError("no a"), StartError("no b")])

    monkeypatch.setitem(trace.RECORDERS, "sim", fail)

    with pytest.raises(InsightError) as caught:
        recorded(CHAIN, num_steps=1)

    assert caught.value.code == "step-failed"
    assert "a step raised no a; no b. " in str(caught.value)


def test_plain_decode_is_shown_as_it_is() -> None:
    """Where no lengths are relayed there is one level, and the host waits for tokens alone."""
    own = recorded("--attention-backend torch_padded", num_steps=1)
    ((level, timeline),) = own.timelines.items()

    assert {s.for_lane for s in timeline.on(Lane.HOST) if s.for_lane} == {"host_copy"}
    assert (level.value, timeline.level) == ("exact", "exact")
    assert "decode" in {span.name for span in timeline.on("forward")}


def test_too_many_steps_are_refused() -> None:
    """Requests that would end within the steps are refused, with how many there are."""
    with pytest.raises(InsightError) as caught:
        recorded(CHAIN, num_steps=1000)

    assert caught.value.code == "too-many-steps"
    assert "1000 decode steps" in str(caught.value)
    assert "has 41 for sure" in str(caught.value)
