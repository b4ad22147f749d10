"""A trace of which one engine runs the prompts, and another one all that follows.

The second one has the trace's times, aborts and room: requests enter rows and pages of others that
have just left, while a step of theirs is under way.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Literal

from backend_caps.relay.streams import DeviceStreams
from backend_caps.runtime.disaggregation import Handover
from backend_caps.runtime.engine import Engine
from backend_caps.runtime.request import Request
from backend_caps.runtime.stats import EveryObserver, StepObserver
from backend_caps.simulator.device import simulate
from tests.races.cases import Case, Finding, collect_cycles, findings_after
from tests.races.engine_runs import (
    Watch,
    left_over,
    oracle,
    oracle_of_drafts,
    play,
    traits_of,
    wrong_tokens,
)
from tests.races.engine_setup import draft_of, model_of, options_of, plan_of
from tests.races.traces import Trace


def handed_trace(seed: int) -> Trace:
    """Draw a trace: half of them draft, and the others' decode steps are replayed.

    Only behind a replay, which marks its last read of the page table, is the next batch built while
    a forward still writes.
    """
    return Trace.drafting(seed) if seed % 2 else Trace.drawn(seed, replays=True)


def run_handovers(case: Case, folder: Path) -> tuple[Finding, ...]:
    """Run the trace of a case's seed by two engines, and list what is wrong."""
    trace = handed_trace(case.seed)
    expected = oracle(trace, folder)
    right = None if trace.speculation is None else oracle_of_drafts(trace, folder)
    watch = Watch()
    with simulate(case.schedule, check_races=case.checks_races) as simulation:
        prefill = _half(trace, "prefill", folder, EveryObserver(()))
        decode = _half(trace, "decode", folder, watch.accepts)
        submit = partial(_take_over, decode, _run_prompts(trace, prefill))
        requests = play(trace, decode, watch, submit)
        found = list(wrong_tokens(trace, requests, expected))
        for engine in (prefill, decode):
            engine.drain()
            found += left_over(engine, simulation)
        found += watch.findings(right)
        watch.boundaries.clear()
    del prefill, decode, engine, requests, submit
    collect_cycles()
    return (*found, *findings_after(simulation))


def _half(
    trace: Trace, mode: Literal["prefill", "decode"], folder: Path, observer: StepObserver
) -> Engine:
    """Make an engine that does its part of a trace, with what the host knows in that trace."""
    plan = plan_of(trace)
    flags = plan.flags.model_copy(update={"disaggregation_mode": mode})
    return Engine.from_plan(
        model_of(trace, folder),
        replace(plan, flags=flags),
        "sim",
        options=options_of(trace),
        draft_model_path=draft_of(trace, folder),
        observer=observer,
        streams=DeviceStreams("sim", traits_of(trace)),
    )


def _run_prompts(trace: Trace, engine: Engine) -> Mapping[int, Handover]:
    """Run all prompts, side by side; return what each leaves, by its place in the trace."""
    ways = [engine.hand_over([own.prompt], own.sampling) for own in trace.asked]
    return {place: next(way) for place, way in enumerate(ways)}


def _take_over(engine: Engine, handovers: Mapping[int, Handover], place: int) -> Request:
    return engine.take_over(handovers[place])
