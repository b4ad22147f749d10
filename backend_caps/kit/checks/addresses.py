"""A graph's memory stays where it was, whatever else the backend does meanwhile."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from backend_caps.kit.check import Case, Check, Effort, Fault
from backend_caps.kit.probes.captured import Graphs
from backend_caps.kit.probes.replays import (
    EAGER_CHECKS,
    longest,
    no_graphs,
    replayed_of,
    story,
    wrong_replay,
)
from backend_caps.kit.rig import Rig, difference
from backend_caps.kit.rotating import rotated_cases
from backend_caps.kit.scenarios import MOST_REQUESTS
from backend_caps.kit.subject import Subject

_SMALL = (1, 2)
"""Requests of the graphs that are captured first."""
_COUNTS = (2, 2, 1)
"""Requests of the batches that replay them, the first one before anything grows."""


def _excuse(subject: Subject) -> str | None:
    return None if replayed_of(subject) else "it claims no kind of batch in graph_replay"


def _cases(subject: Subject, effort: Effort) -> Iterable[Case]:
    return rotated_cases("addresses", subject, replayed_of(subject), effort)


def _run(rig: Rig, case: Case) -> Iterator[Fault]:
    assert case.scenario is not None, "each case has batches"
    first, *small = story(case.scenario, case.seed, _COUNTS)
    large = longest(case.scenario, case.seed, MOST_REQUESTS)
    expected, expected_large = [rig.baseline(scene) for scene in small], rig.baseline(large)
    with rig.running(case.schedule):
        graphs = Graphs(rig, case.scenario)
        graphs.capture(_SMALL)
        graphs.launch(graphs.bring(first))
        differs = difference(graphs.run(large).attended(), expected_large, graphs.tolerance)
        behind_eager = differs or wrong_replay(graphs, small, expected)
        graphs.capture([MOST_REQUESTS])
        behind_capture = wrong_replay(graphs, [*small, large], [*expected, expected_large])
    if behind_eager is not None:
        yield Fault(what=f"behind an eager forward of {MOST_REQUESTS} requests, {behind_eager}")
    elif behind_capture is not None:
        yield Fault(what=f"behind a capture for {MOST_REQUESTS} requests, {behind_capture}")


CHECK = Check(
    code="addresses",
    claims=("graph_replay",),
    title="A graph's memory stays where it was.",
    proves="Graphs still give what eager forwards give once the backend has run a larger batch "
    "with longer contexts eagerly, and once a larger graph was captured beside them.",
    cannot="Growth by what no case has: more requests than some, and contexts of thousands.",
    excuse=_excuse,
    cases=_cases,
    run=_run,
    after=(*EAGER_CHECKS, "replay"),
    unfit=no_graphs,
)
