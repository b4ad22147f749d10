"""Step times on a device with streams: overlapped beside plain, and our relay beside SGLang's.

`python benchmarks/gpu.py [--device cuda] [--json PATH]` measures on one device, side by side in one
run, sides taking turns:

* **loops**: wall time of a decode step of a real engine, overlapped and plain, eager and replayed.
* **mirror**: wall time of an overlapped speculative step through a FutureMap, SGLang 0.5.13's own
  with and without its mirror, and ours with what the host is told of lengths being EXACT,
  UPPER_BOUND and NONE: how long the host stood still for lengths, how long these took from the
  publish to the host, and what the relay launches. The relay is real; verify and draft-extend are
  matrix products, and what they accept is made up.

The JSON names hardware and versions. Keep it under benchmarks/results/. `--device sim` rehearses
all of it on the simulated device, small: counts are right there, and times mean nothing.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from time import perf_counter

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from backend_caps import HostSeqLens, Plan, ServerFlags, discover, resolve
from backend_caps.runtime.engine import Engine
from backend_caps.runtime.model.random_models import random_llama
from backend_caps.runtime.options import EngineOptions
from backend_caps.runtime.request import Sampling
from backend_caps.simulator import DEVICE_NAME, register, simulate
from benchmarks.speculation import (
    MakeRelay,
    NoRelay,
    OurRelay,
    SglangRelay,
    SpeculativeLoop,
    gather_in_one_launch,
)
from benchmarks.watched import Launches, Watched, launches
from tests.upstream.sglang_wheel import Gather, load_gather

STEPS = 100
WARM_UP = 20
BURST = 10
"""Steps that a side takes before the next one has its turn."""
PROMPT = 16
POOLS = (4096, 65536)
"""Of the smaller one our exact mirror is the whole column, and of the larger one the batch."""

BACKENDS = {"cuda": "triton"}
"""Who attends in the loops, where it is not torch itself. Both replay."""
LOOPS: Mapping[str, list[str]] = {
    "plain eager": ["--disable-overlap-schedule", "--disable-cuda-graph"],
    "overlapped eager": ["--disable-cuda-graph"],
    "plain replayed": ["--disable-overlap-schedule"],
    "overlapped replayed": [],
}


@dataclass(frozen=True, kw_only=True)
class Scale:
    """How large all is."""

    batches: tuple[int, ...] = (1, 32, 256)
    hidden_size: int = 1024
    num_layers: int = 8
    num_heads: int = 16
    vocab_size: int = 32000
    dtype: torch.dtype = torch.bfloat16
    """Of the loops' model."""
    work: int = 2048
    """Rows of the matrices that stand for a speculative forward."""


REHEARSAL = Scale(
    batches=(1, 3),
    hidden_size=32,
    num_layers=1,
    num_heads=4,
    vocab_size=64,
    dtype=torch.float32,
    work=4,
)


@dataclass(frozen=True, kw_only=True)
class Timing:
    """One side of a comparison."""

    comparison: str
    side: str
    batch_size: int
    step_us: float
    """Median wall time of a step."""
    ratio: float
    """Of the medians, to the first side's."""
    host_wait_us: float | None = None
    """Median time that the host stood still for lengths."""
    lengths_us: float | None = None
    """Median time from a publish on the device to its lengths on the host."""
    relay_kernels: float | None = None
    """Kernels that the relay launches in a step."""
    relay_copies: float | None = None
    """Copies between host and device that the relay launches in a step."""


@dataclass
class Side:
    """A way of running a step, and what it took."""

    name: str
    step: Callable[[], object]
    step_us: list[float] = field(default_factory=list)


