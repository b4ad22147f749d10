"""Steps as a scheduler would tell of them, with times that are easy to add up."""

from __future__ import annotations

from dataclasses import replace

from backend_caps.runtime.batch import ForwardMode
from backend_caps.runtime.stats import StepClock, StepStats
from backend_caps.startup.graph_modes import GraphMode


def clock(began_s: float = 0.0) -> StepClock:
    """Tell of a step of 11 s: 4 s of the model, 2 s in flight, 0.5 s of them waited."""
    stations = (0.0, 0.5, 1.0, 2.0, 6.0, 8.0, 9.5, 10.0, 11.0)
    return StepClock(*(began_s + own for own in stations))  # type: ignore[arg-type] # times alone


def step(
    mode: ForwardMode = ForwardMode.DECODE, *, began_s: float = 0.0, **changes: object
) -> StepStats:
    """Tell of a step of two requests."""
    own = StepStats(
        mode=mode,
        num_requests=2,
        num_tokens=2,
        num_made=2,
        num_running=2,
        num_waiting=3,
        num_retracted=0,
        total_seq_lens=30,
        waits_for_lengths=False,
        bytes_to_host=16,
        bytes_to_device=48,
        graph_mode=GraphMode.EAGER,
        in_halves=False,
        clock=clock(began_s),
    )
    return replace(own, **changes)  # type: ignore[arg-type] # of any field
