"""What the relay costs a step in waits, bytes and launches, beside SGLang 0.5.13's own FutureMap.

`python benchmarks/waits.py [--json PATH]` drives either map through the same overlapped speculative
loop on the simulated device, where SGLang's code takes its CUDA branch: pinned column, private
stream, publish event. It prints what one step in steady state costs, ours | SGLang's and ours /
SGLang's. What the loop does without any relay is taken off, and printed in the end. Nothing is
timed: a count is the same on every machine, and in each of the steps 3 to 10, or this fails.

SGLang knows no upper bound: a backend that asks for one has the exact mirror there. Its gather of
draft state is a Triton kernel, and counts as the one launch that it is.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from backend_caps import HostSeqLens
from backend_caps.relay import DeviceStreams
from backend_caps.simulator import Counts, simulate
from benchmarks.recorded import Count, Record, keep, path_asked
from benchmarks.speculation import (
    SGLANG,
    MakeRelay,
    NoRelay,
    OurRelay,
    SglangRelay,
    SpeculativeLoop,
    gather_in_one_launch,
)

POOLS = (256, 4096, 65536)
BATCHES = (1, 32, 256)
FIRST, LAST = 3, 10
HIDDEN = 16

METRICS: dict[str, Callable[[Counts], int]] = {
    "host_waits": lambda counts: counts.num_host_waits,
    "bytes_to_host": lambda counts: counts.bytes_to_host,
    "bytes_to_device": lambda counts: counts.bytes_to_device,
    "operators": lambda counts: counts.num_ops,
    "event_waits": lambda counts: counts.num_event_waits,
}


@dataclass(frozen=True, kw_only=True)
class Found:
    """What a loop did in each step of its steady state."""

    counts: Counts
    results: list[list[list[int]]]
    """Lengths and tokens, step by step."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One pool, batch and mirror, on both sides."""

    pool_size: int
    batch_size: int
    host_seq_lens: HostSeqLens
    ours: Counts
    sglang: Counts

    def ratio(self, metric: str) -> float | None:
        """Divide ours by SGLang's; None where SGLang has none of it."""
        ours, theirs = METRICS[metric](self.ours), METRICS[metric](self.sglang)
        return ours / theirs if theirs else None


def steady(make_relay: MakeRelay, batch_size: int) -> Found:
    """Run a loop, and count one of its steps."""
    with simulate("lazy") as simulation:
        loop = SpeculativeLoop("sim", make_relay, batch_size, hidden=HIDDEN)
        counted = []
        for _ in range(LAST):
            before = simulation.counts
            loop.step()
            counted.append(simulation.counts - before)
        results = loop.results
    first, *rest = counted[FIRST - 1 :]
    assert all(own == first for own in rest), f"steps {FIRST} to {LAST} differ: {counted}"
    return Found(counts=first, results=results)


@cache
def bare(batch_size: int) -> Found:
    """Count the loop by itself."""
    return steady(lambda _streams: NoRelay(), batch_size)


def ours(pool_size: int, host_seq_lens: HostSeqLens) -> MakeRelay:
    """Make our relay."""
    return partial(OurRelay, host_seq_lens=host_seq_lens, pool_size=pool_size, hidden_size=HIDDEN)


def sglang(pool_size: int, host_seq_lens: HostSeqLens) -> MakeRelay:
    """Make SGLang's relay, which mirrors exactly or not at all."""
    mirrors = host_seq_lens is not HostSeqLens.NONE

    def make(streams: DeviceStreams) -> SglangRelay:
        return SglangRelay(
            streams, needs_cpu_seq_lens=mirrors, pool_size=pool_size, gather=gather_in_one_launch
        )

    return make


def measured(pool_size: int, batch_size: int, host_seq_lens: HostSeqLens) -> Row:
    """Count a step on both sides; both must give the tokens of the loop by itself."""
    alone = bare(batch_size)
    sides = [steady(make(pool_size, host_seq_lens), batch_size) for make in (ours, sglang)]
    assert all(side.results == alone.results for side in sides), "a relay lost something"
    own, theirs = (side.counts - alone.counts for side in sides)
    return Row(
        pool_size=pool_size,
        batch_size=batch_size,
        host_seq_lens=host_seq_lens,
        ours=own,
        sglang=theirs,
    )


def run_grid() -> Iterator[Row]:
    """Count the grid; a batch that its pool has no room for is left out."""
    for host_seq_lens in (HostSeqLens.EXACT, HostSeqLens.UPPER_BOUND, HostSeqLens.NONE):
        for pool_size in POOLS:
            for batch_size in (size for size in BATCHES if size < pool_size):
                yield measured(pool_size, batch_size, host_seq_lens)


def print_table(rows: list[Row]) -> None:
    """Print ours | SGLang's, and the ratio."""
    print(f"A speculative step's relay, ours | SGLang {SGLANG}'s, and ours / SGLang's")
    head = "".join(f"{name.replace('_', ' '):>24}" for name in METRICS)
    print(f"{'lengths':<12}{'pool':>6}{'batch':>6}{head}")
    for row in rows:
        place = f"{row.host_seq_lens.value:<12}{row.pool_size:>6}{row.batch_size:>6}"
        print(place + "".join(f"{_cell(row, name):>24}" for name in METRICS))
    own = bare(1).counts
    counted = ", ".join(f"{METRICS[name](own)} {name.replace('_', ' ')}" for name in METRICS)
    print(f"the loop by itself, with a batch of 1: {counted}")


def _cell(row: Row, name: str) -> str:
    metric, ratio = METRICS[name], row.ratio(name)
    shown = "-" if ratio is None else f"{ratio:.2g}"
    return f"{metric(row.ours)} | {metric(row.sglang)} {shown:>6}"


def main() -> None:
    """Count, print, and write what was counted where --json says."""
    path = path_asked(__doc__)
    rows = list(run_grid())
    print_table(rows)
    compares = f"a speculative step's relay, ours / SGLang {SGLANG}'s"
    keep(Record(compares=compares, counts=tuple(_counts(rows))), "waits", path)


def _counts(rows: list[Row]) -> Iterator[Count]:
    """Give what was counted, in pools whose column crosses and whose rows do."""
    for row in rows:
        for name, metric in METRICS.items():
            where = f"{row.batch_size} of {row.pool_size:,} rows"
            yield Count(
                what=f"{row.host_seq_lens.value}, {where}: {name.replace('_', ' ')}",
                ours=metric(row.ours),
                theirs=metric(row.sglang),
            )


if __name__ == "__main__":
    main()
