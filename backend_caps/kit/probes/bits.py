"""Outputs that are to have the same bits.

Shapes: T tokens in a batch, Hq query heads, Dv the values' size.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from torch import Tensor

from backend_caps.kit.rig import difference
from backend_caps.kit.scenarios import Forward, Scenario, scenarios_of
from backend_caps.kit.subject import Subject

_LONG = 400
"""Tokens of a long context: a kernel that adds up parts of one has several."""


def bit_scenarios(subject: Subject, seed: int) -> Iterator[Scenario]:
    """List scenarios for a seed: each forward, at one page after the other; then long contexts."""
    scenarios = list(scenarios_of(subject, tuple(Forward)))
    of_forward = {own.forward: own for own in (scenarios[::-1] if seed % 2 else scenarios)}
    yield from of_forward.values()
    for forward in (Forward.PREFILL, Forward.DECODE, Forward.VERIFY):
        if forward in of_forward:
            yield replace(of_forward[forward], min_context_len=_LONG)


def other_bits(found: Tensor, expected: Tensor) -> str | None:
    """Say which tokens' outputs are not the same; None where all are.

    found, expected  [T, Hq, Dv], host
    """
    return difference(found, expected, 0.0)
