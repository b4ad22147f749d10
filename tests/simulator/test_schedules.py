import warnings

import pytest
import torch

from backend_caps.simulator import (
    OrderPolicy,
    Schedule,
    SimulatorError,
    StarvationWarning,
    simulate,
    streams,
    systematic_schedules,
)
from backend_caps.simulator.streams import Stream


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
