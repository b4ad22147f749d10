"""What a Triton kernel costs on the simulated device, beside an operator and an interpreted run.

`python benchmarks/kernels.py` prints microseconds in processor time, because a shared machine has
other things to do. A launch puts work on a stream and runs none of it; a run is of rows of a
softmax, in 64 programs, from their launch to their end. Rounds of both sides take turns.

Triton decides between its compiler and its interpreter for a process, so the interpreted runs are
those of a child process, which answers a line for each round.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from backend_caps.simulator import register, simulate
from benchmarks.recorded import Ratio, Record, keep, path_asked
from tests.simulator.kernels.interpreted import softmax

LAUNCHES = 500
ROWS, COLUMNS = 64, 100
ROUNDS = 15
_CHILD = "--interpreted"


def launches_us(launch: Callable[[], object]) -> float:
    """Return microseconds a launch, of many that the lazy schedule leaves in their queue."""
    start = time.process_time()
    for _ in range(LAUNCHES):
        launch()
    cost_us = (time.process_time() - start) / LAUNCHES * 1e6
    torch.get_device_module("sim").synchronize()
    return cost_us


def launch_round() -> tuple[float, float]:
    """Return microseconds a launch of a kernel, and of an operator."""
    with simulate("lazy"):
        rows = torch.ones(ROWS, COLUMNS, device="sim")
        out = torch.empty_like(rows)
        kernel = launches_us(lambda: softmax[(ROWS,)](rows, out, COLUMNS, BLOCK=128))
        return kernel, launches_us(lambda: rows + out)


def run_us(device: str) -> float:
    """Return microseconds of a kernel's launch and run, of `ROWS` programs."""
    rows = torch.randn(ROWS, COLUMNS, device=device)
    out = torch.empty_like(rows)
    start = time.process_time()
    softmax[(ROWS,)](rows, out, COLUMNS, BLOCK=128)
    cost_us = (time.process_time() - start) * 1e6
    assert torch.allclose(out.cpu(), rows.cpu().softmax(-1), atol=1e-6), "it computes a softmax"
    return cost_us


@contextmanager
def interpreter() -> Iterator[Callable[[], float]]:
    """Yield what runs a round in a child process, under Triton's interpreter."""
    with subprocess.Popen(
        [sys.executable, __file__, _CHILD],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as child:
        assert child.stdin is not None, "it is a pipe"
        assert child.stdout is not None, "it is a pipe"

        asked, answers = child.stdin, child.stdout

        def run() -> float:
            print(file=asked, flush=True)
            return float(answers.readline())

        yield run
        asked.close()


def answer_rounds() -> None:
    """Run a round for each line of standard input, and print its microseconds."""
    for _ in sys.stdin:
        print(run_us("cpu"), flush=True)


def main() -> None:
    """Print a table, and keep the ratios where it is asked for."""
    path = path_asked(__doc__)
    torch.set_num_threads(1)
    register()
    launch_round()  # compiles
    rounds: dict[str, list[float]] = {"kernel": [], "operator": [], "run": [], "interpreted": []}
    with interpreter() as interpreted:
        interpreted()
        run_us("sim")
        for _ in range(ROUNDS):
            for side, cost in zip(("kernel", "operator"), launch_round(), strict=True):
                rounds[side].append(cost)
            with simulate("eager"):
                rounds["run"].append(run_us("sim"))
            rounds["interpreted"].append(interpreted())
    for side, costs in rounds.items():
        print(f"{side:12}{statistics.median(costs):10.1f} us, fastest {min(costs):.1f}")
    found = Record(
        compares="processor time of a Triton kernel on the simulated device / of the other side",
        ratios=(
            _ratio("a launch / an operator's", rounds["kernel"], rounds["operator"]),
            _ratio("a run / in Triton's interpreter", rounds["run"], rounds["interpreted"]),
        ),
    )
    keep(found, "kernels", path)


def _ratio(what: str, own: list[float], other: list[float]) -> Ratio:
    told = f"{statistics.median(own):,.0f} us and {statistics.median(other):,.0f} us"
    return Ratio.from_rounds(what, own, other, told)


if __name__ == "__main__":
    answer_rounds() if sys.argv[1:] == [_CHILD] else main()
