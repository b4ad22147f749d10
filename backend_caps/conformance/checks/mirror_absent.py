"""No forward of the relay loop needs the mirror, where the backend says that it needs none."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from backend_caps.capability.kind import Phase
from backend_caps.capability.vocabulary import HostSeqLens
from backend_caps.conformance.kit.check import Case, Check, Effort, Fault, cases_of
from backend_caps.conformance.kit.rig import Rig, difference
from backend_caps.conformance.kit.scenarios import Forward, draw, scenarios_of
from backend_caps.conformance.kit.subject import Subject

_RELAYED = tuple(own for own in Forward if own.phase is not Phase.PREFILL)


def _excuse(subject: Subject) -> str | None:
    if subject.claim("host_seq_lens") is HostSeqLens.EXACT:
        return "it claims EXACT: the mirror is there"
    return None


def _cases(subject: Subject, effort: Effort) -> Iterable[Case]:
    return cases_of("mirror-absent", scenarios_of(subject, _RELAYED), effort)


def _run(rig: Rig, case: Case) -> Iterator[Fault]:
    assert case.scenario is not None, "each case has batches"
    scene = draw(case.scenario, case.seed)
    expected = rig.baseline(scene)
    with rig.running(case.schedule):
        found = rig.eager(scene)
    differs = difference(found, expected, rig.subject.tolerance(case.scenario.dtype))
    if differs is not None:
        yield Fault(what=f"without the mirror {differs}")


CHECK = Check(
    code="mirror-absent",
    claims=("host_seq_lens",),
    title="The mirror is not needed.",
    proves="Decode, verify, draft and draft-extend forwards get None for the mirror and its sum, "
    "and give what they give with it.",
    cannot="A read on a path that no case takes; the coverage of lines says which those are.",
    excuse=_excuse,
    cases=_cases,
    run=_run,
)
