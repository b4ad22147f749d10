"""What a run counts, and what a span of it is made of."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from backend_caps.simulator import Counts, Waited, WaitKind, simulate
from backend_caps.simulator import streams as sim
from backend_caps.simulator.streams import CUDAGraph, Event, Stream, graph

Act = Callable[[Tensor], object]


def _counted(act: Act) -> Counts:
    """Count what one act does to three int64 on the device."""
    with simulate("lazy") as simulation:
        numbers = torch.arange(1, 4, device="sim")
        sim.synchronize()
        before = simulation.counts
        act(numbers)
        return simulation.counts - before


NUMBER, COPY = "aten::_local_scalar_dense", "aten::copy_"
REPEAT = "aten::repeat_interleave.Tensor"
HIDDEN, ON_DEVICE = (WaitKind.HIDDEN, 0), (WaitKind.DEVICE, None)


def _recorded_on(handle: int) -> Event:
    return Stream(handle=handle).record_event()


@pytest.mark.parametrize(
    ("wait", "waited", "cause"),
    [
        (lambda _: Stream(handle=4).synchronize(), (WaitKind.STREAM, 4), "Stream.synchronize"),
        (lambda _: _recorded_on(5).synchronize(), (WaitKind.EVENT, 5), "Event.synchronize"),
        (lambda _: torch.get_device_module("sim").synchronize(), ON_DEVICE, "synchronize"),
        pytest.param(lambda t: t[0].item(), HIDDEN, NUMBER, id="item"),
        pytest.param(lambda t: int(t.max()), HIDDEN, NUMBER, id="int"),
        pytest.param(lambda t: bool((t > 0).all()), HIDDEN, NUMBER, id="bool"),
        pytest.param(lambda t: t.tolist(), HIDDEN, COPY, id="tolist"),
        pytest.param(lambda t: t.cpu(), HIDDEN, COPY, id="cpu"),
        pytest.param(lambda t: t.copy_(torch.zeros(3)), HIDDEN, COPY, id="copy_"),
        pytest.param(lambda _: torch.ones(2).to("sim"), HIDDEN, COPY, id="blocking upload"),
        pytest.param(lambda _: torch.tensor([1], device="sim"), HIDDEN, COPY, id="tensor"),
        pytest.param(lambda t: t.nonzero(), HIDDEN, "aten::nonzero", id="nonzero"),
        pytest.param(lambda t: t[t > 0], HIDDEN, "aten::index.Tensor", id="mask"),
        pytest.param(lambda t: t[torch.tensor([0])], HIDDEN, "aten::index.Tensor", id="host index"),
        pytest.param(lambda t: t.unique(), HIDDEN, "aten::_unique2", id="unique"),
        pytest.param(lambda t: torch.equal(t, t), HIDDEN, "aten::equal", id="equal"),
        pytest.param(lambda t: t.repeat_interleave(t), HIDDEN, REPEAT, id="repeat"),
    ],
)
def test_host_wait_has_its_kind_stream_cause_and_line(
    wait: Act, waited: tuple[WaitKind, int | None], cause: str
) -> None:
    """A wait of the host counts once, and is found by what waited, for whose work, and where."""
    numbers = torch.arange(1, 4, device="sim")
    with simulate("lazy") as simulation:
        wait(numbers)
        counts = simulation.counts

    (sync,) = [*simulation.hidden_syncs, *simulation.host_waits]
    assert (sync.waited, sync.cause, sync.site.file) == (Waited(*waited), cause, __file__)
    assert str(sync) == f"{cause} at {sync.site}"
    assert counts.waits == {Waited(*waited): 1}
    assert (counts.num_host_waits, counts.num_hidden_syncs) == (1, int(waited == HIDDEN))


def test_hidden_wait_names_the_stream_that_it_was_on() -> None:
    """A number that is read on a stream makes the host wait for that stream."""
    with simulate() as simulation:
        side = Stream()
        with sim.stream(side):
            torch.ones(1, device="sim").item()

    assert simulation.counts.waits == {Waited(WaitKind.HIDDEN, side.handle): 1}
    assert simulation.hidden_syncs[0].waited == Waited(WaitKind.HIDDEN, side.handle)


def test_waits_are_split_into_hidden_ones_and_others() -> None:
    """Hidden syncs and calls of synchronize add up to all waits of the host."""

    def wait(numbers: Tensor) -> None:
        numbers.sum().item()
        sim.current_stream().synchronize()
        sim.current_stream().synchronize()

    counts = _counted(wait)

    assert (counts.num_hidden_syncs, counts.num_waits_of(WaitKind.STREAM)) == (1, 2)
    assert counts.num_host_waits == 3


@pytest.mark.parametrize(
    "act",
    [
        pytest.param(lambda t: t[1:].add_(1), id="arithmetic"),
        pytest.param(lambda t: torch.repeat_interleave(t, t, output_size=6), id="known size"),
        pytest.param(lambda t: t.masked_fill_(t > 1, 0), id="masked_fill"),
        pytest.param(lambda t: t.__setitem__(t > 1, 0), id="mask with one value"),
        pytest.param(lambda t: t.__setitem__(0, 5), id="place"),
        pytest.param(lambda t: t.to("cpu", non_blocking=True), id="non-blocking copy"),
        pytest.param(
            lambda _: torch.ones(2).pin_memory().to("sim", non_blocking=True), id="upload"
        ),
        pytest.param(lambda _: torch.arange(4, device="sim"), id="arange"),
        pytest.param(lambda t: t[:0].cpu(), id="copy of nothing"),
        pytest.param(lambda _: torch.empty(0).to("sim"), id="upload of nothing"),
        pytest.param(lambda _: Stream().wait_stream(sim.current_stream()), id="stream's wait"),
        pytest.param(lambda _: Event().synchronize(), id="event that was never recorded"),
        pytest.param(lambda _: Event().query(), id="query"),
    ],
)
def test_no_host_wait_is_counted_where_the_host_goes_on(act: Act) -> None:
    """What the host does without standing still is no wait, as on CUDA."""
    assert _counted(act).waits == {}


@pytest.mark.parametrize(
    ("act", "crossed"),
    [
        pytest.param(lambda t: t[:2].cpu(), (16, 0), id="copy to the host"),
        pytest.param(lambda t: t.to("cpu", non_blocking=True), (24, 0), id="beside the host"),
        pytest.param(lambda t: t.tolist(), (24, 0), id="tolist"),
        pytest.param(lambda t: t[0].item(), (8, 0), id="item"),
        pytest.param(lambda t: bool((t > 0).all()), (1, 0), id="bool"),
        pytest.param(lambda t: torch.equal(t, t), (1, 0), id="equal"),
        pytest.param(lambda t: t.nonzero(), (8, 0), id="size of a result"),
        pytest.param(lambda t: t.__setitem__(t > 1, t[1:].clone()), (8, 0), id="size of a mask"),
        pytest.param(lambda _: torch.ones(2).to("sim"), (0, 8), id="upload"),
        pytest.param(
            lambda _: torch.ones(2).pin_memory().to("sim", non_blocking=True), (0, 8), id="pinned"
        ),
        pytest.param(lambda t: t[torch.tensor([0, 1])], (0, 16), id="host index"),
        pytest.param(lambda t: t[:0].cpu(), (0, 0), id="copy of nothing"),
        pytest.param(lambda t: t.clone(), (0, 0), id="copy on the device"),
    ],
)
def test_bytes_that_cross_are_counted(act: Act, crossed: tuple[int, int]) -> None:
    """What crosses to the host and to the device counts in bytes, each way by itself."""
    counts = _counted(act)

    assert (counts.bytes_to_host, counts.bytes_to_device) == crossed


def test_copies_are_counted_each_way() -> None:
    """A copy counts once, however much it moves, and one of nothing not at all."""

    def copy(numbers: Tensor) -> None:
        numbers.cpu()
        numbers[:0].cpu()
        numbers.copy_(torch.zeros(3, dtype=torch.int64).pin_memory(), non_blocking=True)
        numbers.copy_(torch.zeros(1, dtype=torch.int64).pin_memory(), non_blocking=True)

    counts = _counted(copy)

    assert (counts.num_copies_to_host, counts.num_copies_to_device) == (1, 2)


def test_bytes_to_the_host_are_counted_by_stream() -> None:
    """Each stream has what crosses on it, a number that the host reads on it too."""
    side = Stream(handle=3)

    def copy(numbers: Tensor) -> None:
        numbers[0].item()
        pinned = torch.zeros(2, dtype=torch.int64).pin_memory()
        with sim.stream(side):
            pinned.copy_(numbers[:2], non_blocking=True)

    assert _counted(copy).bytes_to_host_on == {0: 8, 3: 16}


def test_operators_are_counted_when_they_are_launched() -> None:
    """A launch counts before it has run; views and memory count nothing."""
    counts = _counted(lambda t: torch.empty(3, device="sim").copy_(t[:2].sum() + 1))

    assert counts.num_ops == 3


def test_graph_counts_at_its_replays() -> None:
    """What a graph holds is launched, and crosses, at each replay and not at the capture."""
    with simulate("lazy") as simulation:
        pinned, captured = torch.zeros(3).pin_memory(), CUDAGraph()
        numbers = torch.ones(3, device="sim")
        with graph(captured):
            pinned.copy_(numbers.add_(1), non_blocking=True)
        before = simulation.counts
        captured.replay()
        captured.replay()
        counts = simulation.counts - before

    assert before.bytes_to_host == 0
    assert (counts.num_ops, counts.bytes_to_host, counts.num_copies_to_host) == (4, 24, 2)


def test_external_event_counts_at_its_replays() -> None:
    """An external event in a graph is recorded, and waited for, at each replay."""
    with simulate("lazy") as simulation:
        captured, event = CUDAGraph(), Event(external=True)
        with graph(captured):
            event.record()
            event.wait()
        before = simulation.counts
        captured.replay()
        counts = simulation.counts - before

    assert before.num_event_records == before.num_event_waits == 0
    assert (counts.num_event_records, counts.num_event_waits) == (1, 1)


@pytest.mark.parametrize(
    ("act", "expected"),
    [
        pytest.param(lambda _: Event().record(), (1, 0), id="record"),
        pytest.param(lambda _: sim.current_stream().record_event().wait(), (1, 1), id="wait"),
        pytest.param(lambda _: Stream().wait_stream(sim.current_stream()), (1, 1), id="stream"),
        pytest.param(lambda _: Event().wait(), (0, 0), id="wait for what was not recorded"),
        pytest.param(lambda _: sim.current_stream().synchronize(), (0, 0), id="host wait"),
        pytest.param(lambda _: sim.current_stream().query(), (0, 0), id="query"),
    ],
)
def test_event_records_and_waits_are_counted(act: Act, expected: tuple[int, int]) -> None:
    """Events that are recorded count, and so do waits of streams for them."""
    counts = _counted(act)

    assert (counts.num_event_records, counts.num_event_waits) == expected


def test_snapshot_stands_still() -> None:
    """A snapshot does not change with what is done after it."""
    with simulate() as simulation:
        before = simulation.counts
        torch.ones(1, device="sim").item()

        assert before.waits == {}
        assert simulation.counts - before == simulation.counts


def test_spans_of_equal_steps_are_equal() -> None:
    """Two spans in which the same was done compare equal, with their waits."""
    with simulate() as simulation:
        snapshots = []
        for _ in range(3):
            torch.ones(2, device="sim").sum().item()
            snapshots.append(simulation.counts)
        first, second, third = snapshots

    assert second - first == third - second
    assert (third - second).waits == {Waited(WaitKind.HIDDEN, 0): 1}


def test_counts_outlive_cleared_lists() -> None:
    """Who clears the list of waits takes nothing from the counts."""
    with simulate() as simulation:
        sim.current_stream().synchronize()
        simulation.host_waits.clear()

    assert simulation.counts.num_host_waits == 1


def test_waited_prints_its_kind_and_stream() -> None:
    """A kind of wait prints with the stream that it was for."""
    waits = (Waited(WaitKind.STREAM, 3), Waited(WaitKind.DEVICE, None))

    assert [*map(str, waits)] == ["stream 3", "device"]
