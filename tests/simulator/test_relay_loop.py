"""The FutureMap on the simulated device, and each of its waits taken out in turn."""

import pytest

from backend_caps.capability.vocabulary import HostSeqLens
from backend_caps.simulator import (
    DirtyRunError,
    OrderPolicy,
    Schedule,
    simulate,
    systematic_schedules,
)
from tests.simulator.relay_loop import Removed, run_loop, run_simulated

# The default stream, schedule, forward, and the copy stream where the mirror is exact.
NUM_STREAMS = {HostSeqLens.NONE: 3, HostSeqLens.UPPER_BOUND: 3, HostSeqLens.EXACT: 4}
SYSTEMATIC = systematic_schedules(NUM_STREAMS[HostSeqLens.EXACT])
RANDOM = tuple(Schedule(OrderPolicy.RANDOM, seed) for seed in range(20))
RUNS = [
    pytest.param(schedule, mirror, id=f"{mirror.value} {schedule}")
    for mirror, num_streams in NUM_STREAMS.items()
    for schedule in (*systematic_schedules(num_streams), *RANDOM)
]
REMOVED = [pytest.param(removed, id=removed.value) for removed in Removed][1:]


@pytest.mark.parametrize(("schedule", "host_seq_lens"), RUNS)
def test_loop_is_right_in_every_order(schedule: Schedule, host_seq_lens: HostSeqLens) -> None:
    """With every wait in its place, all values are those of a CPU without streams."""
    outcome = run_simulated(schedule, host_seq_lens)

    assert outcome.is_right


@pytest.mark.parametrize(("schedule", "host_seq_lens"), RUNS)
def test_loop_has_no_race(schedule: Schedule, host_seq_lens: HostSeqLens) -> None:
    """With every wait in its place, torch's sanitizer reports nothing."""
    outcome = run_simulated(schedule, host_seq_lens, check_races=True)

    assert outcome.races == ()
    assert outcome.is_right


@pytest.mark.parametrize("removed", REMOVED)
def test_removed_wait_is_a_race(removed: Removed) -> None:
    """Each wait that is taken out is a reported race, in whatever order things ran."""
    outcome = run_simulated(Schedule(), HostSeqLens.EXACT, removed, check_races=True)

    assert outcome.races


@pytest.mark.parametrize("removed", REMOVED)
def test_removed_wait_is_a_wrong_value(removed: Removed) -> None:
    """Each wait that is taken out is a wrong value in one of the systematic orders."""
    outcomes = [run_simulated(schedule, HostSeqLens.EXACT, removed) for schedule in SYSTEMATIC]

    assert not all(outcome.is_right for outcome in outcomes)


def test_eager_order_shows_nothing() -> None:
    """The order in which a CPU would run hides every one of them."""
    outcomes = [run_simulated(Schedule(), HostSeqLens.EXACT, removed) for removed in Removed]

    assert all(outcome.is_right for outcome in outcomes)


@pytest.mark.parametrize("host_seq_lens", HostSeqLens)
def test_loop_waits_only_for_the_copy(host_seq_lens: HostSeqLens) -> None:
    """A step makes the host wait for the copy of its lengths, and for nothing else."""
    with simulate("lazy") as simulation:
        run_loop("sim", host_seq_lens)

    waits = [w.site for w in simulation.host_waits if w.site.file.endswith("host_lengths.py")]
    assert len(waits) == (4 if host_seq_lens is HostSeqLens.EXACT else 0)
    assert len(simulation.host_waits) == len(waits) + 2


def test_dirty_run_prints_its_schedule() -> None:
    """A run with races raises an error that names the schedule and both accesses."""
    with simulate("lazy", check_races=True) as simulation:
        run_loop("sim", HostSeqLens.EXACT, Removed.COPY_WAIT)

    with pytest.raises(DirtyRunError) as raised:
        simulation.require_clean()
    assert str(raised.value).startswith("schedule lazy found ")
    assert str(raised.value).endswith("Replay it by Schedule.parse('lazy').")
