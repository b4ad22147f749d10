"""Each FutureMap operation beside SGLang 0.5.13's own, on this machine's CPU.

`python benchmarks/relay.py [--json PATH]` prints ratios: ours / SGLang's, so below 1 is faster.
Both sides take turns round by round, because a shared machine changes its mind from second to
second, and take turns in being the first; a cell is the median of the rounds' own ratios. One
thread: a second one on a busy core makes any parallel call a hundred times slower.

SGLang's gather of draft state is a Triton kernel, which a CPU cannot run. Two things stand in for
it, and both are counted: `spec` indexes each buffer, as SGLang did before it had the kernel;
`select` calls `index_select`, the fastest there is, and the last line repeats it. `spec, no words`
is `stash` without the sixteen-byte words that only a CPU copies in; `all` leaves it out, because
no device is declared that way. `flat` is our time in the largest pool over that in the smallest
that has room for the batch: the worst batch of all.
"""

from __future__ import annotations

import statistics
import sys
import timeit
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from backend_caps.capability.vocabulary import HostSeqLens
from backend_caps.relay import DEVICE_TRAITS, DeviceStreams, DraftShape, FutureMap, RelayPayload
from benchmarks.recorded import Ratio, Record, keep, path_asked
from tests.upstream.sglang_wheel import (
    Extras,
    Gather,
    cpu_record_stream,
    gather_by_index,
    load_overlap_utils,
    make_future_map,
)

POOLS = (256, 4096, 65536)
BATCHES = (1, 32, 255, 1024)
TOPK, HIDDEN = 4, 256
NO_WORDS = "spec, no words"
SELECT = "select"
ROUNDS = 32
ROUND_S = 0.0015

Call = Callable[[], object]


@dataclass(frozen=True)
class Case:
    """One call on both sides, on one pool and batch."""

    operation: str
    variant: str
    ours: Call
    theirs: Call


@dataclass
class Cell:
    """What a case took on one pool and batch."""

    operation: str
    variant: str
    pool_size: int
    batch_size: int
    ours_us: float
    theirs_us: float
    ratio: float = field(init=False)

    def __post_init__(self) -> None:
        self.ratio = self.ours_us / self.theirs_us


class Side:
    """Both sides' maps and one batch of each, for one pool and batch."""

    def __init__(
        self,
        *,
        pool_size: int,
        batch_size: int,
        spec: bool,
        mirror: bool,
        gather: Gather = gather_by_index,
        words: bool = True,
    ) -> None:
        self.module = load_overlap_utils("0.5.13", gather=gather)
        self.theirs = make_future_map(
            self.module, pool_size=pool_size, speculative=spec, needs_cpu_seq_lens=mirror
        )
        draft = DraftShape(topk=TOPK, hidden_size=HIDDEN, dtype=torch.bfloat16)
        self.ours = FutureMap(
            pool_size=pool_size,
            device="cpu",
            host_seq_lens=HostSeqLens.EXACT if mirror else HostSeqLens.NONE,
            speculative=spec,
            draft=draft if spec else None,
            streams=None if words else _streams_without_words(),
        )
        self.rows = torch.randperm(pool_size - 1)[:batch_size] + 1
        self.lens = torch.randint(0, 10_000, (batch_size,))
        self.payload = _payload(batch_size, spec=spec)
        self.their_payload = self.payload if spec else self.payload.bonus_tokens
        self.batch = self._batch(spec=spec)
        self.staged = torch.randint(0, 10_000, (512,))
        self.publish_both()

    def publish_both(self) -> None:
        """Write every row that is read later."""
        self.ours.publish(self.rows, self.lens)
        self.theirs.publish(self.rows, self.lens)
        self.ours.stash(self.rows, self.payload)
        self.theirs.stash(self.rows, self.their_payload)

    def _batch(self, *, spec: bool) -> SimpleNamespace:
        spec_info = SimpleNamespace(future_indices=self.rows) if spec else None
        return SimpleNamespace(
            req_pool_indices=self.rows,
            req_pool_indices_cpu=self.rows.clone(),
            input_ids=None,
            input_ids_pending=False,
            prefill_input_ids_cpu=None,
            mix_running_indices=None,
            spec_info=spec_info,
            device="cpu",
            enable_overlap=True,
            is_spec_v2=spec,
        )

    def our_inputs(self, staged: Tensor | None, running: Tensor | None) -> None:
        """Resolve our batch's inputs, pending or staged."""
        batch = self.batch
        batch.input_ids_pending = batch.spec_info is None
        batch.prefill_input_ids_cpu = staged
        batch.mix_running_indices = running
        self.ours.resolve_future(batch)

    def their_inputs(self, staged: Tensor | None, running: Tensor | None) -> None:
        """Resolve SGLang's batch's inputs, pending or staged."""
        batch = self.batch
        batch.input_ids = None
        batch.prefill_input_ids_cpu = staged
        batch.mix_running_indices = running
        self.module.resolve_forward_inputs(batch, self.theirs)


