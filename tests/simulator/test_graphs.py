from typing import cast

import pytest
import torch

from backend_caps.simulator import Schedule, SimulatorError, simulate, systematic_schedules
from backend_caps.simulator import streams as sim
from backend_caps.simulator.streams import CUDAGraph, Event, Stream, graph
from tests.simulator.orders import in_every_order


@in_every_order(2)
def test_replay_runs_on_new_values(schedule: Schedule) -> None:
    """A replay computes from what its inputs hold by then, into the same memory."""
    with simulate(schedule):
        numbers, captured = torch.zeros(2, device="sim"), CUDAGraph()
        with graph(captured):
            result = (numbers + 1) * 2
        address = result.data_ptr()
        for value in (3, 5):
            numbers.fill_(value)
            captured.replay()
            assert result.tolist() == [2 * value + 2] * 2

        assert result.data_ptr() == address


def test_capture_runs_nothing_and_bakes_host_values_in() -> None:
    """What is captured runs at its replays, with the numbers that the host had by then."""
    with simulate():
        captured, numbers, step = CUDAGraph(), torch.zeros(2, device="sim"), 3
        with graph(captured):
            numbers.add_(step)
        step = 100

        assert numbers.tolist() == [0, 0]
        captured.replay()
        assert numbers.tolist() == [3, 3]


@pytest.mark.parametrize("action", ["item", "tolist", "stream", "event", "device"])
def test_capture_refuses_host_waits(action: str) -> None:
    """A capture cannot hold a host wait, as on CUDA."""
    with simulate():
        event, numbers = sim.current_stream().record_event(), torch.zeros(1, device="sim")
        waits = {
            "item": numbers.item,
            "tolist": numbers.tolist,
            "stream": sim.current_stream().synchronize,
            "event": event.synchronize,
            "device": sim.synchronize,
        }

        with pytest.raises(SimulatorError, match="while a graph is captured"), graph(CUDAGraph()):
            waits[action]()
        assert not sim.is_current_stream_capturing()


BRANCH = 33
"""The stream that a replay runs a graph's second branch on."""
IN_EVERY_BRANCH_ORDER = pytest.mark.parametrize(
    "schedule", [*map(str, systematic_schedules(3)), f"starve:{BRANCH}", "random:1", "random:2"]
)


def _branched(numbers: torch.Tensor, side: Stream, *, waits: bool = True) -> CUDAGraph:
    """Capture (n + 1) * 10 + 2, of which a second stream does the product."""
    captured = CUDAGraph()
    with graph(captured):
        origin = sim.current_stream()
        numbers.add_(1)
        joining = origin.record_event()
        numbers.add_(0)
        side.wait_event(joining)
        if waits:
            side.wait_stream(origin)
        with sim.stream(side):
            numbers.mul_(10)
        origin.wait_stream(side)
        numbers.add_(2)
    return captured


@IN_EVERY_BRANCH_ORDER
def test_capture_holds_streams_that_join(schedule: str) -> None:
    """A stream that waits for the capture is part of it, and every replay has its work."""
    with simulate(schedule, check_races=True) as simulation:
        numbers = torch.zeros(1, device="sim")
        captured = _branched(numbers, Stream())
        for _ in range(2):
            captured.replay()

        assert numbers.tolist() == [132]
        assert simulation.races == ()


def test_branches_without_a_wait_between_them_race() -> None:
    """Two branches of a graph that use one block, with no wait between them, are a race."""
    with simulate("lazy", check_races=True) as simulation:
        captured = _branched(torch.zeros(1, device="sim"), Stream(), waits=False)
        captured.replay()
        sim.synchronize()

        assert "stream 33" in str(simulation.races[0])


@pytest.mark.parametrize("works", [True, False], ids=["with work", "without"])
def test_capture_refuses_to_end_before_a_stream_that_joined(*, works: bool) -> None:
    """As on CUDA, the first stream waits for all that joined it, or the capture fails."""
    with simulate():
        side, numbers = Stream(), torch.zeros(1, device="sim")
        capture = graph(CUDAGraph())
        capture.__enter__()
        side.wait_stream(sim.current_stream())
        if works:
            with sim.stream(side):
                numbers.add_(1)

        with pytest.raises(SimulatorError, match="work of stream"):
            capture.__exit__(None, None, None)
        assert not sim.is_current_stream_capturing()


def test_capture_ends_behind_a_stream_that_another_one_joined() -> None:
    """A stream is waited for by way of a third one as well."""
    with simulate("lazy"):
        captured, numbers = CUDAGraph(), torch.zeros(1, device="sim")
        first, second = Stream(), Stream()
        with graph(captured):
            origin = sim.current_stream()
            first.wait_stream(origin)
            second.wait_stream(first)
            with sim.stream(second):
                numbers.add_(3)
            first.wait_stream(second)
            origin.wait_stream(first)
        captured.replay()

        assert numbers.tolist() == [3]


