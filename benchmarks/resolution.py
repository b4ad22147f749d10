"""`resolve` for 1 to 1,000 backends: the time grows with their number, and no faster."""

from __future__ import annotations

import sys
import timeit
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from backend_caps import Capabilities, Declaration, Phase, Plan, Role, ServerFlags, Use, resolve
from backend_caps.resolution.rules import RuleSet
from benchmarks.recorded import Ratio, Record, keep, path_asked

NUM_BACKENDS = (1, 10, 100, 1_000)
NUM_ROUNDS = 7
FLAGS = ServerFlags(attention_backend="b0", speculative_algorithm="EAGLE")


def uses(num_backends: int) -> tuple[Use, ...]:
    """Make as many backends, each in one use of decode."""
    declaration = Declaration(capabilities=Capabilities(needs_cpu_seq_lens=True))
    return tuple(
        Use(backend=f"b{number}", role=Role.TARGET, phase=Phase.DECODE, declaration=declaration)
        for number in range(num_backends)
    )


def times_per_backend(num_backends: int) -> list[float]:
    """Measure one resolve in some rounds, in seconds for each backend."""
    given = uses(num_backends)
    number = max(1, 200 // num_backends)

    def call() -> Plan:
        return resolve(given, FLAGS, rules=RuleSet.builtin("sglang-0.5.13"))

    rounds = timeit.repeat(call, number=number, repeat=NUM_ROUNDS)
    return [each / number / num_backends for each in rounds]


def main() -> None:
    """Print the time for each backend, and its ratio to that at 100 backends."""
    path = path_asked(__doc__)
    times = {count: times_per_backend(count) for count in NUM_BACKENDS}
    found = Record(
        compares="`resolve()` for each backend / the same at 100 backends",
        ratios=tuple(
            Ratio.from_rounds(
                f"{count:,} backend{'s' * (count > 1)}",
                own,
                times[100],
                f"{1e6 * median(own):.1f} us for each",
            )
            for count, own in times.items()
        ),
    )
    print(f"resolution: time of {found.compares}")
    for each in found.ratios:
        print(f"{each.what:>15} {each.ratio:6.2f}   {each.told:>16}")
    keep(found, "resolution", path)


if __name__ == "__main__":
    main()
