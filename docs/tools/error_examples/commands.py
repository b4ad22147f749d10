"""Errors of commands."""

from __future__ import annotations

from backend_caps.cli.errors import CommandError
from backend_caps.insight.errors import InsightError
from docs.tools.error_examples.occasion import Occasion

COMMANDS = Occasion(
    title="Commands",
    told="Raised by the command that its occasion names; `no-output` by every one.",
    coded=(CommandError,),
)
INSIGHTS = Occasion(
    title="Runs",
    told="Raised by `generate`, `explain --measure`, `dry-run` and `trace`, besides those of the "
    "engine.",
    coded=(InsightError,),
)
