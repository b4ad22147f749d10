import warnings
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.utils._device import _device_constructors

from backend_caps.simulator import (
    HOST,
    OrderPolicy,
    Schedule,
    SimulatorError,
    StarvationWarning,
    simulate,
    streams,
    systematic_schedules,
)
from backend_caps.simulator import streams as sim
from backend_caps.simulator.streams import Stream
from tests.simulator.orders import in_every_order


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda: torch.empty(2, pin_memory=True), id="empty"),
        pytest.param(lambda: torch.zeros(2, pin_memory=True), id="zeros"),
        pytest.param(lambda: torch.tensor([1, 2], pin_memory=True), id="tensor"),
        pytest.param(lambda: torch.arange(2).pin_memory(), id="pin_memory"),
        pytest.param(lambda: torch.arange(4).pin_memory()[1:3], id="view"),
        pytest.param(
            lambda: torch.zeros(2, device="sim").to("cpu", non_blocking=True), id="non-blocking"
        ),
    ],
)
@pytest.mark.parametrize("inference", [False, True], ids=["no_grad", "inference_mode"])
def test_pinned_memory_is_pinned(make: Callable[[], Tensor], inference: bool) -> None:
    """Host memory is pinned in all the ways in which torch pins it."""
    with simulate(), torch.inference_mode(inference):
        assert make().is_pinned()
        assert not torch.empty(2).is_pinned()


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda: torch.empty(0, pin_memory=True), id="empty"),
        pytest.param(lambda: torch.zeros(3, 0, pin_memory=True), id="zeros"),
        pytest.param(lambda: torch.tensor([], pin_memory=True), id="tensor"),
        pytest.param(lambda: torch.empty(0).pin_memory(), id="pin_memory"),
        pytest.param(
            lambda: torch.zeros(0, device="sim").to("cpu", non_blocking=True), id="non-blocking"
        ),
    ],
)
def test_memory_of_no_bytes_is_not_pinned(make: Callable[[], Tensor]) -> None:
    """Host memory of no bytes cannot be pinned, as it cannot on CUDA."""
    with simulate():
        assert not make().is_pinned()


def test_view_of_nothing_in_pinned_memory_is_pinned() -> None:
    """A view is pinned where the memory that it lies in is, whatever it shows of it."""
    with simulate():
        assert torch.empty(4, pin_memory=True)[:0].is_pinned()


def test_pinned_memory_starts_as_poison() -> None:
    """Pinned memory that nobody wrote holds no number that a program means."""
    with simulate():
        pinned = torch.empty(2, dtype=torch.int64, pin_memory=True)

        assert min(pinned.tolist()) > 2**62


def test_pageable_memory_is_staged_at_once() -> None:
    """A copy from pageable memory takes the values that are there at the launch."""
    with simulate("lazy"):
        numbers = torch.ones(2)
        copied = numbers.to("sim", non_blocking=True)
        numbers.fill_(9)

        assert copied.tolist() == [1, 1]


def test_pinned_memory_is_read_when_the_copy_runs() -> None:
    """A copy from pinned memory takes what is there by the time that it runs."""
    with simulate("lazy"):
        numbers = torch.ones(2).pin_memory()
        copied = numbers.to("sim", non_blocking=True)
        numbers.fill_(9)

        assert copied.tolist() == [9, 9]


def test_pinned_memory_is_written_when_the_copy_runs() -> None:
    """A copy to pinned memory shows after the host waited for it, and not before."""
    with simulate("lazy"):
        pinned = torch.zeros(2, pin_memory=True)
        pinned.copy_(torch.ones(2, device="sim"), non_blocking=True)
        early = pinned.tolist()
        sim.current_stream().synchronize()

        assert (early, pinned.tolist()) == ([0, 0], [1, 1])


def test_copy_of_inference_mode_runs_after_it() -> None:
    """A copy that inference mode launched may run when it is over."""
    with simulate("lazy"):
        with torch.inference_mode():
            pinned = torch.ones(2, device="sim").to("cpu", non_blocking=True)
        sim.current_stream().synchronize()

        assert pinned.tolist() == [1, 1]


@pytest.mark.parametrize(
    "copy",
    [
        pytest.param(lambda ones: ones.cpu(), id="cpu"),
        pytest.param(lambda ones: torch.zeros(2).copy_(ones), id="copy_"),
        pytest.param(lambda ones: torch.zeros(2).copy_(ones, non_blocking=True), id="pageable"),
        pytest.param(lambda ones: torch.zeros(2).pin_memory().copy_(ones), id="pinned"),
        pytest.param(lambda ones: ones.to("cpu", torch.int64), id="another dtype"),
    ],
)
@in_every_order(1)
def test_blocking_copy_to_the_host_waits(
    copy: Callable[[Tensor], Tensor], schedule: Schedule
) -> None:
    """A copy that is blocking, or into pageable memory, is done when it returns."""
    with simulate(schedule) as simulation:
        assert copy(torch.ones(2, device="sim")).tolist() == [1, 1]
        assert simulation.hidden_syncs[-1].cause == "aten::copy_"


