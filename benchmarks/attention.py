"""Decode attention of the installed backends, side by side, and how near memory's limit it comes.

`python benchmarks/attention.py [--device cuda] [--json PATH]` runs one layer's decode attention of
every installed backend that is declared for the device, over a paged cache whose pages lie at
random, beside torch's own attention over a cache in plain order. Sides take turns.

A decode step has to read every key and value of its contexts once, so **of limit** is what that
takes at the bandwidth of a large copy on the same device in the same run, over what it took. Steps
are launched one by one, and not replayed: where that limit is below what the host needs for a
launch, some 100 us, the host is what is timed; and contexts that fit into the device's cache need
not be read from memory at all. So the largest sizes tell about kernels, the smallest do not. A side
that cannot run is listed with its reason. `--device cpu` rehearses all of it, small: ratios of the
CPU are not kept.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from itertools import product
from pathlib import Path
from time import perf_counter

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from backend_caps import Facts, Phase, Role, Use, discover
from backend_caps.kit.scenes import Pools, layer_of
from backend_caps.runtime.attention import AttentionBackend
from backend_caps.runtime.batch import ForwardMode
from backend_caps.runtime.forward_batch import ForwardBatch
from backend_caps.runtime.model.layers import AttentionLayer
from backend_caps.startup.configuration import load_implementation
from benchmarks.gpu import machine

ROUNDS = 20
BURST_S = 0.005
"""A round runs as many steps as fit into this time, at least 1 and at most 10."""
COPIED_BYTES = 2**30
PAGE_SIZE = 16


@dataclass(frozen=True, kw_only=True)
class Scale:
    """How large all is."""

    batches: tuple[int, ...] = (1, 32, 256)
    lengths: tuple[int, ...] = (1024, 8192, 32768)
    layer: AttentionLayer = field(default_factory=lambda: layer_of(32, 8, 128, scaling=128**-0.5))
    dtype: torch.dtype = torch.bfloat16
    copied_bytes: int = COPIED_BYTES
    rounds: int = ROUNDS


REHEARSAL = Scale(
    batches=(1, 3), lengths=(64, 256), layer=layer_of(4, 2, 16), copied_bytes=2**20, rounds=2
)


@dataclass(frozen=True, kw_only=True)
class Row:
    """One side at one size."""

    side: str
    batch_size: int
    length: int
    step_us: float | None
    """Median time of one layer's attention; None where it could not run."""
    of_limit: float | None
    """Bytes of keys and values at the copy's bandwidth, over the time."""
    reason: str = ""
    """Why it could not run."""


@dataclass(frozen=True, kw_only=True)
class Workload:
    """A decode batch over a paged cache, and the same in plain order."""

    pools: Pools
    batch: ForwardBatch
    layer: AttentionLayer
    q: Tensor
    k: Tensor
    v: Tensor

    @property
    def num_bytes(self) -> int:
        """Bytes of every context's keys and values."""
        rows = int(self.batch.seq_lens_sum or 0)
        return rows * self.k[0].numel() * 2 * self.k.element_size()

    def step_of(self, backend: AttentionBackend) -> Callable[[], object]:
        """Prepare a backend, and return one layer's attention."""
        backend.init_forward_metadata(self.batch)
        q, k, v = (tokens.flatten(1) for tokens in (self.q, self.k, self.v))
        return lambda: backend.forward(q, k, v, self.layer, self.batch)

    def plain_step(self) -> Callable[[], object]:
        """Return torch's attention over keys and values that lie in order."""
        table = self.pools.req_to_token[1:].long()
        keys = self.pools.keys[table].transpose(1, 2).contiguous()
        values = self.pools.values[table].transpose(1, 2).contiguous()
        q = self.q[:, :, None]
        scale = self.layer.scaling
        return lambda: scaled_dot_product_attention(q, keys, values, scale=scale, enable_gqa=True)