def _streams_without_words() -> DeviceStreams:
    return DeviceStreams("cpu", replace(DEVICE_TRAITS["cpu"], copy_word=None))


def gather_by_index_select(
    indices: Tensor, topk_p: Tensor, topk_index: Tensor, tokens: Tensor, hidden: Tensor | None
) -> Extras:
    """Stand in for the fused Triton kernel by the fastest gather that torch has on a CPU."""
    states = None if hidden is None else hidden.index_select(0, indices)
    return (
        topk_p.index_select(0, indices),
        topk_index.index_select(0, indices),
        tokens.index_select(0, indices),
        states,
    )


def _payload(batch_size: int, *, spec: bool) -> RelayPayload:
    tokens = torch.randint(0, 10_000, (batch_size,))
    if not spec:
        return RelayPayload(tokens)
    return RelayPayload(
        tokens,
        topk_p=torch.rand(batch_size, TOPK),
        topk_index=torch.randint(0, 10_000, (batch_size, TOPK)),
        hidden_states=torch.randn(batch_size, HIDDEN).to(torch.bfloat16),
    )


def cases(pool_size: int, batch_size: int) -> Iterator[Case]:
    """Make every operation of both sides for one pool and batch."""
    plain = Side(pool_size=pool_size, batch_size=batch_size, spec=False, mirror=False)
    exact = Side(pool_size=pool_size, batch_size=batch_size, spec=True, mirror=True)
    none = Side(pool_size=pool_size, batch_size=batch_size, spec=True, mirror=False)
    select = Side(
        pool_size=pool_size,
        batch_size=batch_size,
        spec=True,
        mirror=False,
        gather=gather_by_index_select,
    )
    no_words = Side(
        pool_size=pool_size, batch_size=batch_size, spec=True, mirror=False, words=False
    )
    for name, side in (("plain", plain), ("spec", none)):
        yield Case("publish", name, *_publish(side))
        yield Case("stash", name, *_stash(side))
    yield Case("stash", NO_WORDS, *_stash(no_words))
    for name, side in (("exact", exact), ("none", none)):
        yield Case("resolve_seq_lens_cpu", name, *_lengths(side))
    yield Case("resolve_future", "decode", *_inputs(plain, None, None))
    yield Case("resolve_future", "mixed", *_inputs(plain, plain.staged, plain.rows))
    yield Case("resolve_future", "spec", *_inputs(none, None, None))
    yield Case("resolve_future", SELECT, *_inputs(select, None, None))


def _publish(side: Side) -> tuple[Call, Call]:
    return (
        lambda: side.ours.publish(side.rows, side.lens),
        lambda: side.theirs.publish(side.rows, side.lens),
    )


def _stash(side: Side) -> tuple[Call, Call]:
    return (
        lambda: side.ours.stash(side.rows, side.payload),
        lambda: side.theirs.stash(side.rows, side.their_payload),
    )


def _lengths(side: Side) -> tuple[Call, Call]:
    return (
        lambda: side.ours.resolve_seq_lens_cpu(side.batch),
        lambda: side.theirs.resolve_seq_lens_cpu(side.batch),
    )


def _inputs(side: Side, staged: Tensor | None, running: Tensor | None) -> tuple[Call, Call]:
    return (lambda: side.our_inputs(staged, running), lambda: side.their_inputs(staged, running))


def measure(case: Case) -> tuple[float, float]:
    """Time both sides of a case in turns, and return their median microseconds a call."""
    case.ours(), case.theirs()
    number = max(5, int(ROUND_S / max(timeit.timeit(case.theirs, number=5) / 5, 1e-7)))
    ours: list[float] = []
    theirs: list[float] = []
    for turn in range(ROUNDS):
        sides = ((case.ours, ours), (case.theirs, theirs))
        for call, times in sides if turn % 2 else reversed(sides):
            times.append(timeit.timeit(call, number=number))
    scale = 1e6 / number
    return statistics.median(ours) * scale, statistics.median(theirs) * scale


