"""An engine that ends in the middle of its work: a step of it fails, or it is deleted.

Nothing of it may be freed under a step that runs, so when either is over the device has nothing
left to do.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from backend_caps.runtime.engine import Engine
from backend_caps.runtime.stats import NoObserver, StepStats
from backend_caps.simulator.device import simulate
from backend_caps.simulator.queues import Op
from backend_caps.simulator.simulation import Simulation
from tests.races.cases import Case, Fault, Finding
from tests.races.engine_runs import trace_of
from tests.races.left_over import collect_cycles, findings_after
from tests.races.setting import options_of, plan_of

_NUM_STEPS = 3


class StepFailedError(Exception):
    """What an observer raises in the middle of a step."""


@dataclass(slots=True)
class FailingObserver:
    """Let some steps pass, and fail at the next one."""

    num_left: int = _NUM_STEPS

    def observe(self, stats: StepStats) -> None:  # noqa: ARG002 - it fails whatever they are
        """Count a step."""
        self.num_left -= 1
        if not self.num_left:
            raise StepFailedError


def run_ended(case: Case, folder: Path) -> tuple[Finding, ...]:
    """Fail a step where the seed is even, else delete the engine, and list what is wrong."""
    trace, fails = trace_of(case), case.seed % 2 == 0
    with simulate(case.schedule, check_races=case.checks_races) as simulation:
        observer = FailingObserver() if fails else NoObserver()
        engine = Engine.from_plan(
            folder, plan_of(trace), "sim", options=options_of(trace), observer=observer
        )
        for own in trace.asked:
            engine.submit(own.prompt, own.sampling)
        try:
            for _ in range(_NUM_STEPS if not fails else 10 * _NUM_STEPS):
                engine.step()
        except StepFailedError:
            found = [*_still_running(simulation)]
            del engine
        else:
            del engine
            collect_cycles()
            found = [*_still_running(simulation)]
    return (*found, *findings_after(simulation))


def _still_running(simulation: Simulation) -> Iterator[Finding]:
    """Tell of operators that have not run; the poisoning of what was freed is none."""
    items = [item for queue in simulation.engine.queues.values() for item in queue.items]
    operators = [item.name for item in items if isinstance(item, Op) and item.name != "free"]
    if operators:
        what = f"{len(operators)} operators run on, {operators[0]} first"
        yield Finding(fault=Fault.LEAK, what=what)
