"""Who keeps what an engine tells of its steps."""

from __future__ import annotations

from dataclasses import dataclass, field

from backend_caps.runtime.stats import StepStats


@dataclass
class Kept:
    """An observer that keeps every step."""

    steps: list[StepStats] = field(default_factory=list)

    def observe(self, stats: StepStats) -> None:
        """Keep a step."""
        self.steps.append(stats)
