"""No forward of the relay loop needs the mirror, where the backend says that it needs none."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress

from backend_caps.capability.vocabulary import HostSeqLens
from backend_caps.kit.check import Case, Check, Effort, Fault, raised
from backend_caps.kit.probes.lengths import (
    level_of,
    relayed_cases,
    relayed_scenarios,
    run_told,
    scenario_of,
    scenes_of,
)
from backend_caps.kit.probes.reads import BOUND, MIRROR, Read, Reads, told
from backend_caps.kit.rig import Rig, baseline_of, difference
from backend_caps.kit.subject import Subject
from backend_caps.simulator import Site

_CODE = "mirror-absent"
_WITHOUT = HostSeqLens.NONE, HostSeqLens.UPPER_BOUND


def _excuse(subject: Subject) -> str | None:
    if not any(relayed_scenarios(subject, *_WITHOUT)):
        return "it claims EXACT: the mirror is there"
    return None


def _cases(subject: Subject, effort: Effort) -> Iterable[Case]:
    return relayed_cases(_CODE, subject, effort, *_WITHOUT)


def _run(rig: Rig, case: Case) -> Iterator[Fault]:
    scenario, scenes = scenario_of(case), scenes_of(rig.subject, case)
    expected = baseline_of(lambda: run_told(rig, scenes, HostSeqLens.EXACT))
    level = level_of(rig.subject, scenario)
    site: Site | None = None
    try:
        found = run_told(rig, scenes, level)
    except Exception as error:  # noqa: BLE001 - a plugin raises what it likes
        what: str | None = f"it {raised(error)}"
        site = rig.subject.line_in(error.__traceback__)
    else:
        what = difference(found, expected, rig.subject.tolerance(scenario.dtype))
    if what is not None:
        reads = _reads(rig, case, level)
        site = site or (reads[0].site if reads else None)
        behind = "" if scenes[1] is None else ", behind prompts that had it,"
        yield Fault(
            what=f"without the mirror{behind} {what}{_told(rig.subject, case, reads)}", site=site
        )


def _reads(rig: Rig, case: Case, level: HostSeqLens) -> Sequence[Read]:
    """Run once more with the mirror, and take down which lines read what is not claimed."""
    reads = Reads(rig.subject)
    with suppress(Exception):  # what was read before it raised counts
        run_told(rig, scenes_of(rig.subject, case), HostSeqLens.EXACT, reads=reads)
    return reads.of(MIRROR | BOUND if level is HostSeqLens.NONE else MIRROR)


def _told(subject: Subject, case: Case, reads: Sequence[Read]) -> str:
    if not reads:
        return ""
    forward = scenario_of(case).forward
    use = f"{forward.role.value}/{forward.phase.value}"
    return f"; where it is there, {use} reads {told(reads, subject.root)}"


CHECK = Check(
    code=_CODE,
    claims=("host_seq_lens",),
    title="The mirror is not needed.",
    proves="Decode, verify, draft and draft-extend forwards get None for the mirror and its sum, "
    "some of them behind prompts that had both, and give what they give with them.",
    cannot="A read on a path that no case takes; the coverage of lines says which those are. A "
    "backend that reads the mirror where it is there, and gets along without, is not at fault.",
    excuse=_excuse,
    cases=_cases,
    run=_run,
)
