"""Step times on a device with streams: overlapped beside plain, and the three mirrors side by side.

`python benchmarks/gpu.py [--device cuda] [--json PATH]` measures on one device, side by side in one
run, sides taking turns:

* **loops**: wall time of a decode step of a real engine, overlapped and plain, eager and replayed.
* **mirror**: wall time of an overlapped speculative step through the FutureMap, with what the host
  is told of lengths being EXACT, UPPER_BOUND and NONE, and how long the host stood still for it.
  The relay is real; verify and draft-extend are matrix products, and what they accept is made up.

The JSON names hardware and versions. Keep it under benchmarks/results/.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from time import perf_counter

import torch

from backend_caps import HostSeqLens, Plan, ServerFlags, discover, resolve
from backend_caps.relay import DeviceStreams, DraftShape, FutureMap, RelayPayload, StepStreams
from backend_caps.runtime.engine import Engine
from backend_caps.runtime.model import random_llama
from backend_caps.runtime.options import EngineOptions
from backend_caps.runtime.request import Sampling
from backend_caps.startup.rehearsal import RehearsalBatch, RehearsalSpecInfo

BATCHES = (1, 32, 256)
STEPS = 100
WARM_UP = 20
PROMPT = 16
ACCEPT = 4
POOL = 4096
WORK = 2048
"""Rows of the matrices that stand for a speculative forward."""

LOOPS: Mapping[str, list[str]] = {
    "plain eager": ["--disable-overlap-schedule", "--disable-cuda-graph"],
    "overlapped eager": ["--disable-cuda-graph"],
    "plain replayed": ["--disable-overlap-schedule"],
    "overlapped replayed": [],
}


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


@dataclass
class Side:
    """A way of running a step, and what it took."""

    name: str
    step: Callable[[], object]
    step_us: list[float] = field(default_factory=list)
    wait_us: list[float] = field(default_factory=list)


def main() -> int:
    """Measure, print, and write the JSON where it is asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--steps", type=int, default=STEPS)
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        print("no CUDA device: nothing was measured", file=sys.stderr)
        return 2
    found = [*loops(device, arguments.steps), *mirrors(device, arguments.steps)]
    for own in found:
        waits = "" if own.host_wait_us is None else f"  host waited {own.host_wait_us:.0f} us"
        print(
            f"{own.comparison:<8} {own.side:<20} batch {own.batch_size:>4}  "
            f"{own.step_us:>8.0f} us  x {own.ratio:.2f}{waits}"
        )
    if arguments.json is not None:
        document = {"benchmark": "gpu", **machine(device), "rows": [asdict(own) for own in found]}
        arguments.json.write_text(json.dumps(document, indent=2) + "\n")
    return 0


def loops(device: torch.device, steps: int) -> list[Timing]:
    """Compare the two loops of the engine."""
    found: list[Timing] = []
    with tempfile.TemporaryDirectory() as folder:
        random_llama(
            folder, hidden_size=1024, num_layers=8, num_heads=16, num_kv_heads=4, vocab_size=32000
        )
        for batch_size in BATCHES:
            sides = [
                Side(name, started(Path(folder), device, batch_size, argv, steps).step)
                for name, argv in LOOPS.items()
            ]
            found += compared("loops", sides, batch_size, steps, device)
    return found


def mirrors(device: torch.device, steps: int) -> list[Timing]:
    """Compare what the host is told of lengths."""
    found: list[Timing] = []
    for batch_size in BATCHES:
        made = [SpeculativeLoop(device, level, batch_size) for level in HostSeqLens]
        sides = [Side(own.level.value, own.step) for own in made]
        for side, own in zip(sides, made, strict=True):
            own.wait_us = side.wait_us
        found += compared("mirror", sides, batch_size, steps, device)
    return found


