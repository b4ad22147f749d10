from __future__ import annotations

import math
import pickle
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import cast

import pytest
import torch
from torch import Tensor

from backend_caps.simulator import Schedule, SimDeviceError, simulate
from backend_caps.simulator import streams as sim
from backend_caps.simulator.streams import Event, Stream
from tests.simulator.orders import in_every_order


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_new_memory_of_floats_is_nan(dtype: torch.dtype) -> None:
    """Memory that nobody wrote is NaN in every float dtype."""
    with simulate():
        numbers = torch.empty(3, dtype=dtype, device="sim").tolist()

    assert all(math.isnan(number) for number in numbers)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int16])
def test_new_memory_of_integers_is_no_index(dtype: torch.dtype) -> None:
    """Memory that nobody wrote is beyond the end of any table that a test makes."""
    with simulate():
        numbers = torch.empty(3, dtype=dtype, device="sim").tolist()

    assert min(numbers) > torch.iinfo(dtype).max * 0.99


def test_freed_block_is_handed_out_next() -> None:
    """The block that was freed last is the next that the stream gets, and holds poison."""
    with simulate():
        freed = torch.ones(4, device="sim")
        address = freed.data_ptr()
        del freed
        reused = torch.empty(4, device="sim")

        assert reused.data_ptr() == address
        assert reused.isnan().all().item()


def test_block_stays_with_its_stream() -> None:
    """A freed block is not handed out to another stream."""
    with simulate():
        freed = torch.ones(4, device="sim")
        address = freed.data_ptr()
        del freed
        with sim.stream(Stream()):
            other = torch.empty(4, device="sim")

        assert other.data_ptr() != address


def test_view_keeps_block() -> None:
    """A block is freed when the last of its views is gone."""
    with simulate() as simulation:
        whole = torch.arange(6, device="sim")
        part = whole[2:4]
        del whole

        assert simulation.num_live_blocks == 1
        assert part.tolist() == [2, 3]
        del part
        assert simulation.num_live_blocks == 0


@in_every_order(1)
def test_own_stream_needs_no_keep_alive(schedule: Schedule) -> None:
    """Memory that is freed while its own stream still uses it is poisoned after that use."""
    with simulate(schedule):
        total = torch.zeros(4, device="sim")
        for value in range(5):
            total += torch.full((4,), value, device="sim")

        assert total.tolist() == [10] * 4


def _read_freed(schedule: Schedule | str, *, is_recorded: bool) -> list[float]:
    """Read a tensor on a side stream, which is freed right after the launch."""
    with simulate(schedule):
        side = Stream()
        numbers = torch.ones(3, device="sim")
        side.wait_stream(sim.current_stream())
        with sim.stream(side):
            read = numbers + 1
        if is_recorded:
            numbers.record_stream(cast("torch.Stream", side))
        del numbers
        for value in range(3):
            torch.full((3,), value, device="sim")
        sim.synchronize()
        with sim.stream(side):
            return read.tolist()


def test_missing_keep_alive_is_a_wrong_value() -> None:
    """Without record_stream, the block's next owner writes before the other stream has read."""
    assert _read_freed("starve:1", is_recorded=False) != [2, 2, 2]


@in_every_order(2)
def test_record_stream_keeps_block_until_read(schedule: Schedule) -> None:
    """With record_stream, the block stays away until the other stream is done with it."""
    assert _read_freed(schedule, is_recorded=True) == [2, 2, 2]


def test_record_stream_covers_what_came_before_the_free() -> None:
    """A block comes back once the stream has passed the point where it was freed."""
    with simulate("lazy"):
        side, numbers = Stream(), torch.ones(3, device="sim")
        address = numbers.data_ptr()
        with sim.stream(side):
            numbers.add_(1)
        numbers.record_stream(cast("torch.Stream", side))
        del numbers
        early = torch.empty(3, device="sim").data_ptr()
        side.synchronize()

        assert early != address
        assert torch.empty(3, device="sim").data_ptr() == address