def run_grid() -> list[Cell]:
    """Measure every operation over the grid; a batch larger than its pool is left out."""
    cells = []
    with cpu_record_stream():
        for pool_size in POOLS:
            for batch_size in (size for size in BATCHES if size < pool_size):
                for case in cases(pool_size, batch_size):
                    ours, theirs = measure(case)
                    names = (case.operation, case.variant)
                    cells.append(Cell(*names, pool_size, batch_size, ours, theirs))
    return cells


def flatness(cells: list[Cell]) -> float:
    """Return our time in the largest pool over that in the smallest with room; the worst batch."""
    by_place = {(cell.variant, cell.pool_size, cell.batch_size): cell.ours_us for cell in cells}
    return max(
        by_place[variant, POOLS[-1], batch] / ours
        for (variant, pool, batch), ours in by_place.items()
        if pool == min(size for size in POOLS if size > batch)
    )


def summary(cells: list[Cell]) -> list[dict[str, str | float]]:
    """Sum the grid up: a line an operation, and a line a variant below it."""
    lines = []
    for operation in dict.fromkeys(cell.operation for cell in cells):
        of_operation = [cell for cell in cells if cell.operation == operation]
        declared = [cell for cell in of_operation if cell.variant != NO_WORDS]
        lines.append(_line(operation, "all", declared))
        for variant in dict.fromkeys(cell.variant for cell in of_operation):
            of_variant = [cell for cell in of_operation if cell.variant == variant]
            lines.append(_line(operation, variant, of_variant))
    return lines


def _line(operation: str, variant: str, cells: list[Cell]) -> dict[str, str | float]:
    ratios = [cell.ratio for cell in cells]
    return {
        "operation": operation,
        "variant": variant,
        "median": statistics.median(ratios),
        "min": min(ratios),
        "max": max(ratios),
        "ours_us": statistics.median(cell.ours_us for cell in cells),
        "theirs_us": statistics.median(cell.theirs_us for cell in cells),
        "flatness": flatness(cells),
    }


def print_table(lines: list[dict[str, str | float]]) -> None:
    """Print the summary."""
    print(f"FutureMap / SGLang 0.5.13 on the CPU, {torch.get_num_threads()} thread")
    print(f"pools {POOLS}, batches {BATCHES}, topk {TOPK}, hidden {HIDDEN} bfloat16")
    head = ("operation", "variant", "median", "min", "max", "ours us", "theirs us", "flat")
    print("{:<22}{:<16}{:>8}{:>8}{:>8}{:>10}{:>11}{:>11}".format(*head))
    row = "{:<22}{:<16}{:>8.2f}{:>8.2f}{:>8.2f}{:>10.1f}{:>11.1f}{:>11.2f}"
    for line in lines:
        print(row.format(*line.values()))
    select = next(line["median"] for line in lines if line["variant"] == SELECT)
    print(
        "resolve_future, with index_select standing in for SGLang's Triton gather, "
        f"the spec line is {select:.2f}"
    )


def main() -> None:
    """Measure, print, and write what was measured where --json says."""
    path = path_asked(__doc__)
    torch.set_num_threads(1)
    cells = run_grid()
    lines = summary(cells)
    print_table(lines)
    compares = "a call of our `FutureMap` / the same of SGLang 0.5.13's"
    keep(Record(compares=compares, ratios=tuple(_ratios(cells))), "relay", path)


def _ratios(cells: list[Cell]) -> Iterator[Ratio]:
    """Give each operation's variants, over all pools and batches."""
    for names in dict.fromkeys((cell.operation, cell.variant) for cell in cells):
        own = [cell for cell in cells if (cell.operation, cell.variant) == names]
        ours, theirs = [cell.ours_us for cell in own], [cell.theirs_us for cell in own]
        told = f"{statistics.median(ours):.1f} us and {statistics.median(theirs):.1f} us"
        ratio = Ratio.from_rounds(", ".join(names), ours, theirs, told)
        yield replace(ratio, measured=f"{len(own)} pools and batches")


if __name__ == "__main__":
    main()