def compared(
    comparison: str, sides: list[Side], batch_size: int, steps: int, device: torch.device
) -> list[Timing]:
    """Run the sides in turns, several steps each, and take medians."""
    module = torch.get_device_module(device)
    rounds, burst = steps // 10, 10
    for number in range(WARM_UP // burst + rounds):
        for side in sides if number % 2 else reversed(sides):
            module.synchronize()
            began_s = perf_counter()
            for _ in range(burst):
                side.step()
            module.synchronize()
            side.step_us.append((perf_counter() - began_s) / burst * 1e6)
    skipped = WARM_UP // burst
    medians = [statistics.median(side.step_us[skipped:]) for side in sides]
    return [
        Timing(
            comparison=comparison,
            side=side.name,
            batch_size=batch_size,
            step_us=median,
            ratio=median / medians[0],
            host_wait_us=statistics.median(side.wait_us) if side.wait_us else None,
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
    engine = Engine(folder, plan, device, options=options)
    sampling = Sampling(max_new_tokens=max_new_tokens, stop_token_ids=frozenset())
    for number in range(batch_size):
        engine.submit([1 + (number + place) % 50 for place in range(PROMPT)], sampling)
    engine.step()
    return engine


def plan_of(argv: list[str]) -> Plan:
    """Resolve the plan of a server on the backend that replays."""
    registry = discover()
    flags = ServerFlags.from_argv(["--attention-backend", "torch_padded", *argv])
    rules = registry.rules("sglang-0.5.23")
    return resolve(registry.uses(flags), flags, rules=rules, policy="quiet")


class SpeculativeLoop:
    """An overlapped speculative loop around a real FutureMap and stand-ins for its forwards."""

    def __init__(self, device: torch.device, level: HostSeqLens, batch_size: int) -> None:
        self.level = level
        self.wait_us: list[float] = []
        self.streams = DeviceStreams(device)
        self.on = StepStreams.drawn_from(self.streams)
        self.relay = FutureMap(
            pool_size=POOL,
            device=device,
            host_seq_lens=level,
            speculative=True,
            draft=DraftShape(topk=4, hidden_size=1024, dtype=torch.bfloat16, accept_tokens=ACCEPT),
            streams=self.streams,
        )
        rows_cpu = torch.arange(1, batch_size + 1)
        rows, lens = rows_cpu.to(device), torch.full((batch_size,), PROMPT, device=device)
        self.batch = RehearsalBatch(
            req_pool_indices=rows,
            req_pool_indices_cpu=rows_cpu,
            seq_lens=lens,
            seq_lens_cpu=None,
            seq_lens_sum=None,
            spec_info=RehearsalSpecInfo(),
        )
        self.accepted = torch.randint(1, ACCEPT + 1, (batch_size,)).to(device)
        self.payload = RelayPayload(
            bonus_tokens=torch.ones_like(rows),
            topk_p=torch.rand(batch_size, 4).to(device),
            topk_index=torch.zeros(batch_size, 4, dtype=torch.int64, device=device),
            hidden_states=torch.zeros(batch_size, 1024, dtype=torch.bfloat16, device=device),
        )
        self.work = torch.rand(WORK, WORK).to(device)
        self.relay.publish(rows, lens)
        self.relay.stash(rows, self.payload)
        self.relay.commit_lengths(rows_cpu, lens.cpu(), torch.ones_like(rows_cpu))
        self.streams.synchronize()

    def step(self) -> None:
        """Prepare and launch one step, and leave the schedule stream behind it."""
        with self.streams.using(self.on.schedule):
            began_s = perf_counter()
            self.relay.resolve_seq_lens_cpu(self.batch)
            self.wait_us.append((perf_counter() - began_s) * 1e6)
            self.on.forward.wait_stream(self.on.schedule)
            with self.streams.using(self.on.forward):
                self._forward()
            self.on.schedule.wait_stream(self.on.forward)

    def _forward(self) -> None:
        batch = self.batch
        self.relay.resolve_future(batch)
        for _ in range(4):
            torch.mm(self.work, self.work)
        self.relay.publish(batch.req_pool_indices, batch.seq_lens + self.accepted)
        for _ in range(2):
            torch.mm(self.work, self.work)
        self.relay.stash(batch.req_pool_indices, self.payload)


def machine(device: torch.device) -> dict[str, object]:
    """Name hardware and versions."""
    found: dict[str, object] = {
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
