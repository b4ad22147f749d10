"""The conformance kit: is what a backend declares true?

It runs a backend, and compares it with itself under one changed condition at a time. What a pass
means, and what it cannot, stands in docs/explanation/what-a-pass-means.md. Imports torch.
"""

from backend_caps.kit.asked import checks_named, require_device, subject_named
from backend_caps.kit.check import Case, Check, Effort, Fault, Hint
from backend_caps.kit.claims import Claimed, claims_of
from backend_caps.kit.errors import (
    BaselineError,
    EvidenceError,
    UncheckableError,
    UnknownCaseError,
    UnknownCheckError,
    UnknownSubjectError,
)
from backend_caps.kit.evidence import evidence_file, evidence_of, write_evidence
from backend_caps.kit.journal import Journal
from backend_caps.kit.lines import FileLines, LineCounter
from backend_caps.kit.muffling import muffled
from backend_caps.kit.observing import (
    CheckObserver,
    CheckObservers,
    NoCheckObserver,
)
from backend_caps.kit.progress import CheckProgress
from backend_caps.kit.results import CheckResult, Finding, Results, Verdict
from backend_caps.kit.rig import Rig, difference, on_host, supplied
from backend_caps.kit.running import (
    cases_on,
    find_case,
    run_case,
    run_checks,
)
from backend_caps.kit.scenarios import CAUSAL, Forward, Scenario, draw, scenarios_of
from backend_caps.kit.subject import Subject
from backend_caps.kit.threads import single_threaded

__all__ = [
    "CAUSAL",
    "BaselineError",
    "Case",
    "Check",
    "CheckObserver",
    "CheckObservers",
    "CheckProgress",
    "CheckResult",
    "Claimed",
    "Effort",
    "EvidenceError",
    "Fault",
    "FileLines",
    "Finding",
    "Forward",
    "Hint",
    "Journal",
    "LineCounter",
    "NoCheckObserver",
    "Results",
    "Rig",
    "Scenario",
    "Subject",
    "UncheckableError",
    "UnknownCaseError",
    "UnknownCheckError",
    "UnknownSubjectError",
    "Verdict",
    "cases_on",
    "checks_named",
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
