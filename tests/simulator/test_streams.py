from collections.abc import Callable
from contextlib import suppress

import pytest
import torch

from backend_caps.simulator import Schedule, WaitKind, simulate
from backend_caps.simulator import streams as sim
from backend_caps.simulator.streams import Event, Stream
from tests.simulator.orders import in_every_order


def test_device_module_is_the_simulators() -> None:
    """The streams are found where torch finds those of every device."""
    module = torch.get_device_module("sim")

    assert (module.Stream, module.Event) == (Stream, Event)
    assert (module.is_available(), module.device_count(), module.current_device()) == (True, 1, 0)


def test_device_module_works_on_its_device_within_a_block() -> None:
    """Code that names its device in a `with` block stays on the only one."""
    with simulate(), torch.get_device_module("sim").device(0):
        found = torch.zeros(1, device="sim").device

    assert found == torch.device("sim", 0)


def test_stream_pool_comes_round() -> None:
    """The pool hands out 32 handles in turns, so the 33rd stream is the first one."""
    with simulate():
        drawn = [Stream() for _ in range(33)]

    assert drawn[32] == drawn[0]
    assert len(set(drawn)) == 32


def test_stream_block_is_entered_as_often_as_wanted() -> None:
    """A block may be kept and nested; work goes on as before it, also after an exception."""
    with simulate():
        side = Stream()
        block = torch.get_device_module("sim").StreamContext(side)
        with suppress(KeyError), block:
            with block:
                inner = sim.current_stream()
            outer = sim.current_stream()
            raise KeyError

        assert (inner, outer, sim.current_stream()) == (side, side, sim.default_stream())


@in_every_order(1)
def test_stream_runs_in_order(schedule: Schedule) -> None:
    """What is launched on one stream runs in the order of its launches."""
    with simulate(schedule):
        numbers = torch.zeros(4, device="sim")
        for factor in (2, 3, 5):
            numbers.add_(1).mul_(factor)

        assert numbers.tolist() == [50] * 4


def test_lazy_stream_waits_for_nobody() -> None:
    """Without a wait, a read on another stream runs before the write that it was launched after."""
    with simulate("starve:0"):
        numbers = torch.ones(2, device="sim")
        with sim.stream(Stream()):
            early = numbers.isnan().tolist()

        assert early == [True, True]


@in_every_order(2)
def test_wait_stream_orders_streams(schedule: Schedule) -> None:
    """A stream that waits for another finds what that one wrote."""
    with simulate(schedule):
        side = Stream()
        numbers = torch.ones(2, device="sim")
        side.wait_stream(sim.current_stream())
        with sim.stream(side):
            late = (numbers + 1).tolist()

        assert late == [2, 2]


def test_event_wait_binds_to_what_was_recorded() -> None:
    """A wait is for what the event was recorded at then, not for a later record anywhere."""
    with simulate("lazy"):
        side, other, event = Stream(), Stream(), Event()
        numbers = torch.zeros(1, device="sim")
        event.record()
        side.wait_event(event)
        numbers.fill_(9)
        event.record()
        event.record(other)
        with sim.stream(side):
            seen = numbers.tolist()

        assert seen == [0]


def test_unrecorded_event_is_no_wait() -> None:
    """Waiting for an event before its first record waits for nothing."""
    with simulate("lazy"):
        side, event = Stream(), Event()
        side.wait_event(event)
        event.synchronize()

        assert event.query()
        assert side.query()


def test_event_query_tells_whether_work_ran() -> None:
    """An event was passed once the host waited for what comes before it."""
    with simulate("lazy"):
        torch.zeros(1, device="sim")
        event = sim.current_stream().record_event()
        before = event.query()
        event.synchronize()

        assert (before, event.query()) == (False, True)


def test_starving_ends_with_a_wait() -> None:
    """Once the host waited for a starved stream, what waited for that one runs by itself."""
    with simulate("starve:0"):
        side, numbers = Stream(), torch.zeros(1, device="sim")
        side.wait_stream(sim.current_stream())
        with sim.stream(side):
            numbers.add_(1)
        late = side.record_event()
        sim.current_stream().synchronize()

        assert late.query()


def test_polling_comes_to_an_end() -> None:
    """A host that asks again and again gets a yes, though nothing runs by itself."""
    with simulate("lazy"):
        side, numbers = Stream(), torch.zeros(1, device="sim").add_(1)
        side.wait_stream(sim.current_stream())
        with sim.stream(side):
            numbers.add_(1)
        event = side.record_event()

        answers = [event.query() for _ in range(9)]
        assert (answers[0], answers[-1], numbers.tolist()) == (False, True, [2])


