"""How much of its draft each step keeps, which is the only thing that a wrong draft changes.

A draft follows from a request's tokens alone, whatever runs beside it and whenever. So where two
runs start a step at the same token, both accept as much, or one of them drafted from what was not
its own.
"""

from __future__ import annotations

from collections.abc import Iterator

from backend_caps.kit.probes.server_traces import StepWatch
from tests.races.cases import Fault, Finding


class Accepts(StepWatch):
    """The observer of an engine, which also takes the tokens of each step."""

    def findings(self, right: Accepts) -> Iterator[Finding]:
        """Compare the steps that both runs made."""
        for number, own in self.accepted.items():
            known = right.accepted.get(number, {})
            for start, count in own.items():
                if known.get(start, count) != count:
                    what = f"request {number} got {count} tokens behind {start}, not {known[start]}"
                    yield Finding(fault=Fault.DRAFT, what=what)
