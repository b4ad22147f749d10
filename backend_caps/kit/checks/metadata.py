"""The metadata of a replay is rebuilt by whom the declaration names: the device, or the graph."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial

from backend_caps.capability.vocabulary import GraphMetadata
from backend_caps.kit.check import Case, Check, Effort, Fault, Hint
from backend_caps.kit.probes.captured import Graphs
from backend_caps.kit.probes.reads import BOUND, CUTS, MIRROR, Reads
from backend_caps.kit.probes.replays import (
    EAGER_CHECKS,
    is_right,
    listed,
    no_graphs,
    replayed_of,
    story,
    wrong_replay,
)
from backend_caps.kit.rig import Rig
from backend_caps.kit.rotating import rotated_cases
from backend_caps.kit.scenarios import Forward
from backend_caps.kit.subject import Subject
from backend_caps.runtime.forward_batch import ForwardBatch
from backend_caps.simulator import Counts, HostSync, Simulation

_HINTED = Effort(seeds=range(2))
_HOST, _DEVICE, _IN_GRAPH = GraphMetadata


def level_of(subject: Subject, forward: Forward) -> GraphMetadata:
    """Say how a backend claims to rebuild metadata, in a forward's role and phase."""
    level = subject.claim("graph_metadata", forward.role, forward.phase)
    assert isinstance(level, GraphMetadata), "a level is one of the scale"
    return level


def _held(subject: Subject) -> Sequence[Forward]:
    """List the forwards whose claim asks for something."""
    return [own for own in replayed_of(subject) if level_of(subject, own) is not _HOST]


def _excuse(subject: Subject) -> str | None:
    if not replayed_of(subject):
        return "it claims no kind of batch in graph_replay"
    return None if _held(subject) else "it claims HOST, which asks for nothing"


def _cases(subject: Subject, effort: Effort) -> Iterable[Case]:
    return rotated_cases("metadata", subject, _held(subject), effort)


def _run(rig: Rig, case: Case) -> Iterator[Fault]:
    assert case.scenario is not None, "each case has batches"
    level = level_of(rig.subject, case.scenario.forward)
    return _faults_of(level, rig, case)


def _faults_of(level: GraphMetadata, rig: Rig, case: Case) -> Iterator[Fault]:
    """Hold replays to a level."""
    assert case.scenario is not None, "each case has batches"
    scenes = story(case.scenario, case.seed)
    expected = [rig.baseline(scene) for scene in scenes]
    with rig.running(case.schedule) as simulation:
        graphs = Graphs(rig, case.scenario)
        graphs.capture()
        planner = Planner(graphs, rig.subject, simulation)
        graphs.between.out_graph = planner.plan if level is _DEVICE else _no_plan
        wrong = wrong_replay(graphs, scenes, expected)
    if level is _DEVICE:
        yield from planner.faults()
    elif wrong is not None:
        yield Fault(what=f"with init_forward_metadata_out_graph left out, {wrong}")


def _no_plan(_batch: ForwardBatch) -> None:
    """Do nothing before a replay: the graph has to."""


class Planner:
    """Lets a backend prepare replays, and watches what that costs.

    Args:
        graphs: whose backend.
        subject: the same, with its files.
        simulation: counts; None on a real device, where nobody does.
    """

    def __init__(self, graphs: Graphs, subject: Subject, simulation: Simulation | None) -> None:
        self._backend = graphs.between.backend
        self._simulation = simulation
        self._reads = Reads(subject)
        self._spent: list[Counts] = []
        self._waits: list[HostSync] = []

    def plan(self, batch: ForwardBatch) -> None:
        """Let it prepare one."""
        watched = self._reads.watch(batch)
        if self._simulation is None:
            self._backend.init_forward_metadata_out_graph(watched)
            return
        run, before = self._simulation, self._simulation.counts
        num_hidden, num_open = len(run.hidden_syncs), len(run.host_waits)
        self._backend.init_forward_metadata_out_graph(watched)
        self._spent.append(run.counts - before)
        self._waits += run.hidden_syncs[num_hidden:] + run.host_waits[num_open:]

    def faults(self) -> Iterator[Fault]:
        """Say what is no device work."""
        where = "init_forward_metadata_out_graph"
        for read in self._reads.of(MIRROR | BOUND | CUTS)[:1]:
            yield Fault(what=f"{where} reads {read.name}, a host value", site=read.site)
        for wait in self._waits[:1]:
            yield Fault(what=f"{where} makes the host wait, by {wait.cause}", site=wait.site)
        for direction, moved in (
            ("to the device", max((own.bytes_to_device for own in self._spent), default=0)),
            ("to the host", max((own.bytes_to_host for own in self._spent), default=0)),
        ):
            if moved:
                yield Fault(what=f"{where} copies {moved} bytes {direction}; none were expected")


def _hints(subject: Subject, _ran: Sequence[Case], rig: Rig) -> Iterator[Hint]:
    """Try the levels above the claimed ones, the best first."""
    below = [own for own in replayed_of(subject) if level_of(subject, own) is not _IN_GRAPH]
    if not below:
        return
    claimed = min(level_of(subject, own) for own in below)
    cases = list(rotated_cases("metadata", subject, below, _HINTED))
    for level in (_IN_GRAPH, _DEVICE):
        if level > claimed and all(is_right(partial(_faults_of, level), rig, own) for own in cases):
            yield Hint(
                claim="graph_metadata",
                what=f"declared {claimed.name}; {len(cases)} cases of {listed(below)} kept what "
                f"{level.name} asks for; candidate for {level.name}",
            )
            return


CHECK = Check(
    code="metadata",
    claims=("graph_metadata",),
    title="A replay's metadata is rebuilt by whom the declaration names.",
    proves="Under IN_GRAPH, replays are right though nothing was prepared out of the graph. Under "
    "DEVICE, what is prepared out of it copies nothing between host and device, does not wait, and "
    "reads no length of the host.",
    cannot="Host work that leaves no such trace: numbers that the backend counts up by itself.",
    excuse=_excuse,
    cases=_cases,
    run=_run,
    hints=_hints,
    after=(*EAGER_CHECKS, "replay"),
    unfit=no_graphs,
)