def main() -> int:
    """Measure, print, and write the JSON where it is asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--steps", type=int, default=STEPS)
    arguments = parser.parse_args()
    if arguments.steps < BURST:
        parser.error(f"--steps is {arguments.steps}; {BURST} or more were expected, a side's turn")
    if arguments.device == "cuda" and not torch.cuda.is_available():
        print("no CUDA device: nothing was measured", file=sys.stderr)
        return 2
    with opened(arguments.device) as (device, scale, gather):
        found = [
            *loops(device, arguments.steps, scale),
            *mirrors(device, arguments.steps, scale, gather),
        ]
    for own in found:
        print(
            f"{own.comparison:<13} {own.side:<20} batch {own.batch_size:>4}  "
            f"{own.step_us:>8.0f} us  x {own.ratio:.2f}{extras(own)}"
        )
    if arguments.json is not None:
        said = {**machine(device), "dtype": str(scale.dtype)}
        document = {"benchmark": "gpu", **said, "rows": [asdict(own) for own in found]}
        arguments.json.write_text(json.dumps(document, indent=2) + "\n")
    return 0


@contextmanager
def opened(name: str) -> Iterator[tuple[torch.device, Scale, Gather]]:
    """Give a device, the size of what runs on it, and SGLang's gather for it."""
    if name == DEVICE_NAME:
        device = register()
        with simulate():
            yield device, REHEARSAL, gather_in_one_launch
    else:
        with tempfile.TemporaryDirectory() as folder:
            yield torch.device(name), Scale(), load_gather(Path(folder))


def extras(own: Timing) -> str:
    """Say what was measured beside the time of a step."""
    waits = "" if own.host_wait_us is None else f"  host waited {own.host_wait_us:.0f} us"
    lengths = "" if own.lengths_us is None else f", lengths took {own.lengths_us:.0f} us"
    launched = ""
    if own.relay_kernels is not None:
        launched = f", {own.relay_kernels:.1f} kernels and {own.relay_copies:.1f} copies"
    return f"{waits}{lengths}{launched}"


def loops(device: torch.device, steps: int, scale: Scale) -> list[Timing]:
    """Compare the two loops of the engine."""
    found: list[Timing] = []
    with tempfile.TemporaryDirectory() as folder:
        random_llama(
            folder,
            hidden_size=scale.hidden_size,
            num_layers=scale.num_layers,
            num_heads=scale.num_heads,
            num_kv_heads=scale.num_heads // 4,
            vocab_size=scale.vocab_size,
            dtype=scale.dtype,
        )
        for batch_size in scale.batches:
            backend = ["--attention-backend", BACKENDS.get(device.type, "torch_padded")]
            sides = [
                Side(name, started(Path(folder), device, batch_size, [*backend, *argv], steps).step)
                for name, argv in LOOPS.items()
            ]
            found += compared("loops", sides, batch_size, steps, device)
    return found


def mirrors(device: torch.device, steps: int, scale: Scale, gather: Gather) -> list[Timing]:
    """Compare what the host is told of lengths, by SGLang's map and by ours."""
    found: list[Timing] = []
    for pool_size in POOLS:
        for batch_size in scale.batches:
            made = relays(pool_size, scale.hidden_size, gather)
            found += mirrors_of(device, steps, scale, made, (pool_size, batch_size))
    return found


def relays(pool_size: int, hidden_size: int, gather: Gather) -> dict[str, MakeRelay]:
    """Name the makers of the relays; all is compared with the first."""
    made: dict[str, MakeRelay] = {
        f"sglang {'exact' if mirrors else 'none'}": partial(
            SglangRelay, needs_cpu_seq_lens=mirrors, pool_size=pool_size, gather=gather
        )
        for mirrors in (True, False)
    }
    for level in HostSeqLens:
        made[level.value] = partial(
            OurRelay, host_seq_lens=level, pool_size=pool_size, hidden_size=hidden_size
        )
    return made


