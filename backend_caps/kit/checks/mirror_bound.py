"""A bound that is not the length changes nothing, where the backend asks for no more."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from backend_caps.capability.vocabulary import HostSeqLens
from backend_caps.kit.check import Case, Check, Effort, Fault, raised
from backend_caps.kit.probes.lengths import (
    loose_bounds,
    relayed_cases,
    relayed_scenarios,
    run_told,
    scenario_of,
    scenes_of,
)
from backend_caps.kit.probes.reads import BOUND, Reads
from backend_caps.kit.rig import Rig, baseline_of, difference
from backend_caps.kit.rotating import long_cases
from backend_caps.kit.subject import Subject

_CODE, _BOUND = "mirror-bound", HostSeqLens.UPPER_BOUND


def _excuse(subject: Subject) -> str | None:
    if not any(relayed_scenarios(subject, _BOUND)):
        return "it does not claim UPPER_BOUND: no bound is read"
    return None


def _cases(subject: Subject, effort: Effort) -> Iterable[Case]:
    cases = list(relayed_cases(_CODE, subject, effort, _BOUND))
    yield from cases
    yield from long_cases(cases, effort)


def _run(rig: Rig, case: Case) -> Iterator[Fault]:
    scenes = scenes_of(rig.subject, case)
    bounds, reads = loose_bounds(scenes[0], case), Reads(rig.subject)
    expected = baseline_of(lambda: run_told(rig, scenes, _BOUND))
    told = f"with bounds {bounds.tolist()} of lengths {scenes[0].batch.seq_lens.tolist()}"
    try:
        found = run_told(rig, scenes, _BOUND, bounds=bounds, reads=reads)
    except Exception as error:  # noqa: BLE001 - a plugin raises what it likes
        site = rig.subject.line_in(error.__traceback__)
        yield Fault(what=f"{told} it {raised(error)}", site=site)
        return
    tolerance = rig.subject.tolerance(scenario_of(case).dtype)
    differs = difference(found, expected, tolerance)
    if differs is not None:
        read = reads.of(BOUND)
        yield Fault(what=f"{told} {differs}", site=read[0].site if read else None)


CHECK = Check(
    code=_CODE,
    claims=("host_seq_lens",),
    title="Any bound will do.",
    proves="Decode, verify, draft and draft-extend forwards get None for the mirror and its sum, "
    "and bounds from the length itself to the longest context, another for each request; and give "
    "what they give with bounds that are the lengths.",
    cannot="What a bound that is kept from one batch to the next does; `serving` runs those.",
    excuse=_excuse,
    cases=_cases,
    run=_run,
)
