"""The host's time per decode step outside the model: overlapped beside plain, on a CPU.

`python benchmarks/runtime.py [--json PATH]` prints, for each batch size, the median host time of a
decode step outside the model in both loops, the median of the steps' own ratios, and the share of
it that the FutureMap's calls take. Both engines take turns step by step. The model is as small as
a model can be: its time is taken off, and what is left is building the batch, launching it and
processing its result.

On a CPU nothing overlaps: the ratio says what the overlapped loop costs the host, not what it
gains. That only a device with streams can show.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from backend_caps import Plan, ServerFlags, discover, resolve
from backend_caps.relay import FutureMap
from backend_caps.resolution.engine import RUNTIME
from backend_caps.runtime.batch import ForwardMode
from backend_caps.runtime.engine import Engine
from backend_caps.runtime.model.random_models import random_llama
from backend_caps.runtime.options import EngineOptions
from backend_caps.runtime.request import Sampling
from backend_caps.runtime.stats import StepStats
from benchmarks.recorded import Ratio, Record, keep, path_asked

BATCHES = (1, 32, 256)
STEPS = 200
WARM_UP = 40
PROMPT = 8
RELAY_CALLS = ("resolve_seq_lens_cpu", "set_input_ids_sentinel", "resolve_future", "stash")


@dataclass
class Seen:
    """The decode steps of one engine."""

    host_us: list[float] = field(default_factory=list)
    relay_us: list[float] = field(default_factory=list)
    relay_s: float = 0.0
    """Spent in the relay since the last step was processed."""

    def observe(self, stats: StepStats) -> None:
        """Take in a step."""
        relay_s, self.relay_s = self.relay_s, 0.0
        if stats.mode is ForwardMode.DECODE:
            self.host_us.append(stats.host_s * 1e6)
            self.relay_us.append(relay_s * 1e6)


@dataclass(frozen=True, kw_only=True)
class Row:
    """One batch size."""

    batch_size: int
    plain_us: float
    overlapped_us: float
    found: Ratio
    """Overlapped to plain."""
    relay_share: float
    """Of the overlapped step's host time."""


def main() -> None:
    """Print the table, and write it where it is asked for."""
    path = path_asked(__doc__)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        random_llama(Path(folder), seed=0)
        rows = [measure(Path(folder), size) for size in BATCHES]
    print("host time of a decode step outside the model, median")
    print(f"{'batch':>6} {'plain':>9} {'overlapped':>11} {'ratio':>6} {'FutureMap':>10}")
    for row in rows:
        print(
            f"{row.batch_size:>6} {row.plain_us:>6.0f} us {row.overlapped_us:>8.0f} us "
            f"{row.found.ratio:>6.2f} {row.relay_share:>10.0%}"
        )
    compares = "the host's time for a decode step outside the model, overlapped / the same, plain"
    keep(Record(compares=compares, ratios=tuple(row.found for row in rows)), "runtime", path)


def measure(folder: Path, batch_size: int) -> Row:
    """Run both loops side by side on so many requests."""
    plain, overlapped = Seen(), Seen()
    engines = [
        started(folder, batch_size, ["--disable-overlap-schedule"], plain),
        started(folder, batch_size, [], overlapped),
    ]
    for number in range(WARM_UP + STEPS):
        for engine in engines if number % 2 else reversed(engines):
            engine.step()
    num_steps = min(len(overlapped.host_us), len(plain.host_us))
    ours, theirs = (side.host_us[WARM_UP:num_steps] for side in (overlapped, plain))
    overlapped_us, plain_us = statistics.median(ours), statistics.median(theirs)
    relay_share = statistics.median(overlapped.relay_us[WARM_UP:]) / overlapped_us
    told = f"{overlapped_us:.0f} us and {plain_us:.0f} us; the FutureMap's share {relay_share:.0%}"
    return Row(
        batch_size=batch_size,
        plain_us=plain_us,
        overlapped_us=overlapped_us,
        found=Ratio.from_rounds(f"batch of {batch_size}", ours, theirs, told),
        relay_share=relay_share,
    )


def started(folder: Path, batch_size: int, argv: list[str], seen: Seen) -> Engine:
    """Make an engine with so many requests, which do not end while they are measured."""
    max_new_tokens = WARM_UP + STEPS + 8
    options = EngineOptions(
        max_running_requests=batch_size,
        max_total_tokens=batch_size * (PROMPT + max_new_tokens),
        max_prefill_tokens=batch_size * PROMPT,
    )
    engine = Engine.from_plan(folder, plan_of(argv), "cpu", options=options, observer=seen)
    time_relay(engine.relay, seen)
    sampling = Sampling(max_new_tokens=max_new_tokens, stop_token_ids=frozenset())
    for number in range(batch_size):
        engine.submit([1 + (number + place) % 50 for place in range(PROMPT)], sampling)
    return engine


def plan_of(argv: list[str]) -> Plan:
    """Resolve the plan of a server on the backend that needs the lengths."""
    registry = discover()
    flags = ServerFlags.from_argv(["--attention-backend", "torch_native", *argv])
    uses = registry.uses(flags)
    return resolve(uses, flags, rules=registry.rules(RUNTIME), policy="quiet")


def time_relay(relay: FutureMap, seen: Seen) -> None:
    """Time every call of a relay."""
    for name in RELAY_CALLS:
        setattr(relay, name, timed(getattr(relay, name), seen))


def timed(call: Callable[..., object], seen: Seen) -> Callable[..., object]:
    """Add what a call takes to `seen`."""

    def run(*args: object) -> object:
        with timing(seen):
            return call(*args)

    return run


@contextmanager
def timing(seen: Seen) -> Iterator[None]:
    """Add what a `with` block takes to `seen`."""
    began_s = perf_counter()
    yield
    seen.relay_s += perf_counter() - began_s


if __name__ == "__main__":
    main()
    sys.exit()
