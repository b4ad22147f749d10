"""The conformance kit: is what a backend declares true?

It runs a backend, and compares it with itself under one changed condition at a time. What a pass
means, and what it cannot, stands in docs/explanation/what-a-pass-means.md. Imports torch.
"""

from backend_caps.conformance.kit.check import Case, Check, Effort, Fault, Hint
from backend_caps.conformance.kit.errors import (
    BaselineError,
    UncheckableError,
    UnknownCaseError,
    UnknownCheckError,
)
from backend_caps.conformance.kit.results import CheckResult, Finding, Results, Status
from backend_caps.conformance.kit.rig import Rig, difference, on_host, supplied
from backend_caps.conformance.kit.running import (
    CheckObserver,
    NoCheckObserver,
    find_case,
    run_case,
    run_checks,
)
from backend_caps.conformance.kit.scenarios import CAUSAL, Forward, Scenario, draw, scenarios_of
from backend_caps.conformance.kit.subject import Subject

__all__ = [
    "CAUSAL",
    "BaselineError",
    "Case",
    "Check",
    "CheckObserver",
    "CheckResult",
    "Effort",
    "Fault",
    "Finding",
    "Forward",
    "Hint",
    "NoCheckObserver",
    "Results",
    "Rig",
    "Scenario",
    "Status",
    "Subject",
    "UncheckableError",
    "UnknownCaseError",
    "UnknownCheckError",
    "difference",
    "draw",
    "find_case",
    "on_host",
    "run_case",
    "run_checks",
    "scenarios_of",
    "supplied",
]
