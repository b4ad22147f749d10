"""`resolve` for 1 to 1,000 backends: the time grows with their number, and no faster."""

from __future__ import annotations

import timeit
from statistics import median

from backend_caps import Capabilities, Declaration, Phase, Plan, Role, ServerFlags, Use, resolve

NUM_BACKENDS = (1, 10, 100, 1_000)
NUM_ROUNDS = 7
FLAGS = ServerFlags(attention_backend="b0", speculative_algorithm="EAGLE")


def uses(num_backends: int) -> tuple[Use, ...]:
    """Make as many backends, each in one use of decode."""
    declaration = Declaration(capabilities=Capabilities(needs_cpu_seq_lens=True))
    return tuple(
        Use(
            backend=f"b{number}",
            role=Role.TARGET,
            phase=Phase.DECODE,
            declaration=declaration,
        )
        for number in range(num_backends)
    )


def time_per_backend(num_backends: int) -> float:
    """Measure one resolve, in seconds for each backend: the median of some rounds."""
    given = uses(num_backends)
    number = max(1, 200 // num_backends)

    def call() -> Plan:
        return resolve(given, FLAGS)

    rounds = timeit.repeat(call, number=number, repeat=NUM_ROUNDS)
    return median(rounds) / number / num_backends


def main() -> None:
    """Print the time for each backend, and its ratio to that at 100 backends."""
    call_us = {count: 1e6 * time_per_backend(count) for count in NUM_BACKENDS}
    print("resolution: time of resolve() for each backend / the same at 100 backends")
    for count, each in call_us.items():
        print(f"{count:>6} backends {each / call_us[100]:6.2f}   {each:7.1f} us for each")


if __name__ == "__main__":
    main()
