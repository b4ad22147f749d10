"""What `backend-caps dry-run` was asked, beside what every command is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import click

from backend_caps.capability.kind import Role


@dataclass(frozen=True, slots=True, kw_only=True)
class DryRunAsked:
    """What to start, and where."""

    model: Path | None
    """A folder; None makes a small model."""
    draft_model: Path | None
    """A folder; None where no model drafts, or a small one is made with the small model."""
    device: str
    num_steps: int
    seed: int
    stand_ins: Mapping[Role, str]
    """Who may stand in for what cannot run, by role."""
    is_strict: bool
    lock: Path | None
    deadline_s: float

    @classmethod
    def from_context(cls, ctx: click.Context) -> Self:
        """Read what the command line says."""
        options = ctx.params
        return cls(
            model=options["model"],
            draft_model=options["draft_model"],
            device=options["device"],
            num_steps=options["steps"],
            seed=options["seed"],
            stand_ins=options["stand_ins"],
            is_strict=options["strict"],
            lock=options["lock"],
            deadline_s=options["agreement_deadline_s"],
        )
