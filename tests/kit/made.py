"""Made subjects and checks, for the tests of the kit's own parts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from backend_caps_torch_native import TorchPadded

from backend_caps.kit import Case, Check, Effort, Fault, Forward, Rig, Scenario, Subject
from backend_caps.kit.check import always, cases_of
from tests.kit.liars.liar import liar

HONEST = liar(TorchPadded, seen="-", check="-").subject
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


ODD = Check(
    code="made",
    claims=("host_seq_lens",),
    title="Seeds are even.",
    proves="nothing",
    cannot="anything",
    excuse=always,
    cases=_cases,
    run=_fault_of_odd_seeds,
)
"""A check that faults odd seeds."""
