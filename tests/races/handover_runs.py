"""A trace of which one engine runs the prompts, and another one all that follows.

The second one has the trace's times, aborts and room: requests enter rows and pages of others that
have just left, while a step of theirs is under way.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path

from backend_caps.relay import DeviceStreams
from backend_caps.runtime import Engine, Handover, Request
from backend_caps.simulator import simulate
from tests.races import engine_runs
from tests.races.cases import Case, Finding, collect_cycles, findings_after
from tests.races.engine_setup import make_engine
from tests.races.traces import Trace


def run_handovers(case: Case, folder: Path) -> tuple[Finding, ...]:
    """Run the trace of a case's seed by two engines, and list what is wrong."""
    trace = engine_runs.trace_of(case)
    expected = engine_runs.oracle(trace, folder)
    right = None if trace.speculation is None else engine_runs.oracle_of_drafts(trace, folder)
    watch = engine_runs.Watch()
    with simulate(case.schedule, check_races=case.checks_races) as simulation:
        one, other = (DeviceStreams("sim", engine_runs.traits_of(trace)) for _ in range(2))
        prefill = make_engine(trace, folder, mode="prefill", streams=one)
        decode = make_engine(trace, folder, mode="decode", observer=watch.accepts, streams=other)
        submit = partial(_take_over, decode, _run_prompts(trace, prefill))
        requests = engine_runs.play(trace, decode, watch, submit)
        found = list(engine_runs.wrong_tokens(trace, requests, expected))
        for engine in (prefill, decode):
            engine.drain()
            found += engine_runs.left_over(engine, simulation)
        found += watch.findings(right)
        watch.boundaries.clear()
    del prefill, decode, engine, requests, submit
    collect_cycles()
    return (*found, *findings_after(simulation))


def _run_prompts(trace: Trace, engine: Engine) -> Mapping[int, Handover]:
    """Run all prompts, side by side; return what each leaves, by its place in the trace."""
    ways = [engine.hand_over([own.prompt], own.sampling) for own in trace.asked]
    return {place: next(way) for place, way in enumerate(ways)}


def _take_over(engine: Engine, handovers: Mapping[int, Handover], place: int) -> Request:
    return engine.take_over(handovers[place])
