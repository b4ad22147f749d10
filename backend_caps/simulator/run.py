"""Runs of the simulated device, one at a time."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from backend_caps.simulator.device import register
from backend_caps.simulator.errors import NestedSimulationError, StarvationWarning
from backend_caps.simulator.host import watched_host
from backend_caps.simulator.policies import Schedule
from backend_caps.simulator.simulation import DEVICE, Simulation


@contextmanager
def simulate(
    schedule: Schedule | str = "eager", *, check_races: bool = False
) -> Iterator[Simulation]:
    """Run device work in the order of a schedule, and collect what is found.

    Only here is there pinned memory, and only the thread that came in is watched: torch's modes
    are a thread's own. Tensors of before keep their values. At the end everything that was launched
    runs. An exception gets a note that names the schedule, so that the run can be repeated; what
    had not run by then never will, and who reuses an event of that run waits for nothing.

    Where no stream has the number that the schedule starves, the run was an eager one, and a
    StarvationWarning says so. It is no error: what the run found stands, one list of schedules may
    serve programs of several sizes, and who looks for faults must not take this for one.

    Args:
        schedule: the order, or the word that it prints as.
        check_races: feed torch's stream sanitizer; freed memory is then not handed out again.

    Raises:
        NestedSimulationError: another simulation runs.
        SimDeviceError: work failed when it ran at the end.
    """
    register()
    asked = Schedule.parse(schedule) if isinstance(schedule, str) else schedule
    if DEVICE.simulation is not DEVICE.default:
        running = str(DEVICE.simulation.schedule)
        raise NestedSimulationError(running=running, asked=str(asked))
    DEVICE.default.drain()
    simulation = DEVICE.simulation = Simulation(asked, check_races=check_races)
    try:
        with watched_host(simulation):
            yield simulation
            simulation.drain()
    except BaseException as error:
        error.add_note(f"schedule {asked}: replay by simulate({str(asked)!r})")
        raise
    else:
        _require_starved(simulation)
    finally:
        simulation.close()
        DEVICE.simulation = DEVICE.default


def _require_starved(simulation: Simulation) -> None:
    """Warn where no stream had the number that starves."""
    starved, streams = simulation.schedule.starved, sorted(simulation.engine.queues)
    if starved is not None and starved not in streams:
        message = (
            f"schedule {simulation.schedule} starved no stream; the number of one that the run has "
            f"was expected: {', '.join(map(str, streams))}. Starve one of these, or run it eager, "
            f"which is the same order."
        )
        # The caller's `with` block: below it are contextlib and the function above.
        warnings.warn(message, StarvationWarning, stacklevel=4)
