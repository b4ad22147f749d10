from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from torch_native_caps import TORCH_NATIVE

from backend_caps import BatchKind, GraphMetadata, HostSeqLens, SharedReadsEnd
from backend_caps.kit import (
    Case,
    Check,
    CheckResult,
    Effort,
    Forward,
    Rig,
    Scenario,
    Subject,
    Verdict,
    run_case,
    run_checks,
)
from backend_caps.kit.checks.preparation import METADATA, Planner
from backend_caps.kit.checks.replay import ADDRESSES, READS_END, REPLAY, story
from backend_caps.kit.probes.graph_probe import Graphs
from backend_caps.runtime.forward_batch import ForwardBatch
from backend_caps.simulator import Schedule
from tests.kit.liars.graphs import TableCopiedBeside
from tests.kit.made import HONEST, claiming
from tests.kit.specimen import subject_of
from tests.kit.specimens import SUBJECTS

GRAPH_CHECKS = (REPLAY, METADATA, ADDRESSES, READS_END)
NATIVE = Subject(name="torch_native", declaration=TORCH_NATIVE)
DECODE = Scenario(forward=Forward.DECODE)
SINGLE = frozenset({BatchKind.SINGLE_TOKEN_DECODE})
ONE = Effort(seeds=[1])
every_check = pytest.mark.parametrize("check", GRAPH_CHECKS, ids=lambda own: own.code)


class CopyNotAwaited(TableCopiedBeside):
    """Copies the page table beside the graph, which does not wait for the copy."""

    def captured(self, batch: ForwardBatch) -> ForwardBatch:
        """Wait for nothing."""
        return batch


def claims_single(subject: Subject) -> Subject:
    """Let a backend claim graphs of single tokens alone."""
    capabilities = subject.declaration.capabilities.model_copy(update={"graph_replay": SINGLE})
    declaration = subject.declaration.model_copy(update={"capabilities": capabilities})
    return replace(subject, declaration=declaration)


def _result(subject: Subject, check: Check, effort: Effort = ONE) -> CheckResult:
    return run_checks(subject, [check], effort=effort).checks[0]


def _decode(check: Check, schedule: str = "eager") -> Case:
    """Make a case of decodes."""
    return Case(check=check.code, scenario=DECODE, schedule=Schedule.parse(schedule))


def _hints(subject: Subject, check: Check) -> Sequence[tuple[str, str]]:
    return [(hint.claim, hint.what) for hint in _result(subject, check).hints]


def test_orders_of_reads_end_are_lazy_starved_and_random() -> None:
    """Each forward is tried lazily, and all orders come up."""
    cases = list(READS_END.cases(HONEST, ONE))

    schedules = [str(case.schedule) for case in cases]
    assert schedules[:4] == ["lazy"] * 4
    assert set(schedules[4:]) == {"eager", *(f"starve:{stream}" for stream in range(4)), "random:1"}


def test_orders_of_replays_are_plain_first() -> None:
    """Each forward is tried in plain order, and one over long contexts, and one in some others."""
    cases = list(REPLAY.cases(HONEST, ONE))

    schedules = [str(case.schedule) for case in cases]
    assert schedules == [*["eager"] * 5, "lazy", "starve:3", "random:1"]
    assert [own.scenario.max_context_len > 256 for own in cases if own.scenario].index(True) == 4


def test_host_work_is_not_counted_on_a_real_device() -> None:
    """Nobody counts there; what is read of the host is seen all the same."""
    rig = Rig(subject=SUBJECTS["uploads_lengths"])
    with rig.running():
        graphs = Graphs(rig, DECODE)
        planner = Planner(graphs, rig.subject, None)
        batch = graphs.bring(story(DECODE, 0, [2])[0]).batch
        graphs.proxy.init_cuda_graph_state(4, 4)

        planner.plan(batch)

    assert [own.what.split()[1] for own in planner.faults()] == ["reads"]


def test_replay_that_is_wrong_by_itself_says_nothing_of_the_point() -> None:
    """Where nobody writes and it is wrong too, another check has to say so."""
    subject = subject_of(CopyNotAwaited, shared_reads_end=SharedReadsEnd.PRE_REPLAY)

    result = run_case(subject, READS_END, _decode(READS_END, "lazy"))

    assert result.status is Verdict.NOT_CHECKED
    assert "in a replay that nobody disturbs, " in result.reason


def test_kinds_that_are_left_out_are_hinted_at() -> None:
    """Graphs of what is not claimed were right, in so many cases."""
    found = _hints(claiming(graph_replay=SINGLE), REPLAY)

    assert found == [
        ("graph_replay", f"graph_replay leaves out {kind}; replayed right in {seen}; candidate")
        for kind, seen in (
            ("uniform_batch", "4 cases of verify, tree"),
            ("mixed_batch", "2 cases of mixed"),
        )
    ]


@every_check
def test_who_bakes_host_values_is_given_no_hint(check: Check) -> None:
    """A backend whose graphs would be wrong claims enough."""
    assert _hints(NATIVE, check) == []


@pytest.mark.parametrize(
    ("subject", "what"),
    [
        pytest.param(
            claiming(graph_metadata=GraphMetadata.HOST, graph_replay=SINGLE),
            "declared HOST; 2 cases of decode kept what IN_GRAPH asks for; candidate for IN_GRAPH",
            id="in the graph",
        ),
        pytest.param(claims_single(SUBJECTS["table_copied_first"]), None, id="as it is"),
    ],
)
def test_metadata_that_asks_for_less_is_hinted_at(subject: Subject, what: str | None) -> None:
    """What is rebuilt by the device, or by the graph, may be claimed so."""
    expected = [] if what is None else [("graph_metadata", what)]

    assert _hints(subject, METADATA) == expected


def test_point_that_is_later_than_needed_is_hinted_at() -> None:
    """Nobody read behind an earlier point, in so many cases."""
    subject = claiming(shared_reads_end=SharedReadsEnd.UNKNOWN, graph_replay=SINGLE)

    ((claim, what),) = _hints(subject, READS_END)

    assert claim == "shared_reads_end"
    assert what == (
        "declared UNKNOWN; what was written behind IN_REPLAY changed nothing in 2 cases of decode; "
        "candidate for IN_REPLAY"
    )


def test_point_is_not_hinted_at_on_a_real_device() -> None:
    """Its own order alone shows too little."""
    hints = READS_END.hints
    assert hints is not None

    assert list(hints(HONEST, (), Rig(subject=HONEST, device="cuda"))) == []


def test_host_lengths_are_those_that_are_claimed() -> None:
    """Graphs are captured and replayed with the mirror where it is claimed, and without else."""
    seen = []
    for level in (HostSeqLens.EXACT, HostSeqLens.NONE):
        rig = Rig(subject=claiming(host_seq_lens=level))
        with rig.running():
            graphs = Graphs(rig, DECODE)
            batch = graphs.bring(story(DECODE, 0, [2])[0]).batch
            seen.append(batch.seq_lens_cpu is not None)

    assert seen == [True, False]
