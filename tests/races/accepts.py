"""How much of its draft each step keeps, which is the only thing that a wrong draft changes.

A draft follows from a request's tokens alone, whatever runs beside it and whenever. So where two
runs start a step at the same token, both accept as much, or one of them drafted from what was not
its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from backend_caps.runtime.batch import ForwardMode
from backend_caps.runtime.request import Request
from backend_caps.runtime.scheduler import NewToken
from backend_caps.runtime.stats import StepStats
from tests.races.cases import Fault, Finding


@dataclass(slots=True)
class Accepts:
    """Watch the steps of an engine: its observer, and told of the tokens of each step."""

    mode: ForwardMode | None = None
    """Of the step whose result was processed last."""
    counts: dict[int, dict[int, int]] = field(default_factory=dict)
    """By request, then by how much it had put out before the step: tokens of steps that draft."""

    def observe(self, stats: StepStats) -> None:
        """Keep what kind of step it was."""
        self.mode = stats.mode

    def take(self, made: Sequence[NewToken]) -> None:
        """Count the tokens of the step that was processed."""
        if self.mode is not ForwardMode.DECODE:
            return
        gained: dict[Request, int] = {}
        for request, _ in made:
            gained[request] = gained.get(request, 0) + 1
        for request, count in gained.items():
            own = self.counts.setdefault(request.number, {})
            own[len(request.output) - count] = count

    def findings(self, right: Accepts) -> Iterator[Finding]:
        """Compare the steps that both runs made."""
        for number, own in self.counts.items():
            known = right.counts.get(number, {})
            for start, count in own.items():
                if known.get(start, count) != count:
                    what = f"request {number} got {count} tokens behind {start}, not {known[start]}"
                    yield Finding(fault=Fault.DRAFT, what=what)
