"""What a rule set costs a step of this package's engine: SGLang's rules beside the engine's own.

`python benchmarks/rules.py [--json PATH]` runs the engine on the simulated device under ten sets of
flags, each under the rules of `backend-caps-1` and of a version of SGLang, and counts steps in the
middle of decoding: waits of the host for lengths, bytes of lengths that crossed, and steps whose
target replayed a captured graph. Nothing is timed: a count is the same on every machine.

The tokens are the same on both sides, or this fails.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from backend_caps import ServerFlags, discover
from backend_caps.insight.measure import BATCH_SIZE, NUM_STEPS, SteadySteps, steady_steps
from backend_caps.kit.models import small_models
from backend_caps.resolution.engine import RUNTIME
from backend_caps.resolution.plan import Policy
from backend_caps.resolution.resolver import resolve
from backend_caps.runtime.speculation import SpecSettings
from benchmarks.recorded import Count, Record, keep, path_asked

PADDED = "--attention-backend torch_padded"
NO_PIECES = "--disable-piecewise-cuda-graph"
TREE = "--speculative-eagle-topk 2"
METRICS: dict[str, Callable[[SteadySteps], int]] = {
    "waits for lengths": lambda steps: round(steps.costs.waits_for_lengths * NUM_STEPS),
    "bytes of lengths": lambda steps: round(steps.costs.bytes_of_lengths * NUM_STEPS),
    "steps replayed": lambda steps: steps.num_replayed,
}


@dataclass(frozen=True, kw_only=True)
class FlagSet:
    """Flags of a server, and the version of SGLang whose rules stand beside ours."""

    name: str
    flags: str
    sglang: str = "sglang-0.5.13"


FLAG_SETS = (
    FlagSet(name="EAGLE", flags=f"{PADDED} --speculative-algorithm EAGLE"),
    FlagSet(name="EAGLE3", flags=f"{PADDED} --speculative-algorithm EAGLE3"),
    FlagSet(name="STANDALONE", flags=f"{PADDED} --speculative-algorithm STANDALONE"),
    FlagSet(name="EAGLE, no pieces", flags=f"{PADDED} --speculative-algorithm EAGLE {NO_PIECES}"),
    FlagSet(
        name="EAGLE, trees, no pieces",
        flags=f"{PADDED} --speculative-algorithm EAGLE {TREE} {NO_PIECES}",
    ),
    FlagSet(
        name="EAGLE, TBO, no pieces",
        flags=f"{PADDED} --speculative-algorithm EAGLE --enable-two-batch-overlap {NO_PIECES}",
    ),
    FlagSet(
        name="EAGLE, trees, TBO, no pieces",
        flags=f"{PADDED} --speculative-algorithm EAGLE {TREE} --enable-two-batch-overlap "
        f"{NO_PIECES}",
    ),
    FlagSet(
        name="EAGLE, mixed chunks, no pieces",
        flags=f"{PADDED} --speculative-algorithm EAGLE --enable-mixed-chunk {NO_PIECES}",
    ),
    FlagSet(name="NGRAM", flags=f"{PADDED} --speculative-algorithm NGRAM", sglang="sglang-0.5.23"),
    FlagSet(
        name="EAGLE, a backend that reads the mirror",
        flags=f"--attention-backend torch_native --speculative-algorithm EAGLE {NO_PIECES}",
    ),
)


@dataclass(frozen=True, kw_only=True)
class Row:
    """A set of flags, under both rule sets."""

    flag_set: FlagSet
    ours: SteadySteps
    sglang: SteadySteps


def measured(flag_set: FlagSet) -> Row:
    """Count steps under both rule sets, of the same models."""
    flags = ServerFlags.from_argv([*flag_set.flags.split(), "--context-length", "128"])
    settings = SpecSettings.from_flags(flags)
    with small_models(None if settings is None else settings.algorithm) as models:
        registry = discover()
        ours, sglang = (
            steady_steps(
                resolve(
                    registry.uses(flags), flags, rules=registry.rules(name), policy=Policy.QUIET
                ),
                models,
            )
            for name in (RUNTIME, flag_set.sglang)
        )
    assert ours.num_made == sglang.num_made, f"{flag_set.name}: the sides made other tokens"
    return Row(flag_set=flag_set, ours=ours, sglang=sglang)


def print_table(rows: list[Row]) -> None:
    """Print ours | SGLang's."""
    print(f"Steps of {BATCH_SIZE} requests, {NUM_STEPS} of them")
    print(f"{'flags':<40}{'rules':<15}" + "".join(f"{name:>22}" for name in METRICS))
    for row in rows:
        cells = (f"{count(row.ours)} | {count(row.sglang)}" for count in METRICS.values())
        place = f"{row.flag_set.name:<40}{row.flag_set.sglang:<15}"
        print(place + "".join(f"{cell:>22}" for cell in cells))


def counts(rows: list[Row]) -> Iterator[Count]:
    """Give what was counted, by flags."""
    for row in rows:
        for name, count in METRICS.items():
            yield Count(
                what=f"{row.flag_set.name}: {name}", ours=count(row.ours), theirs=count(row.sglang)
            )


def main() -> None:
    """Count, print, and write what was counted where --json says."""
    path = path_asked(__doc__)
    rows = [measured(own) for own in FLAG_SETS]
    print_table(rows)
    compares = (
        f"{NUM_STEPS} steps of this package's engine under its own rules / the same "
        "under SGLang's, of 0.5.13, and of 0.5.23 for NGRAM"
    )
    keep(Record(compares=compares, counts=tuple(counts(rows))), "rules", path)


if __name__ == "__main__":
    main()
