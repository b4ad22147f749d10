"""Engines of which something fails: a step, the whole engine, or a forward that is timed.

Where a step fails, or the engine is deleted while one runs, nothing of it may be freed under that
step: when either is over the device has nothing left to do. Chunks are timed before the first
request; one forward fails when all of it is enqueued.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from backend_caps.runtime import Engine, ForwardBatch, StepStats
from backend_caps.runtime.chunk_sizes import ChunkProfiler
from backend_caps.runtime.step import StepOutput, Worker
from backend_caps.simulator import Simulation, simulate
from backend_caps.simulator.queues import Op
from tests.races.cases import Case, Fault, Finding, collect_cycles, findings_after
from tests.races.engine_runs import oracle, trace_of, wrong_tokens
from tests.races.engine_setup import make_engine
from tests.races.traces import VOCAB_SIZE, Trace

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
        engine = make_engine(trace, folder, observer=FailingObserver() if fails else None)
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


_SIZES = (8, 4, 2)


class ChunkFailedError(Exception):
    """The last forward of a profile."""


class FailingWorker(Worker):
    """Run forwards; the last one fails behind its launch, as a kernel's own check does."""

    def forward(self, batch: ForwardBatch) -> StepOutput:
        """Enqueue a forward."""
        output = super().forward(batch)
        if batch.num_tokens == _SIZES[-1]:
            raise ChunkFailedError
        return output


@dataclass(slots=True)
class IdleClock:
    """A clock that is only to be read while the device has nothing to do."""

    simulation: Simulation
    found: list[Finding] = field(default_factory=list)

    def __call__(self) -> float:
        """Read the clock."""
        num_items = sum(len(q.items) for q in self.simulation.engine.queues.values())
        if num_items:
            what = f"the clock was read with {num_items} items of device work left"
            self.found.append(Finding(fault=Fault.VALUE, what=what))
        return 0.0


def run_profiled(case: Case, folder: Path) -> tuple[Finding, ...]:
    """Profile, then run the trace of a case's seed, and list what is wrong."""
    drawn = Trace.drawn(case.seed)
    trace = replace(drawn, asked=tuple(replace(own, aborted_at=None) for own in drawn.asked))
    expected = oracle(trace, folder)
    with simulate(case.schedule, check_races=case.checks_races) as simulation:
        engine = make_engine(trace, folder)
        found = _profile(engine, simulation)
        requests = [engine.submit(own.prompt, own.sampling) for own in trace.asked]
        engine.drain()
        found += wrong_tokens(trace, requests, expected)
    del engine
    return (*found, *findings_after(simulation))


def _profile(engine: Engine, simulation: Simulation) -> list[Finding]:
    clock = IdleClock(simulation)
    worker = FailingWorker(engine.model, engine.backends, {})
    profiler = ChunkProfiler(worker.forward, engine.resources, VOCAB_SIZE, clock)
    try:
        for size in _SIZES:
            profiler.time_chunk(size)
    except ChunkFailedError:
        return clock.found
    return [Finding(fault=Fault.HOST, what="the last forward did not fail")]
