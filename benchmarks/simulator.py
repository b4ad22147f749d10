"""What an operator costs on the simulated device, beside the same on torch's CPU.

`python benchmarks/simulator.py` prints microseconds an operator, in processor time, because a
shared machine has other things to do. The mix is that of a decode step of a tiny model, so the
arithmetic itself is next to nothing. Rounds of all cases take turns. The first operator of a
process is not in it: torch imports two of its own packages then, for about four seconds.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch.nn import functional

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from backend_caps.simulator import Simulation, register, simulate
from benchmarks.recorded import Ratio, Record, keep, path_asked

NUM_OPS = 12
STEPS = 20
ROUNDS = 15
GOAL_US = 100
Step = Callable[[], None]
CASES = ("eager", "lazy", "random:1", "eager, races", "lazy, races")


def make_step(device: str) -> Step:
    """Make twelve operators, two of them views, on tensors of four rows."""
    rows = torch.arange(4, device=device)
    hidden = torch.ones(4, 64, device=device)
    weight = torch.ones(64, 64, device=device)

    def step() -> None:
        projected = functional.linear(hidden, weight)
        gated = functional.silu(projected + hidden)
        heads = gated.view(4, 8, 8).transpose(0, 1)
        gathered = torch.index_select(gated, 0, rows)
        hidden.copy_(gathered)
        both = torch.cat((gathered, gated))
        both.argmax(-1)
        heads.sum(-1).mul_(2)
        rows.add_(1).sub_(1)

    return step


def run_steps(device: str) -> float:
    """Return microseconds an operator, the run of all that was launched included."""
    step = make_step(device)
    step()
    start = time.process_time()
    for _ in range(STEPS):
        step()
    if device == "sim":
        torch.get_device_module("sim").synchronize()
    return (time.process_time() - start) / STEPS / NUM_OPS * 1e6


def run_case(case: str) -> float:
    """Return microseconds an operator under a schedule, the search for races included."""
    word, _, races = case.partition(", ")
    with simulate(word, check_races=bool(races)) as simulation:
        cost_us = run_steps("sim")
    return cost_us + judging_us(simulation)


def judging_us(simulation: Simulation) -> float:
    """Return microseconds an operator that the search for races takes after the run."""
    start = time.process_time()
    assert simulation.races == (), simulation.races
    return (time.process_time() - start) / simulation.counts.num_ops * 1e6


def main() -> None:
    """Print a table, and keep the ratios to the CPU's where it is asked for."""
    path = path_asked(__doc__)
    torch.set_num_threads(1)
    register()
    rounds: dict[str, list[float]] = {case: [] for case in ("cpu", *CASES)}
    run_case(CASES[0])
    for _ in range(ROUNDS):
        rounds["cpu"].append(run_steps("cpu"))
        for case in CASES:
            rounds[case].append(run_case(case))
    print(f"{'us an operator':16}{'median':>8}{'fastest':>9}   goal")
    for case, costs in rounds.items():
        goal = f"<= {GOAL_US}" if case == "eager" else ""
        print(f"{case:16}{statistics.median(costs):8.1f}{min(costs):9.1f}   {goal}".rstrip())
    found = Record(
        compares="processor time of an operator on the simulated device / the same on torch's CPU",
        ratios=tuple(_ratio(case, rounds) for case in CASES),
    )
    keep(found, "simulator", path)


def _ratio(case: str, rounds: dict[str, list[float]]) -> Ratio:
    told = f"{statistics.median(rounds[case]):.0f} us an operator"
    return Ratio.from_rounds(case, rounds[case], rounds["cpu"], told)


if __name__ == "__main__":
    main()
