"""The conformance kit: tests whether a backend's declaration is true.

It runs a backend, and compares it with itself under one changed condition at a time. For what a
pass proves and what not, see docs/explanation/what-a-pass-means.md. Imports torch.
"""

from backend_caps.extras import require_extra

require_extra("kit", __name__)

from backend_caps.kit.check import (
    Case,
    Check,
    CheckResult,
    Effort,
    Fault,
    Finding,
    Hint,
    Results,
    Verdict,
    require_device,
    subject_named,
)
from backend_caps.kit.errors import BaselineError, KitError
from backend_caps.kit.evidence import claims_of, evidence_file, evidence_of, write_evidence
from backend_caps.kit.execution import (
    CheckProgress,
    Fork,
    cases_on,
    find_case,
    run_case,
    run_checks,
)
from backend_caps.kit.journal import CheckObserver, CheckStep, Journal
from backend_caps.kit.models import single_threaded
from backend_caps.kit.observation import DistinctLines, FileLines, LineCounter, muffled
from backend_caps.kit.rig import Rig, difference, on_host, supplied
from backend_caps.kit.scenarios import CAUSAL, Forward, Scenario, draw, scenarios_of
from backend_caps.kit.subject import Subject

__all__ = [
    "CAUSAL",
    "BaselineError",
    "Case",
    "Check",
    "CheckObserver",
    "CheckProgress",
    "CheckResult",
    "CheckStep",
    "DistinctLines",
    "Effort",
    "Fault",
    "FileLines",
    "Finding",
    "Fork",
    "Forward",
    "Hint",
    "Journal",
    "KitError",
    "LineCounter",
    "Results",
    "Rig",
    "Scenario",
    "Subject",
    "Verdict",
    "cases_on",
    "claims_of",
    "difference",
    "draw",
    "evidence_file",
    "evidence_of",
    "find_case",
    "muffled",
    "on_host",
    "require_device",
    "run_case",
    "run_checks",
    "scenarios_of",
    "single_threaded",
    "subject_named",
    "supplied",
    "write_evidence",
]
