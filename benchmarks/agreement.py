"""What agreement costs beside a bare barrier, and how many bytes cross.

`python benchmarks/agreement.py [--json PATH]` starts gloo processes on this machine, which take
turns: a barrier, the rounds of ranks that agree, a whole `agree` with a plan's statement, and one
of ranks of two kinds. A cell is the ratio of two medians of the same run. The bytes are counted,
not timed, for ranks that are threads of one process.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from torch import distributed as dist

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from backend_caps import Plan
from backend_caps.resolution.selection import plan_for
from backend_caps.startup.agreement import (
    GroupChannel,
    Ranks,
    Statement,
    agree,
    agreed,
    statement_of,
)
from tests.startup.agreement.made import FLAGS, OPTS_OUT, READS, registry
from tests.startup.agreement.processes import run_ranks
from tests.startup.agreement.together import hear_together

SIZES = (2, 4)
MANY = (8, 64, 1024)
TURNS = 200
PER_RANK = frozenset({"attention_backend"})


def main() -> None:
    """Print ratios and bytes; write them where asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    ratios = {size: _ratios(size) for size in SIZES}
    print(f"{'ranks':>6} {'rounds':>8} {'agree':>8} {'two kinds':>10}   times a bare barrier")
    for size, own in ratios.items():
        print(f"{size:>6} {own['rounds']:8.2f} {own['agree']:8.2f} {own['two kinds']:10.2f}")
    num_bytes = {size: _bytes(size) for size in MANY}
    print(f"\n{'ranks':>6} {'all agree':>10} {'two kinds':>10}   bytes received by each rank")
    for size, (alike, apart) in num_bytes.items():
        print(f"{size:>6} {alike:10,} {apart:10,}")
    if asked.json:
        asked.json.write_text(json.dumps({"ratios": ratios, "bytes": num_bytes}, indent=2))


def _ratios(size: int) -> dict[str, float]:
    """Return the medians of rank 0, as multiples of a barrier's."""
    times = run_ranks(size, _timed)[0].value
    assert isinstance(times, dict), "rank 0 has timed"
    barrier = statistics.median(times.pop("barrier"))
    return {name: statistics.median(own) / barrier for name, own in times.items()}


def _timed(rank: int) -> dict[str, list[float]]:
    """Take turns, so that all see the same machine."""
    group = dist.group.WORLD
    assert group is not None, "a rank has a group"
    alike, apart = _rank("acme"), _rank("needy" if rank == 0 else "acme")
    ranks = Ranks(group=group, per_rank=PER_RANK)
    works: dict[str, Callable[[], object]] = {
        "barrier": partial(dist.barrier, group),
        "rounds": lambda: agreed(*alike, GroupChannel(group, host="here")),
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
    plan = plan_for(registry({name: READS if name == "needy" else OPTS_OUT}), flags)
    return plan, statement_of(plan, per_rank=PER_RANK)


def _bytes(size: int) -> tuple[int, int]:
    """Count what each rank receives: the two rounds, and what is heard between them."""
    alike, apart = _rank("acme"), _rank("needy")
    rounds = 32
    wire, _ = hear_together([*[alike] * (size - 1), apart])
    return rounds, rounds + wire.num_bytes


if __name__ == "__main__":
    main()