def mirrors_of(
    device: torch.device,
    steps: int,
    scale: Scale,
    makers: Mapping[str, MakeRelay],
    place: tuple[int, int],
) -> list[Timing]:
    """Compare relays on one pool and batch."""
    pool_size, batch_size = place
    loops_of = {name: speculating(device, make, batch_size, scale) for name, make in makers.items()}
    sides = [Side(name, loop.step) for name, loop in loops_of.items()]
    timings = compared(f"mirror {pool_size}", sides, batch_size, steps, device)
    alone = launches(device, lambda _streams: NoRelay(), batch_size, scale.hidden_size)
    found = []
    for timing in timings:
        relay = loops_of[timing.side].relay
        launched = launches(device, makers[timing.side], batch_size, scale.hidden_size)
        found.append(with_relay(timing, relay, launched.beside(alone)))
    return found


def speculating(
    device: torch.device, make_relay: MakeRelay, batch_size: int, scale: Scale
) -> SpeculativeLoop[Watched]:
    """Make a loop around a relay that is watched, with matrix products for forwards."""
    work = torch.rand(scale.work, scale.work).to(device)

    def forward(num_products: int) -> None:
        for _ in range(num_products):
            torch.mm(work, work)

    return SpeculativeLoop(
        device,
        lambda streams: Watched(make_relay(streams), streams),
        batch_size,
        hidden=scale.hidden_size,
        verify=partial(forward, 4),
        extend=partial(forward, 2),
    )


def with_relay(timing: Timing, relay: Watched, launched: Launches) -> Timing:
    """Add what was measured of a relay."""
    lengths_us = relay.lengths_us()[WARM_UP:]
    return replace(
        timing,
        host_wait_us=statistics.median(relay.wait_us[WARM_UP:]),
        lengths_us=statistics.median(lengths_us) if lengths_us else None,
        relay_kernels=launched.kernels,
        relay_copies=launched.copies,
    )


def compared(
    comparison: str, sides: list[Side], batch_size: int, steps: int, device: torch.device
) -> list[Timing]:
    """Run the sides in turns, several steps each, and take medians."""
    module = torch.get_device_module(device)
    skipped = WARM_UP // BURST
    for number in range(skipped + steps // BURST):
        for side in sides if number % 2 else reversed(sides):
            module.synchronize()
            began_s = perf_counter()
            for _ in range(BURST):
                side.step()
            module.synchronize()
            side.step_us.append((perf_counter() - began_s) / BURST * 1e6)
    medians = [statistics.median(side.step_us[skipped:]) for side in sides]
    return [
        Timing(
            comparison=comparison,
            side=side.name,
            batch_size=batch_size,
            step_us=median,
            ratio=median / medians[0],
        )
        for side, median in zip(sides, medians, strict=True)
    ]


def started(
    folder: Path, device: torch.device, batch_size: int, argv: list[str], steps: int
) -> Engine:
    """Make an engine with so many requests, which do not end while they are measured."""
    max_new_tokens = WARM_UP + steps + 32
    context = PROMPT + max_new_tokens
    options = EngineOptions(
        max_running_requests=batch_size,
        max_total_tokens=batch_size * context,
        max_prefill_tokens=batch_size * PROMPT,
        graph_batch_sizes=(batch_size,),
    )
    plan = plan_of(["--context-length", str(context), *argv])
    engine = Engine.from_plan(folder, plan, device, options=options)
    sampling = Sampling(max_new_tokens=max_new_tokens, stop_token_ids=frozenset())
    for number in range(batch_size):
        engine.submit([1 + (number + place) % 50 for place in range(PROMPT)], sampling)
    engine.step()
    return engine


def plan_of(argv: list[str]) -> Plan:
    """Resolve the plan of a server."""
    registry = discover()
    flags = ServerFlags.from_argv(argv)
    rules = registry.rules("sglang-0.5.23")
    return resolve(registry.uses(flags), flags, rules=rules, policy="quiet")


def machine(device: torch.device) -> dict[str, object]:
    """Name hardware and versions."""
    found: dict[str, object] = {
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "device": device.type,
        "torch": torch.__version__,
        "python": platform.python_version(),
    }
    if device.type == "cuda":
        found["hardware"] = torch.cuda.get_device_name(device)
        found["cuda"] = torch.version.cuda
    return found


if __name__ == "__main__":
    sys.exit(main())
