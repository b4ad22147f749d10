"""What agreement costs beside a bare barrier, and how many bytes cross.

`python benchmarks/agreement.py [--json PATH]` starts gloo processes on this machine, which take
turns: a barrier, the rounds of ranks that agree, a whole `agree` with a plan's statement, and one
of ranks of two kinds. A cell is the median of the rounds' own ratios to the barrier beside them.
The bytes are counted, not timed, for ranks that are threads of one process.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from torch import distributed as dist

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from backend_caps import Plan
from backend_caps.resolution.rules import RuleSet
from backend_caps.resolution.selection import plan_for
from backend_caps.startup.agreement import Ranks, Statement, agree, agree_over, statement_of
from backend_caps.startup.channel import GroupChannel
from benchmarks.recorded import Count, Ratio, Record, keep, path_asked
from tests.startup.agreement.made import FLAGS, OPTS_OUT, READS, registry
from tests.startup.agreement.processes import run_ranks
from tests.startup.agreement.together import agree_together, hear_together

SIZES = (2, 4)
MANY = (8, 64, 1024)
TURNS = 200
PER_RANK = frozenset({"attention_backend"})


def main() -> None:
    """Print ratios and bytes; write them where asked."""
    path = path_asked(__doc__)
    ratios = {size: _ratios(size) for size in SIZES}
    print(f"{'ranks':>6} {'rounds':>8} {'agree':>8} {'two kinds':>10}   times a bare barrier")
    for size, own in ratios.items():
        rounds, agree, two_kinds = (own[name].ratio for name in ("rounds", "agree", "two kinds"))
        print(f"{size:>6} {rounds:8.2f} {agree:8.2f} {two_kinds:10.2f}")
    num_bytes = {size: _bytes(size) for size in MANY}
    print(f"\n{'ranks':>6} {'all agree':>10} {'two kinds':>10}   bytes received by each rank")
    for size, (alike, apart) in num_bytes.items():
        print(f"{size:>6} {alike:10,} {apart:10,}")
    found = Record(
        compares="a rank's time / a bare barrier's; counted are the bytes that each rank receives",
        ratios=tuple(ratio for own in ratios.values() for ratio in own.values()),
        counts=tuple(count for size, both in num_bytes.items() for count in _counts(size, *both)),
    )
    keep(found, "agreement", path)


def _counts(size: int, alike: int, apart: int) -> Iterator[Count]:
    yield Count(what=f"{size:,} ranks that agree: bytes", ours=alike)
    yield Count(what=f"{size:,} ranks of two kinds: bytes", ours=apart)


def _ratios(size: int) -> dict[str, Ratio]:
    """Return what rank 0 takes, as multiples of a barrier."""
    times = run_ranks(size, _timed)[0].value
    assert isinstance(times, dict), "rank 0 has timed"
    barrier = times.pop("barrier")
    return {
        name: Ratio.from_rounds(
            f"{size} ranks, {name}", own, barrier, f"{1e3 * statistics.median(own):.2f} ms"
        )
        for name, own in times.items()
    }


def _timed(rank: int) -> dict[str, list[float]]:
    """Take turns, so that all see the same machine."""
    group = dist.group.WORLD
    assert group is not None, "a rank has a group"
    alike, apart = _rank("acme"), _rank("needy" if rank == 0 else "acme")
    ranks = Ranks(group=group, per_rank=PER_RANK)
    works: dict[str, Callable[[], object]] = {
        "barrier": partial(dist.barrier, group),
        "rounds": lambda: agree_over(GroupChannel(group, host="here"), *alike),
        "agree": lambda: agree(lambda: alike[0], ranks, given=alike[0].flags),
        "two kinds": lambda: agree(lambda: apart[0], ranks, given=apart[0].flags),
    }
    times: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(TURNS):
        for name, work in works.items():
            started = time.perf_counter()
            work()
            times[name].append(time.perf_counter() - started)
    return times


def _rank(name: str) -> tuple[Plan, Statement]:
    flags = FLAGS.updated({"attention_backend": name})
    plan = plan_for(
        registry({name: READS if name == "needy" else OPTS_OUT}),
        flags,
        rules=RuleSet.builtin("sglang-0.5.13"),
    )
    return plan, statement_of(plan, per_rank=PER_RANK)


def _bytes(size: int) -> tuple[int, int]:
    """Count what each rank receives; a joint plan is acknowledged by two integers more."""
    alike, apart = _rank("acme"), _rank("needy")
    agreeing, _ = agree_together([alike] * size)
    hearing, _ = hear_together([*[alike] * (size - 1), apart])
    return agreeing.num_bytes, 2 * agreeing.num_bytes + hearing.num_bytes


if __name__ == "__main__":
    main()
