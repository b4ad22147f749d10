"""Work that fails on the simulated device, and what a run that failed leaves behind."""

import pickle
from collections.abc import Callable
from contextlib import suppress

import pytest
import torch
from torch import Tensor

from backend_caps.simulator import Schedule, SimDeviceError, simulate
from backend_caps.simulator import streams as sim
from backend_caps.simulator.streams import Event, Stream
from tests.simulator.orders import in_every_order


def _index_by_poison() -> None:
    """Launch work that fails when it runs."""
    rows = torch.empty(2, dtype=torch.int64, device="sim")
    torch.ones(4, device="sim").index_select(0, rows)


def _race(numbers: Tensor) -> None:
    """Write on two streams that do not know of each other."""
    numbers.add_(1)
    with sim.stream(Stream()):
        numbers.add_(1)


def _run_to_failure(*, check_races: bool, num_races: int) -> None:
    with simulate("lazy", check_races=check_races):
        numbers = torch.zeros(4, device="sim")
        sim.synchronize()
        for _ in range(num_races):
            _race(numbers)
        _index_by_poison()


def _failure(*, check_races: bool, num_races: int = 0) -> SimDeviceError:
    """Return what a run raises whose last operator fails, races before it."""
    with pytest.raises(SimDeviceError) as raised:
        _run_to_failure(check_races=check_races, num_races=num_races)
    return raised.value


def test_failure_shows_first_races_in_notes() -> None:
    """Where races were looked for, the first three of them stand below the failure."""
    error = _failure(check_races=True, num_races=5)

    assert error.races is not None
    assert len(error.races) > 3
    assert error.__notes__[:3] == list(error.races[:3])
    assert error.__notes__[3:] == ["schedule lazy: replay by simulate('lazy')"]
    assert error.races[0].startswith("race on block ")


def test_failure_says_how_many_races_there_are() -> None:
    """Where races were found, the message counts them and sends nobody to look again."""
    error = _failure(check_races=True, num_races=1)

    assert error.message.endswith(
        f"order the accesses of the races found until then ({len(error.races or ())}) first."
    )


def test_failure_without_races_says_where_else_to_look() -> None:
    """Where races were looked for and none was found, the cause is another one."""
    error = _failure(check_races=True)

    assert error.races == ()
    assert "no race was found until then: look for memory that is read before" in error.message


def test_failure_advises_to_look_for_races() -> None:
    """Where nobody looked for races, the message says how to."""
    error = _failure(check_races=False, num_races=1)

    assert error.races is None
    assert error.message.endswith("replay the schedule with check_races=True to find which.")


def test_failure_keeps_its_races_in_another_process() -> None:
    """A failure that crosses to another process shows the same races there."""
    error = _failure(check_races=True, num_races=1)

    copy = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own bytes

    assert (copy.races, copy.message) == (error.races, error.message)
    assert copy.__notes__ == list(error.races or ())[:3]


WAITS = [
    pytest.param(lambda event, _: event.synchronize(), id="host"),
    pytest.param(lambda event, stream: stream.wait_event(event), id="stream"),
    pytest.param(lambda event, _: event.query(), id="query"),
]


def _left_by_failed_run() -> tuple[Event, Stream]:
    """Record an event behind work that never runs, because the run fails before."""
    with suppress(KeyError), simulate("lazy"):
        stream, event = Stream(), Event()
        with sim.stream(stream):
            torch.zeros(1, device="sim")
        event.record(stream)
        raise KeyError
    return event, stream


@pytest.mark.parametrize("wait", WAITS)
@in_every_order(2)
def test_event_of_failed_run_is_no_wait(
    schedule: Schedule, wait: Callable[[Event, Stream], object]
) -> None:
    """What a failed run left undone is gone, so a later run does not wait for it."""
    event, stream = _left_by_failed_run()

    with simulate(schedule):
        wait(event, stream)
        with sim.stream(stream):
            numbers = torch.ones(2, device="sim").tolist()

    assert numbers == [1, 1]


def test_event_of_failed_run_is_no_wait_outside_of_runs() -> None:
    """An event that a failed run left is no wait either where no simulation runs."""
    event, _ = _left_by_failed_run()

    event.synchronize()

    assert event.query()


def test_event_of_failed_run_waits_for_its_next_record() -> None:
    """An event that a failed run left is recorded again, and from then on waited for."""
    event, stream = _left_by_failed_run()

    with simulate("lazy"):
        with sim.stream(stream):
            numbers = torch.zeros(1, device="sim").add_(3)
        event.record(stream)
        sim.current_stream().wait_event(event)

        assert numbers.tolist() == [3]


def test_events_of_run_that_failed_on_the_device_are_no_waits() -> None:
    """Where work failed in the middle of a stream, the events behind it are no waits either."""
    with suppress(SimDeviceError), simulate("lazy"):
        _index_by_poison()
        event = sim.current_stream().record_event()
        numbers = torch.ones(1, device="sim")

    with simulate("lazy"):
        event.synchronize()
        numbers.fill_(4)

        assert numbers.tolist() == [4]