@pytest.mark.parametrize(
    ("read", "operator"),
    [
        pytest.param(lambda pinned: pinned.tolist(), "Tensor.tolist", id="tolist"),
        pytest.param(lambda pinned: pinned.numpy(), "Tensor.numpy", id="numpy"),
        pytest.param(lambda pinned: pinned[0].item(), "aten::_local_scalar_dense", id="item"),
        pytest.param(lambda pinned: pinned + 1, "aten::add.Tensor", id="operator"),
        pytest.param(lambda pinned: pinned[:1].clone(), "aten::clone", id="view"),
    ],
)
def test_early_host_read_is_a_race(read: Callable[[Tensor], object], operator: str) -> None:
    """A read of pinned memory before the wait for its copy is reported with its line."""
    with simulate("eager", check_races=True) as simulation:
        ones = torch.ones(2, device="sim")
        pinned = ones.to("cpu", non_blocking=True)
        read(pinned)

    (race,) = simulation.races
    assert (race.second.operator, race.second.stream) == (operator, HOST)
    assert race.second.site.file == __file__
    assert race.first.is_write
    assert not race.second.is_write


def test_early_host_write_is_a_race() -> None:
    """A write to pinned memory before a copy from it ran is reported with its line."""
    with simulate("eager", check_races=True) as simulation:
        pinned = torch.ones(2).pin_memory()
        copied = pinned.to("sim", non_blocking=True)
        pinned.fill_(9)
        del copied

    (race,) = simulation.races
    assert (race.second.operator, race.second.stream) == ("aten::fill_.Scalar", HOST)
    assert race.second.is_write


@in_every_order(1)
def test_host_access_after_a_wait_is_no_race(schedule: Schedule) -> None:
    """A host that waited may read, write, and launch the next copy."""
    with simulate(schedule, check_races=True) as simulation:
        pinned = torch.ones(2).pin_memory()
        for value in range(3):
            copied = pinned.to("sim", non_blocking=True)
            back = copied.to("cpu", non_blocking=True)
            sim.current_stream().synchronize()
            assert back.tolist() == [max(value, 1)] * 2
            pinned.fill_(value + 1)

    assert simulation.races == ()


def test_torch_is_left_as_it_was() -> None:
    """What is replaced while a simulation runs is torch's own again after it."""
    before = (torch.tensor, torch.Tensor.tolist, torch.Tensor.numpy, dict(vars(torch.Tensor)))
    with simulate():
        inside = torch.tensor

    after = (torch.tensor, torch.Tensor.tolist, torch.Tensor.numpy, dict(vars(torch.Tensor)))
    assert inside is not before[0]
    assert after == before


@pytest.mark.parametrize("word", ["eager", "lazy", "starve:0", "starve:12", "random:17"])
def test_schedule_parses_what_it_prints(word: str) -> None:
    """A schedule is read back from the word that a failing run printed."""
    schedule = Schedule.parse(word)

    assert str(schedule) == word


@pytest.mark.parametrize("word", ["", "Lazy", "lazy:1", "starve", "random:x", "starve:-1", "fast"])
def test_schedule_refuses_another_word(word: str) -> None:
    """A word that no schedule prints as is an error that names the ones that do."""
    with pytest.raises(SimulatorError) as raised:
        Schedule.parse(word)

    assert str(raised.value) == (
        f"{word!r} is no schedule; expected eager, lazy, starve:<stream> or random:<seed>. "
        f"Copy the word that the failing run printed."
    )


def test_systematic_schedules_starve_each_stream() -> None:
    """Systematic schedules are eager, lazy, and one for every stream."""
    schedules = systematic_schedules(2)

    assert [str(schedule) for schedule in schedules] == ["eager", "lazy", "starve:0", "starve:1"]
    assert schedules[3] == Schedule(OrderPolicy.STARVE, 1)


def test_simulate_names_schedule_on_failure() -> None:
    """An exception in a run says by which schedule the run is repeated."""
    with pytest.raises(KeyError) as raised, simulate("random:5"):
        raise KeyError

    assert raised.value.__notes__ == ["schedule random:5: replay by simulate('random:5')"]


def test_simulate_refuses_second_run() -> None:
    """There is one device, so one simulation runs at a time."""
    with (
        simulate("lazy"),
        pytest.raises(SimulatorError, match=r"simulate\(eager\).*simulate\(lazy\)"),
        simulate("eager"),
    ):
        pass


def test_simulate_warns_where_schedule_starves_nobody() -> None:
    """A schedule that starves a stream which the run does not have says so where it was asked."""
    words = r"^schedule starve:99 starved no stream; .* expected: 0, 1\. Starve one of these"
    with pytest.warns(StarvationWarning, match=words) as caught, simulate("starve:99"):
        Stream()

    assert caught[0].filename == __file__


def test_simulate_keeps_quiet_where_run_failed() -> None:
    """A run that failed may not have come to the stream that starves, so nothing is said of it."""
    with warnings.catch_warnings(record=True) as caught:
        with pytest.raises(KeyError), simulate("starve:99"):
            raise KeyError

        assert caught == []


def test_dirty_run_prints_its_schedule() -> None:
    """A run with races raises an error that names the schedule and both accesses."""
    with simulate("lazy", check_races=True) as simulation:
        numbers = torch.zeros(2, device="sim")
        with streams.stream(Stream()):
            numbers.add_(1)

    with pytest.raises(SimulatorError) as raised:
        simulation.require_clean()
    assert str(raised.value).startswith("schedule lazy found 1 fault, none was expected: race on ")
    assert str(raised.value).endswith("Replay it by Schedule.parse('lazy').")


def test_device_of_a_block_reaches_tensors_behind_a_simulation() -> None:
    """Torch notes once, in `_device_constructors`, which functions take the device of a block."""
    _device_constructors.cache_clear()  # as in a process that has had no such block yet
    with simulate(), torch.device("meta"):
        within = torch.tensor([1])

    with torch.device("meta"):
        behind = torch.tensor([1])

    assert (within.device.type, behind.device.type) == ("meta", "meta")
