"""Checks of a replay's metadata, and of preparation without host waits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from backend_caps.capability.kind import UNDECLARED
from backend_caps.capability.vocabulary import GraphMetadata
from backend_caps.kit import Case, Check, Fault, Forward, Hint, Rig, Subject
from backend_caps.kit.check import counted, replayed_forwards, rotated_cases
from backend_caps.kit.checks import replay
from backend_caps.kit.probes.graph_probe import Graphs
from backend_caps.kit.probes.playback import Player
from backend_caps.kit.probes.seq_lens import BOUND, CUTS, MIRROR, Reads, host_waits
from backend_caps.kit.probes.stories import Turn, story_of
from backend_caps.kit.rig import baseline_of
from backend_caps.report.check_catalog import CATALOG
from backend_caps.runtime.forward_batch import ForwardBatch
from backend_caps.simulator import Counts, HostSync, Simulation

_, _DEVICE, _IN_GRAPH = GraphMetadata


def level_of(subject: Subject, forward: Forward) -> GraphMetadata:
    """Return a backend's claim of `graph_metadata` for a forward."""
    return subject.claim_as(GraphMetadata, "graph_metadata", **forward.use)


def _faults_of(level: GraphMetadata, rig: Rig, case: Case) -> Iterator[Fault]:
    """Replay scenes, and list what breaks a level of `graph_metadata`."""
    scenario = case.batch_scenario
    scenes = replay.story(scenario, case.seed)
    expected = [rig.baseline(scene) for scene in scenes]
    with rig.running(case.schedule) as simulation:
        graphs = Graphs(rig, scenario).capture()
        planner = Planner(graphs, rig.subject, simulation)
        graphs.proxy.init_forward_metadata_out_graph = (
            planner.plan if level is _DEVICE else lambda _batch: None  # the graph has to do it
        )
        wrong = replay.wrong_replay(graphs, scenes, expected)
    if level is _DEVICE:
        yield from planner.faults()
    elif wrong is not None:
        yield Fault(what=f"with init_forward_metadata_out_graph left out, {wrong}")


class Planner:
    """Calls a backend's preparation of replays, and records its copies, waits and reads.

    Args:
        graphs: the graphs of the backend.
        subject: the backend, with its files.
        simulation: the simulated device, which counts copies; None on a real device.
    """

    def __init__(self, graphs: Graphs, subject: Subject, simulation: Simulation | None) -> None:
        self._backend, self._simulation = graphs.proxy.backend, simulation
        self._reads = Reads(subject)
        self._counts: list[Counts] = []
        self._waits: list[HostSync] = []

    def plan(self, batch: ForwardBatch) -> None:
        """Prepare one replay."""
        watched = self._reads.watch(batch)
        if self._simulation is None:
            self._backend.init_forward_metadata_out_graph(watched)
            return
        before = self._simulation.counts
        with host_waits(self._simulation) as waits:
            self._backend.init_forward_metadata_out_graph(watched)
        self._counts.append(self._simulation.counts - before)
        self._waits += waits

    def faults(self) -> Iterator[Fault]:
        """List reads of host values, host waits and copies."""
        where = "init_forward_metadata_out_graph"
        for read in self._reads.of(MIRROR | BOUND | CUTS)[:1]:
            yield Fault(what=f"{where} reads {read.name}, a host value", site=read.site)
        for wait in self._waits[:1]:
            yield Fault(what=f"{where} makes the host wait, by {wait.cause}", site=wait.site)
        for side in ("device", "host"):
            moved = max((getattr(each, f"bytes_to_{side}") for each in self._counts), default=0)
            if moved:
                yield Fault(what=f"{where} copies {moved} bytes to the {side}; none were expected")


def _hints_metadata(subject: Subject, _ran: Sequence[Case], rig: Rig) -> Iterator[Hint]:
    """Test the levels above the claimed ones, the best first."""
    levels = {forward: level_of(subject, forward) for forward in replay.replayed_of(subject)}
    below = [forward for forward, level in levels.items() if level is not _IN_GRAPH]
    if not below:
        return
    claimed = min(levels.values())
    cases = list(rotated_cases("metadata", subject, replay.HINTED, below))
    above = [level for level in (_IN_GRAPH, _DEVICE) if level > claimed]
    if (level := replay.first_right(above, _faults_of, rig, cases)) is not None:
        yield Hint(
            claim="graph_metadata",
            what=f"declared {claimed.name}; {len(cases)} cases of {replay.listed(below)} kept what "
            f"{level.name} asks for; candidate for {level.name}",
        )


