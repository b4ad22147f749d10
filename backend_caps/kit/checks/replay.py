"""A replay gives what an eager forward gives, for each kind of batch that is claimed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace

from backend_caps.capability.vocabulary import BatchKind
from backend_caps.kit.check import Case, Check, Effort, Fault, Hint
from backend_caps.kit.probes.captured import Graphs
from backend_caps.kit.probes.reads import BOUND, CUTS, MIRROR, Read, Reads
from backend_caps.kit.probes.replays import (
    EAGER_CHECKS,
    LAZY,
    NUM_STREAMS,
    graphed_of,
    is_right,
    listed,
    no_graphs,
    ordered,
    replayed_of,
    story,
    wrong_replay,
)
from backend_caps.kit.rig import Rig
from backend_caps.kit.rotating import long_cases, rotated_cases
from backend_caps.kit.scenarios import Scenario
from backend_caps.kit.subject import Subject
from backend_caps.simulator import OrderPolicy, Schedule

_OWN_STARVED = Schedule(OrderPolicy.STARVE, NUM_STREAMS - 1)
_HINTED = Effort(seeds=range(2))


def _excuse(subject: Subject) -> str | None:
    return None if replayed_of(subject) else "it claims no kind of batch in graph_replay"


def _cases(subject: Subject, effort: Effort) -> Iterator[Case]:
    """Try each forward in plain order, one over long contexts, and one in each of some orders."""
    for seed in effort.seeds:
        one = Effort(seeds=(seed,))
        cases = list(rotated_cases("replay", subject, replayed_of(subject), one))
        yield from cases
        yield from long_cases(cases, one)
        for place, schedule in enumerate((LAZY, _OWN_STARVED, Schedule(OrderPolicy.RANDOM, seed))):
            yield replace(cases[(seed + place) % len(cases)], schedule=schedule)


def _run(rig: Rig, case: Case) -> Iterator[Fault]:
    assert case.scenario is not None, "each case has batches"
    scenes = story(case.scenario, case.seed)
    expected = [rig.baseline(scene) for scene in scenes]
    with ordered(rig, case.schedule):
        graphs = Graphs(rig, case.scenario)
        graphs.capture()
        wrong = wrong_replay(graphs, scenes, expected)
    if wrong is not None:
        read = _read_in_capture(rig, case.scenario)
        told = "" if read is None else f"; its capture reads {read.name}, which a replay does not"
        yield Fault(what=f"{wrong}{told}", site=None if read is None else read.site)


def _read_in_capture(rig: Rig, scenario: Scenario) -> Read | None:
    """Find the first host length that is read where a graph is captured, in a capture of its own.

    None where nothing is read, and where this capture fails: the fault stands without it.
    """
    reads = Reads(rig.subject)
    with suppress(Exception), rig.running():
        graphs = Graphs(rig, scenario)
        graphs.between.watch = reads.watch
        graphs.capture()
    return next(iter(reads.of(MIRROR | BOUND | CUTS)), None)


def _hints(subject: Subject, _ran: Sequence[Case], rig: Rig) -> Iterator[Hint]:
    """Try the kinds that are not claimed."""
    claimed = replayed_of(subject)
    others = [own for own in graphed_of(subject) if own not in claimed]
    for kind in BatchKind:
        forwards = [own for own in others if own.batch_kind is kind]
        cases = list(rotated_cases("replay", subject, forwards, _HINTED))
        if cases and all(is_right(_run, rig, case) for case in cases):
            yield Hint(
                claim="graph_replay",
                what=f"graph_replay leaves out {kind.value}; replayed right in {len(cases)} cases "
                f"of {listed(forwards)}; candidate",
            )


CHECK = Check(
    code="replay",
    claims=("graph_replay",),
    title="A replay gives what an eager forward gives.",
    proves="Graphs that were captured once give, replay after replay, what eager forwards give: "
    "for each kind of batch that is claimed, with other lengths, page tables, numbers of requests "
    "and contents each time, full and padded, none of which waits for the one before, with the "
    "device's work in some orders; and they write to no slot but the batch's.",
    cannot="Larger graphs, several layers, and what only shows after more replays than a few.",
    excuse=_excuse,
    cases=_cases,
    run=_run,
    hints=_hints,
    after=EAGER_CHECKS,
    unfit=no_graphs,
)