def main() -> int:
    """Measure, print, and write the JSON where it is asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    if arguments.device == "cuda" and not torch.cuda.is_available():
        print("no CUDA device: nothing was measured", file=sys.stderr)
        return 2
    device = torch.device(arguments.device)
    scale = Scale() if device.type == "cuda" else REHEARSAL
    bandwidth = copy_bandwidth(device, scale)
    print(f"a copy of {scale.copied_bytes >> 20} MiB: {bandwidth / 1e9:.0f} GB/s read and written")
    said = {**machine(device), "dtype": str(scale.dtype), "bandwidth_bytes_s": bandwidth}
    rows: list[Row] = []
    for batch_size, length in product(scale.batches, scale.lengths):
        rows += compared(device, scale, bandwidth, batch_size, length)
        if arguments.json is not None:  # after each size, which a run that is cut then keeps
            document = {"benchmark": "attention", **said, "rows": [asdict(row) for row in rows]}
            arguments.json.write_text(json.dumps(document, indent=2) + "\n")
    return 0


def compared(
    device: torch.device, scale: Scale, bandwidth: float, batch_size: int, length: int
) -> list[Row]:
    """Run every side at one size, in turns, and print what each took."""
    work = workload(device, scale, batch_size, length)
    steps: dict[str, Callable[[], object]] = {"sdpa, plain order": work.plain_step()}
    reasons: dict[str, str] = {}
    for use in uses():
        try:
            steps[use.backend] = usable(use, device, work)
        except Exception as error:  # noqa: BLE001 - whatever a backend raises is its reason
            reasons[use.backend] = f"{type(error).__name__}: {error}"
    times_us = in_turns(steps, device, scale.rounds)
    rows = [
        Row(
            side=side,
            batch_size=batch_size,
            length=length,
            step_us=step_us,
            of_limit=work.num_bytes / bandwidth / (step_us / 1e6),
        )
        for side, step_us in times_us.items()
    ]
    rows += [
        Row(
            side=side,
            batch_size=batch_size,
            length=length,
            step_us=None,
            of_limit=None,
            reason=reason,
        )
        for side, reason in reasons.items()
    ]
    for row in rows:
        print(f"batch {row.batch_size:>4} x {row.length:>6}  {row.side:<20} {told(row)}")
    return rows


def told(row: Row) -> str:
    """Say what a side took, or why it did not run."""
    if row.step_us is None or row.of_limit is None:
        return row.reason.splitlines()[0]
    return f"{row.step_us:>9.1f} us  {row.of_limit:6.1%} of limit"


def uses() -> Sequence[Use]:
    """List the installed backends, as uses of decode."""
    return [
        Use(backend=own.name, role=Role.TARGET, phase=Phase.DECODE, declaration=own.declaration)
        for own in discover().entries
        if own.declaration is not None and not own.declaration.parts
    ]


def usable(use: Use, device: torch.device, work: Workload) -> Callable[[], object]:
    """Build a backend and run it once.

    Raises:
        RuntimeError: the declaration excludes the device; what the backend itself raises comes too.
    """
    assert use.declaration is not None, "uses are those of declarations"
    reasons = use.declaration.unsupported_reasons(Facts(device=device.type))
    if reasons:
        raise RuntimeError(" ".join(reason.of(use.backend) for reason in reasons))
    step = work.step_of(load_implementation(use)(work.pools))  # type: ignore[arg-type] # pools by structure
    step()
    return step


def workload(device: torch.device, scale: Scale, batch_size: int, length: int) -> Workload:
    """Make contexts of one length on random pages; the last token is this step's."""
    layer, num_tokens = scale.layer, batch_size * length
    pages = torch.randperm(num_tokens // PAGE_SIZE, device=device) + 1
    slots = (pages[:, None] * PAGE_SIZE + torch.arange(PAGE_SIZE, device=device)).flatten()
    table = torch.zeros(batch_size + 1, length, dtype=torch.int32, device=device)
    table[1:] = slots.view(batch_size, length)
    num_slots = num_tokens + PAGE_SIZE

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=scale.dtype, device=device)

    lengths = torch.full((batch_size,), length)
    batch = ForwardBatch(
        mode=ForwardMode.DECODE,
        input_ids=torch.zeros(batch_size, dtype=torch.int64, device=device),
        positions=(lengths - 1).to(device),
        req_pool_indices=torch.arange(1, batch_size + 1, device=device),
        seq_lens=lengths.to(device),
        out_cache_loc=table[1:, -1].long(),
        seq_lens_cpu=lengths,
        seq_lens_sum=num_tokens,
        seq_lens_cpu_upper_bound=lengths,
    )
    return Workload(
        pools=Pools(
            table,
            random(1, num_slots, layer.tp_k_head_num, layer.qk_head_dim),
            random(1, num_slots, layer.tp_k_head_num, layer.v_head_dim),
            PAGE_SIZE,
        ),
        batch=batch,
        layer=layer,
        q=random(batch_size, layer.tp_q_head_num, layer.qk_head_dim),
        k=random(batch_size, layer.tp_k_head_num, layer.qk_head_dim),
        v=random(batch_size, layer.tp_k_head_num, layer.v_head_dim),
    )


def copy_bandwidth(device: torch.device, scale: Scale) -> float:
    """Return bytes a second, read and written, of a copy that no cache holds."""
    source = torch.empty(scale.copied_bytes, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    times_us = in_turns({"copy": lambda: target.copy_(source)}, device, scale.rounds)
    return 2 * scale.copied_bytes / (times_us["copy"] / 1e6)


def in_turns(
    steps: dict[str, Callable[[], object]], device: torch.device, rounds: int
) -> dict[str, float]:
    """Run the sides in turns, several steps each: the median time of a step in microseconds."""
    for step in steps.values():  # warms up
        timed(step, device, 1)
    bursts = {
        side: max(1, min(10, round(BURST_S / timed(step, device, 1))))
        for side, step in steps.items()
    }
    times_s: dict[str, list[float]] = {side: [] for side in steps}
    for _ in range(rounds):
        for side, step in steps.items():
            times_s[side].append(timed(step, device, bursts[side]))
    return {side: statistics.median(own) * 1e6 for side, own in times_s.items()}


def timed(step: Callable[[], object], device: torch.device, number: int) -> float:
    """Run a step so many times, and return the seconds that one took."""
    wait(device)
    began_s = perf_counter()
    for _ in range(number):
        step()
    wait(device)
    return (perf_counter() - began_s) / number


def wait(device: torch.device) -> None:
    """Wait until the device has done what it was given; the CPU has."""
    if device.type != "cpu":
        torch.get_device_module(device).synchronize()


if __name__ == "__main__":
    sys.exit(main())
