"""Steps as a scheduler would tell of them, with times that are easy to add up."""

from __future__ import annotations

from backend_caps.runtime.batch import ForwardMode
from backend_caps.runtime.stats import StepClock, StepStats
from backend_caps.startup.graph_modes import GraphMode


def clock(began_s: float = 0.0) -> StepClock:
    """Tell of a step of 11 s: 4 s of the model, 2 s in flight, 0.5 s of them waited."""
    return StepClock(
        began_s=began_s,
        built_s=began_s + 0.5,
        lengths_s=began_s + 1.0,
        model_s=began_s + 2.0,
        model_done_s=began_s + 6.0,
        launched_s=began_s + 8.0,
        result_s=began_s + 9.5,
        tokens_s=began_s + 10.0,
        done_s=began_s + 11.0,
    )


def step(
    mode: ForwardMode = ForwardMode.DECODE,
    *,
    began_s: float = 0.0,
    num_made: int = 2,
    num_running: int = 2,
    num_waiting: int = 3,
    num_retracted: int = 0,
    total_seq_lens: int = 30,
    waits_for_lengths: bool = False,
    graph_mode: GraphMode = GraphMode.EAGER,
    in_halves: bool = False,
) -> StepStats:
    """Tell of a step of two requests."""
    return StepStats(
        mode=mode,
        num_requests=2,
        num_tokens=2,
        num_made=num_made,
        num_running=num_running,
        num_waiting=num_waiting,
        num_retracted=num_retracted,
        total_seq_lens=total_seq_lens,
        waits_for_lengths=waits_for_lengths,
        bytes_to_host=16,
        bytes_to_device=48,
        graph_mode=graph_mode,
        in_halves=in_halves,
        clock=clock(began_s),
    )