@pytest.mark.parametrize("schedule", ["lazy", "starve:0", "random:3"])
@pytest.mark.parametrize("ask", [Stream.query, lambda stream: stream.record_event().query()])
def test_loop_that_polls_a_stream_ends(schedule: str, ask: Callable[[Stream], bool]) -> None:
    """Under every order a stream's work is at its end after as many questions as it has items."""
    with simulate(schedule):
        numbers, main = torch.zeros(1, device="sim"), sim.current_stream()
        side = Stream()
        side.wait_stream(main)
        for _ in range(8):
            numbers.add_(1)

        assert [ask(main) for _ in range(99)][-1]


def test_answer_lets_run_what_waited_for_it() -> None:
    """A starved stream that a question brings on lets others run as their order says."""
    with simulate("starve:0"):
        side, numbers = Stream(), torch.zeros(1, device="sim")
        side.wait_stream(sim.current_stream())
        with sim.stream(side):
            numbers.add_(1)
        late = side.record_event()
        while not sim.current_stream().query():
            pass

        assert late.query()


@pytest.mark.parametrize(("num_asked", "num_waits"), [(1, 0), (9, 1)])
@pytest.mark.parametrize("kind", [WaitKind.EVENT, WaitKind.STREAM])
def test_loop_of_questions_is_one_host_wait(num_asked: int, num_waits: int, kind: WaitKind) -> None:
    """To ask once and go on is no wait; to ask until the answer is yes is one."""
    with simulate("lazy") as simulation:
        torch.zeros(1, device="sim").add_(1).add_(1)
        stream = sim.current_stream()
        asked = stream.record_event() if kind is WaitKind.EVENT else stream
        for _ in range(num_asked):
            asked.query()

        waits = simulation.counts.waits
    assert [(own.kind, count) for own, count in waits.items()] == [(kind, 1)] * num_waits


def test_question_that_comes_back_in_a_later_step_is_no_wait() -> None:
    """What looks at each step whether an old copy is done, and launches work, does not wait."""
    with simulate("lazy") as simulation:
        numbers = torch.zeros(1, device="sim").add_(1).add_(1)
        event = sim.current_stream().record_event()
        for _ in range(3):
            event.query()
            numbers.add_(1)

    assert simulation.host_waits == []


def test_read_after_a_yes_is_no_race() -> None:
    """A point that was passed orders the host behind it, as a wait for it does."""
    with simulate("lazy", check_races=True) as simulation:
        pinned = torch.zeros(4, pin_memory=True)
        pinned.copy_(torch.ones(4, device="sim"), non_blocking=True)
        event = sim.current_stream().record_event()
        while not event.query():
            pass

        assert pinned.tolist() == [1, 1, 1, 1]
    assert simulation.races == ()


def test_host_wait_runs_only_what_it_needs() -> None:
    """Under the lazy schedule a host wait leaves other streams alone."""
    with simulate("lazy"):
        side = Stream()
        torch.zeros(1, device="sim")
        with sim.stream(side):
            torch.zeros(1, device="sim")
        side.synchronize()

        assert (side.query(), sim.default_stream().query()) == (True, False)


def test_elapsed_time_counts_operators() -> None:
    """The simulated clock ticks once for every operator."""
    with simulate("lazy"):
        start, end = Event(enable_timing=True), Event(enable_timing=True)
        start.record()
        torch.zeros(1, device="sim").add_(1).add_(1)
        end.record()
        end.synchronize()

        assert start.elapsed_time(end) == 3


def test_elapsed_time_needs_passed_events() -> None:
    """The time between events that were not passed is an error, as it is on CUDA."""
    with simulate("lazy"), pytest.raises(RuntimeError, match="recorded and passed"):
        Event().elapsed_time(Event())


def _order(word: str) -> list[float]:
    with simulate(word):
        side = Stream()
        numbers = torch.zeros(8, device="sim")
        for place in range(8):
            numbers[place].fill_(place)
            with sim.stream(side):
                numbers.mul_(2)
        sim.synchronize()
        return [float(number) for number in numbers.cpu()]


def test_random_schedule_repeats_itself() -> None:
    """A seed gives the same order again, and other seeds other orders."""
    orders = {tuple(_order(f"random:{seed}")) for seed in range(8)}

    assert _order("random:3") == _order("random:3")
    assert len(orders) > 1
