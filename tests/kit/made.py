"""Made subjects and checks, for the tests of the kit's own parts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from backend_caps_torch_native import TorchPadded

from backend_caps.kit import Case, Check, Effort, Fault, Forward, Rig, Scenario, Subject
from backend_caps.kit.check import cases_of
from backend_caps.report.check_catalog import CheckDescription
from tests.kit.specimen import subject_of

HONEST = subject_of(TorchPadded)
SCENARIO = Scenario(forward=Forward.DECODE)


def claiming(**claims: object) -> Subject:
    """Make a subject that claims something else."""
    capabilities = HONEST.declaration.capabilities.model_copy(update=claims)
    declaration = HONEST.declaration.model_copy(update={"capabilities": capabilities})
    return replace(HONEST, declaration=declaration)


def _cases(_subject: Subject, effort: Effort) -> Iterator[Case]:
    yield from cases_of("made", [SCENARIO], effort)


def _fault_of_odd_seeds(_rig: Rig, case: Case) -> Iterator[Fault]:
    if case.seed % 2:
        yield Fault(what=f"seed {case.seed} is odd")


def odd_check(code: str, *after: str, claim: str = "host_seq_lens") -> Check:
    """Make a check that faults odd seeds."""
    about = CheckDescription(
        code=code,
        claims=[claim],
        title="Seeds are even.",
        proves="nothing",
        cannot="anything",
        after=[*after],
    )
    return Check(about=about, cases=_cases, run=_fault_of_odd_seeds)


ODD = odd_check("made")