def test_missing_keep_alive_is_a_race() -> None:
    """Where races are looked for, an early free is one, whatever order things ran in."""
    with simulate("eager", check_races=True) as simulation:
        side, numbers = Stream(), torch.ones(3, device="sim")
        side.wait_stream(sim.current_stream())
        with sim.stream(side):
            numbers.clone()
        del numbers

    (race,) = simulation.races
    assert (race.first.operator, race.second.operator) == ("aten::clone", "free")


def test_race_check_hands_no_block_out_twice() -> None:
    """Where races are looked for, a reused address would look like one."""
    with simulate("eager", check_races=True):
        addresses = {torch.empty(4, device="sim").data_ptr() for _ in range(5)}

    assert len(addresses) == 5


def test_poisoned_index_fails_where_it_runs() -> None:
    """It fails at the host's wait, and names its own launch; what comes after it runs."""
    with simulate("lazy"):
        rows = torch.empty(2, dtype=torch.int64, device="sim")
        torch.ones(4, device="sim").index_select(0, rows)
        with pytest.raises(SimDeviceError) as raised:
            sim.synchronize()

        assert torch.ones(2, device="sim").tolist() == [1, 1]
    assert raised.value.operator == "aten::index_select"
    assert raised.value.site.startswith(f"{__file__}:")
    assert "failed when it ran: index out of range" in str(raised.value)


def test_tensors_survive_their_simulation() -> None:
    """Weights that were loaded outside of a run are used in it, and results after it."""
    weight = torch.arange(3, device="sim")
    with simulate("lazy") as simulation:
        result = weight * 2

    assert simulation.num_live_blocks == 1
    assert result.tolist() == [0, 2, 4]


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


def test_failure_shows_races_and_counts_them_in_any_process() -> None:
    """Where races were found, three stand below the failure, which sends nobody to look again."""
    error = _failure(check_races=True, num_races=5)
    copy = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own bytes

    races = error.races or ()
    assert len(races) > 3
    assert races[0].startswith("race on block ")
    assert error.message.endswith(
        f"order the accesses of the races found until then ({len(races)}) first."
    )
    assert error.__notes__ == [*races[:3], "schedule lazy: replay by simulate('lazy')"]
    assert (copy.races, copy.message, copy.__notes__) == (races, error.message, [*races[:3]])


@pytest.mark.parametrize(
    ("check_races", "races", "advice"),
    [
        (True, (), "no race was found until then: look for memory that is read before"),
        (False, None, "replay the schedule with check_races=True to find which."),
    ],
)
def test_failure_without_races_says_where_to_look(
    *, check_races: bool, races: tuple[()] | None, advice: str
) -> None:
    """The message says how to look for races; where there are none, the cause is another one."""
    error = _failure(check_races=check_races)

    assert error.races == races
    assert advice in error.message


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


RUN = """\
import sys
import torch
from torch.nn.functional import scaled_dot_product_attention
from backend_caps.simulator import simulate

with torch.no_grad(), simulate("eager"):
    query = torch.ones(1, 2, 5, 16).to("sim")
    mask = torch.ones(5, 5, dtype=torch.bool, device="sim").tril()
    rows = torch.tensor([0, 1], device="sim")
    out = scaled_dot_product_attention(query, query, query, attn_mask=mask)
    print((out[0, rows] + 1).nan_to_num().sum().item())
print(sorted({"torch._dynamo", "torch.distributed.tensor"}.intersection(sys.modules)))
"""


def test_run_loads_neither_dynamo_nor_dtensor() -> None:
    """Copies to the device, factories, operators and attention take neither."""
    finished = subprocess.run(
        [sys.executable, "-c", RUN], capture_output=True, text=True, check=True
    )

    assert finished.stdout.splitlines()[-1] == "[]"