METADATA = Check(
    about=CATALOG["metadata"],
    excuse=replay.unless_claiming("graph_metadata", "it claims HOST, which asks for nothing"),
    cases=lambda subject, effort: rotated_cases(
        "metadata", subject, effort, replay.claiming_forwards(subject, "graph_metadata")
    ),
    run=lambda rig, case: _faults_of(level_of(rig.subject, case.batch_scenario.forward), rig, case),
    hints=_hints_metadata,
    unfit=replay.no_graphs,
)


_NO_WAITS = "on cpu the host does the work itself, so it never waits"
_MOST_WAITS = 3
"""Faults of one case: a line in a loop waits many times."""


class _TurnWait(NamedTuple):
    """A host wait in a turn of a story."""

    method: str
    """The backend's method that waited."""
    wait: HostSync
    turn: Turn
    place: int
    """The index of the turn."""

    @property
    def is_forward(self) -> bool:
        """Whether a layer's forward waited, rather than the preparation."""
        return self.method == "forward"


def _run_prepare(rig: Rig, case: Case) -> Iterator[Fault]:
    first_of_line: dict[object, _TurnWait] = {}
    # An exception of the backend is a fault of another check, so it is no answer here.
    for each in baseline_of(lambda: _waits_of(rig, case)):
        use = each.turn.forward.use
        if each.is_forward or rig.subject.claim("sync_free_prepare", **use) is True:
            first_of_line.setdefault((each.method, each.wait.site), each)
    for each in islice(first_of_line.values(), _MOST_WAITS):
        yield _fault(rig.subject, each)


def _fault(subject: Subject, found: _TurnWait) -> Fault:
    site, turn = found.wait.site, found.turn
    reason = "its contract says Sync: none" if found.is_forward else "sync_free_prepare is claimed"
    count = len(turn.scene.counts)
    return Fault(
        what=f"{found.method} made the host wait, by {found.wait.cause} at "
        f"{Path(site.file).name}:{site.line}, in turn {found.place}, {turn.forward.value} of "
        f"{count} request{'s' if count > 1 else ''}; {reason}",
        site=site if subject.owns(site.file) else None,
    )


def _waits_of(rig: Rig, case: Case) -> Sequence[_TurnWait]:
    """Play a story, and list every host wait of the backend.

    Raises:
        Exception: any that the backend raises.
    """
    story = story_of(rig.subject, case.batch_scenario, case.seed)
    # Always lazily: in the eager schedule work runs at its launch, so the first `event.query()` of
    # a polling loop returns True, and the loop would not look like a wait.
    with rig.running("lazy") as simulation:
        player = Player(rig, story)
        if replayed_forwards(rig.subject):
            sizes = ((turn.scene.batch.batch_size, len(turn.scene.q)) for turn in story.turns)
            player.backend.init_cuda_graph_state(*map(max, zip(*sizes, strict=True)))
        turn_waits: list[_TurnWait] = []
        for place, turn in enumerate(story.turns):
            for method, call in _calls_of(rig.subject, player, turn):
                with host_waits(simulation) as waits:
                    call()
                turn_waits += [_TurnWait(method, wait, turn, place) for wait in waits]
        return turn_waits


def _calls_of(
    subject: Subject, player: Player, turn: Turn
) -> Iterator[tuple[str, Callable[[], object]]]:
    """List the calls, by name, that run a turn eagerly and then prepare it for a replay."""
    scene, backend = player.bring(turn), player.backend
    yield "init_forward_metadata", partial(backend.init_forward_metadata, scene.batch)
    yield "forward", partial(scene.forward, backend)
    if turn.forward in replayed_forwards(subject):
        for fn in (backend.init_forward_metadata_out_graph, backend.init_forward_metadata_in_graph):
            yield fn.__name__, partial(fn, scene.batch)


def _hints_prepare(subject: Subject, cases: Sequence[Case], rig: Rig) -> Iterator[Hint]:
    """Suggest the claim where no case waited in preparation."""
    stated = subject.declaration.capabilities.sync_free_prepare
    waits = (each for case in cases for each in _waits_of(rig, case) if not each.is_forward)
    if stated is True or not cases or any(waits):
        return
    claimed = "not declared, so False" if stated is UNDECLARED else "declared False"
    yield Hint(
        claim="sync_free_prepare",
        what=f"{claimed}; never waited {counted(cases)}; candidate for True",
    )


SYNC_FREE_PREPARE = Check(
    about=CATALOG["sync-free-prepare"],
    cases=lambda subject, effort: rotated_cases("sync-free-prepare", subject, effort, share=2),
    run=_run_prepare,
    hints=_hints_prepare,
    unfit=lambda device: _NO_WAITS if device == "cpu" else None,
)