@pytest.mark.parametrize("keeps", [True, False], ids=["recorded", "not recorded"])
def test_memory_of_a_branch_is_another_streams_while_it_is_recorded(*, keeps: bool) -> None:
    """A branch's freed memory is poison to the other branch, unless `record_stream` was called."""
    with simulate("starve:0"):
        captured, side = CUDAGraph(), Stream()
        taken = torch.zeros(4, device="sim")
        with graph(captured, stream=sim.default_stream()):
            origin = sim.current_stream()
            side.wait_stream(origin)
            with sim.stream(side):
                made = torch.ones(4, device="sim")
            origin.wait_stream(side)
            taken.copy_(made)
            if keeps:
                made.record_stream(cast("torch.Stream", origin))
            del made
        captured.replay()

        assert (taken.tolist() == [1.0] * 4) is keeps


def test_other_streams_run_beside_a_capture() -> None:
    """Work of a stream that did not join a capture is not held by it."""
    with simulate():
        captured, side = CUDAGraph(), Stream()
        with graph(captured), sim.stream(side):
            beside = torch.ones(1, device="sim")

        with sim.stream(side):
            assert beside.tolist() == [1]


def test_capture_and_what_is_outside_cannot_wait_for_each_other() -> None:
    """No replay repeats the work outside, and a capture that has ended does not run."""
    with simulate():
        outside, inside = sim.current_stream().record_event(), Event()
        with graph(CUDAGraph()):
            inside.record()

        with pytest.raises(SimulatorError, match="in a capture that has ended"):
            inside.wait()
        with pytest.raises(SimulatorError, match="outside of the capture"), graph(CUDAGraph()):
            outside.wait()


@in_every_order(3)
def test_external_event_is_recorded_at_each_replay(schedule: Schedule) -> None:
    """An external event is passed at its place in every replay, before the rest of the graph."""
    with simulate(schedule, check_races=True) as simulation:
        captured, event, side = CUDAGraph(), Event(external=True), Stream()
        numbers = torch.zeros(1, device="sim")
        with graph(captured):
            numbers.add_(1)
            event.record()
            torch.ones(1, device="sim")
        for step in (1, 2):
            captured.replay()
            side.wait_event(event)
            with sim.stream(side):
                assert numbers.tolist() == [step]

    assert simulation.races == ()


def test_replay_races_like_its_work() -> None:
    """What a replay writes is checked against other streams, and named by its captured line."""
    with simulate("eager", check_races=True) as simulation:
        captured, side, numbers = CUDAGraph(), Stream(), torch.zeros(1, device="sim")
        with graph(captured):
            numbers.add_(1)
        captured.replay()
        with sim.stream(side):
            numbers.clone()

    (race,) = simulation.races
    assert (race.first.operator, race.second.operator) == ("aten::add_.Tensor", "aten::clone")


def test_graph_memory_is_its_own() -> None:
    """Memory that is freed in a capture is reused in it, and by nobody outside."""
    with simulate():
        captured = CUDAGraph()
        with graph(captured):
            first = torch.ones(4, device="sim")
            address = first.data_ptr()
            del first
            second = torch.ones(4, device="sim")
        outside = {torch.empty(4, device="sim").data_ptr() for _ in range(3)}

        assert second.data_ptr() == address
        assert address not in outside


def test_freed_memory_is_poisoned_in_a_replay() -> None:
    """What a capture freed is poison at that place of every replay."""
    with simulate():
        captured = CUDAGraph()
        with graph(captured):
            freed = torch.ones(4, device="sim")
            del freed
            unwritten = torch.empty(4, device="sim")
        captured.replay()

        assert unwritten.isnan().all().item()


def test_graphs_share_a_pool() -> None:
    """A second graph reuses what the first one freed, where they share a pool."""
    with simulate():
        pool, stream, addresses = sim.graph_pool_handle(), Stream(), []
        for _ in range(2):
            with graph(CUDAGraph(), pool=pool, stream=stream):
                addresses.append(torch.ones(4, device="sim").data_ptr())

        assert addresses[0] == addresses[1]


def test_graph_result_outlives_nothing_else() -> None:
    """A tensor that a capture made keeps its memory while other tensors come and go."""
    with simulate():
        captured, numbers = CUDAGraph(), torch.ones(4, device="sim")
        with graph(captured):
            result = numbers * 2
        captured.replay()
        for value in range(4):
            torch.full((4,), value, device="sim")

        assert result.tolist() == [2] * 4


def test_replay_needs_a_capture() -> None:
    """A graph without a capture, or one that was reset, replays nothing."""
    with simulate():
        captured = CUDAGraph()
        with graph(captured):
            torch.ones(1, device="sim")
        captured.reset()

        with pytest.raises(SimulatorError, match="replay was called on a graph that holds"):
            captured.replay()


def test_memory_of_a_pool_is_counted_as_torch_does() -> None:
    """What captures allocate is the pool's, also once it is free; what others allocate is not."""
    with simulate():
        pool, stream, elsewhere = sim.graph_pool_handle(), Stream(), torch.zeros(4096, device="sim")
        for _ in range(2):
            with graph(CUDAGraph(), pool=pool, stream=stream):
                elsewhere.add(1)

        assert sum(segment["total_size"] for segment in sim.memory_snapshot(pool)) == 4096 * 4
