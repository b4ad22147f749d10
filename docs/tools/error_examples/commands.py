"""Errors of commands."""

from __future__ import annotations

from backend_caps.cli.errors import CommandError
from backend_caps.insight.dry_run.errors import CannotRunError, DryStartError, StandInError
from backend_caps.insight.errors import InsightError
from backend_caps.insight.trace.errors import (
    NoTimelineError,
    TooManyStepsError,
)
from backend_caps.startup.ranks import JobError
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
DRY_RUN = Occasion(
    title="A dry run",
    told="Raised by `backend-caps dry-run`.",
    examples=(
        CannotRunError(
            reasons=(
                ("fa3", "no installed plugin declares backend 'fa3' (--attention-backend)"),
                ("my_flash", "No module named 'my_flash'"),
            ),
            device="sim",
            would_run=("torch_native", "torch_padded"),
        ),
        StandInError(
            name="torch_native",
            problem="with it host_seq_lens is exact, and was decided to be none",
            would_run=("torch_padded",),
        ),
        DryStartError(device="cpu", problem="its constructor raised RuntimeError: no such kernel"),
        JobError(
            rank="1",
            size="4",
            what="a group of all ranks within 60 s",
            cause="Timed out after 61 seconds waiting for clients. 3/4 clients joined",
        ),
    ),
)
TRACES = Occasion(
    title="A trace",
    told="Raised by `backend-caps trace`, besides those of a dry run.",
    examples=(
        NoTimelineError(device="cpu", has_streams=False),
        TooManyStepsError(asked=32, most=8, context_length=152),
    ),
)
