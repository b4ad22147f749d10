"""A server's configuration, started small: what a plan comes to in real steps. Imports torch."""

from backend_caps.insight.dry_run.errors import CannotRunError, DryStartError, StandInError
from backend_caps.insight.dry_run.findings import Finding, NotAsDecided, findings_of
from backend_caps.insight.dry_run.running import (
    DryRun,
    Memory,
    Started,
    StepKind,
    dry_run,
    dry_start,
    fitting_models,
)
from backend_caps.insight.dry_run.sizes import GraphSizes, ServerSizes, Size, Sizes
from backend_caps.insight.dry_run.spending import AROUND, PhaseRun, Spent
from backend_caps.insight.dry_run.standing_in import (
    Asked,
    RunPlan,
    StandIn,
    Worsened,
    run_plan,
    told_of,
)

__all__ = [
    "AROUND",
    "Asked",
    "CannotRunError",
    "DryRun",
    "DryStartError",
    "Finding",
    "GraphSizes",
    "Memory",
    "NotAsDecided",
    "PhaseRun",
    "RunPlan",
    "ServerSizes",
    "Size",
    "Sizes",
    "Spent",
    "StandIn",
    "StandInError",
    "Started",
    "StepKind",
    "Worsened",
    "dry_run",
    "dry_start",
    "findings_of",
    "fitting_models",
    "run_plan",
    "told_of",
]
