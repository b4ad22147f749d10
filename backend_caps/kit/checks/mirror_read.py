"""Host lengths that a backend asks for are read; where they are not, it claims too little.

It fails nobody. What it says is a hint, and rests on the cases that ran.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress

from backend_caps.capability.scale import UNDECLARED
from backend_caps.capability.vocabulary import HostSeqLens
from backend_caps.kit.check import Case, Check, Effort, Fault, Hint
from backend_caps.kit.probes.lengths import (
    level_of,
    loose_bounds,
    relayed_cases,
    relayed_scenarios,
    run_told,
    scenario_of,
    scenes_of,
)
from backend_caps.kit.probes.reads import BOUND, MIRROR, Read, Reads, told
from backend_caps.kit.rig import Rig, baseline_of, difference
from backend_caps.kit.subject import Subject

_CODE = "mirror-read"
_ASKED = HostSeqLens.EXACT, HostSeqLens.UPPER_BOUND


def _excuse(subject: Subject) -> str | None:
    if not any(relayed_scenarios(subject, *_ASKED)):
        return "it claims NONE: nothing is asked for"
    return None


def _cases(subject: Subject, effort: Effort) -> Iterable[Case]:
    return relayed_cases(_CODE, subject, effort, *_ASKED)


def _run(rig: Rig, case: Case) -> Iterator[Fault]:
    """Run it with all that it asks for, which other checks judge."""
    level = level_of(rig.subject, scenario_of(case))
    baseline_of(lambda: run_told(rig, scenes_of(rig.subject, case), level))
    yield from ()


def _hints(subject: Subject, cases: Sequence[Case], rig: Rig) -> Iterator[Hint]:
    """Look at each level that is claimed by itself: a condition may claim one more."""
    for level in _ASKED:
        own = [case for case in cases if level_of(subject, scenario_of(case)) is level]
        found = None
        with suppress(Exception):  # it ran before: what comes and goes is no ground for a hint
            found = _candidate(rig, level, own) if own else None
        if found is not None:
            seen, candidate = found
            yield Hint(
                claim="host_seq_lens",
                what=f"{_claimed(subject, level)}; {seen} {_over(own)}; "
                f"candidate for {candidate.name}{_asks_too(subject)}",
            )


def _candidate(
    rig: Rig, level: HostSeqLens, cases: Sequence[Case]
) -> tuple[str, HostSeqLens] | None:
    """Say what was seen, and the level that would do; None where what is claimed is needed.

    A bound costs no wait: that an output is the same without one asks for nothing.
    """
    read = next((one for case in cases for one in _reads(rig, level, case)), None)
    if read is None:
        return "never read", HostSeqLens.NONE
    if level is not HostSeqLens.EXACT or rig.device == "cuda":
        # A wrong length may end in a fault of the real device, after which nothing runs on it.
        return None
    if all(_is_same(rig, case, HostSeqLens.NONE) for case in cases):
        where = told([read], rig.subject.root)
        return f"reads {where}, and outputs are the same without it", HostSeqLens.NONE
    if all(_is_same(rig, case, HostSeqLens.EXACT) for case in cases):
        return "outputs are the same with a loose bound in its place", HostSeqLens.UPPER_BOUND
    return None


def _reads(rig: Rig, level: HostSeqLens, case: Case) -> Sequence[Read]:
    reads = Reads(rig.subject)
    run_told(rig, scenes_of(rig.subject, case), level, reads=reads)
    return reads.of(MIRROR if level is HostSeqLens.EXACT else BOUND)


def _is_same(rig: Rig, case: Case, level: HostSeqLens) -> bool:
    """Tell whether nothing in place of the lengths, or a loose bound, changes no output."""
    scenes = scenes_of(rig.subject, case)
    bounds = None if level is HostSeqLens.NONE else loose_bounds(scenes[0], case)
    expected = run_told(rig, scenes, HostSeqLens.EXACT)
    try:
        found = run_told(rig, scenes, level, bounds=bounds)
    except Exception:  # noqa: BLE001 - who raises needs them
        return False
    return difference(found, expected, rig.subject.tolerance(scenario_of(case).dtype)) is None


def _claimed(subject: Subject, level: HostSeqLens) -> str:
    is_said = subject.declaration.capabilities.host_seq_lens is not UNDECLARED
    return f"declared {level.name}" if is_said else f"not declared, so {level.name}"


def _over(cases: Sequence[Case]) -> str:
    forwards = sorted({scenario_of(case).forward.value for case in cases})
    return f"in {len(cases)} cases over {len(forwards)} forwards ({', '.join(forwards)})"


def _asks_too(subject: Subject) -> str:
    if subject.claim("max_context_len_known") is True:
        return ""
    return ", which max_context_len_known=True has to come with"


CHECK = Check(
    code=_CODE,
    claims=("host_seq_lens",),
    title="The host lengths that are asked for are read.",
    proves="Nothing against the claim: who asks for more than it reads is right, and slower. It "
    "says where no case read the mirror or the bound, or where less would have done.",
    cannot="A read on a path that no case takes; the coverage of lines says which those are.",
    excuse=_excuse,
    cases=_cases,
    run=_run,
    hints=_hints,
)
