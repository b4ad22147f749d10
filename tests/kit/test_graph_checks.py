from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache

import pytest
import torch
from backend_caps_torch_native import TorchPadded
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
    draw,
    run_case,
    run_checks,
)
from backend_caps.kit.checks.growth import (
    HeldMemory,
    grown_place,
    growth,
    held_memory,
    quickly_collected,
)
from backend_caps.kit.checks.preparation import METADATA, Planner
from backend_caps.kit.checks.replay import ADDRESSES, READS_END, REPLAY, story
from backend_caps.kit.probes.graph_probe import Graphs
from backend_caps.runtime.forward_batch import ForwardBatch
from backend_caps.simulator import Schedule
from tests.kit.liars.graphs import TableCopiedBeside
from tests.kit.made import HONEST, SCENARIO, claiming
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


def _hints(subject: Subject, check: Check) -> Sequence[tuple[str, str]]:
    return [(hint.claim, hint.what) for hint in _result(subject, check).hints]


def test_orders_of_reads_end_are_lazy_starved_and_random() -> None:
    """Each forward is tried lazily, and all orders come up."""
    cases = list(READS_END.cases(HONEST, ONE))

    schedules = [str(case.schedule) for case in cases]
    assert schedules[:4] == ["lazy"] * 4
    assert set(schedules[4:]) == {"eager", *(f"starve:{stream}" for stream in range(4)), "random:1"}


def test_orders_of_replays_are_plain_first() -> None:
    """Each forward is tried in plain order, one over long and one over shared contexts, too."""
    cases = list(REPLAY.cases(HONEST, ONE))

    schedules = [str(case.schedule) for case in cases]
    assert schedules == [*["eager"] * 6, "lazy", "starve:3", "random:1"]
    assert [own.scenario.max_context_len > 256 for own in cases if own.scenario].index(True) == 4
    assert [own.scenario.is_shared for own in cases if own.scenario].index(True) == 5


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

    case = Case(check=READS_END.code, scenario=DECODE, schedule=Schedule.parse("lazy"))
    result = run_case(subject, READS_END, case)

    assert result.status is Verdict.NOT_CHECKED
    assert "in an undisturbed replay, " in result.reason


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
            batch = Graphs(rig, DECODE).bring(story(DECODE, 0, [2])[0]).batch
            seen.append(batch.seq_lens_cpu is not None)

    assert seen == [True, False]


POOLS = draw(SCENARIO, 0).pools


class Keeper(TorchPadded):
    """Keeps what it is given."""

    kept: object = None


class Own:
    """What a backend defines itself, without a dictionary."""

    __slots__ = ("kept",)

    def __init__(self, kept: object) -> None:
        self.kept = kept


@lru_cache
def numbers(count: int) -> list[int]:
    """Remember every list."""
    return [0] * count


def _moments(*sizes: tuple[int, int]) -> list[HeldMemory]:
    return [HeldMemory(device=one, host=Counter({"Kept.all": two})) for one, two in sizes]


def _host(backend: object) -> Counter[str]:
    return held_memory(subject_of(Keeper), backend, None, "cpu").host


def _keeping(kept: object) -> int:
    backend = Keeper(POOLS)
    backend.kept = kept
    return _host(backend)["Keeper.kept"]


@pytest.mark.parametrize(
    ("moments", "of_device", "of_host"),
    [
        pytest.param([(5, 7), (5, 7), (5, 7)], 0, 0, id="nothing"),
        pytest.param([(5, 7), (6, 7), (9, 7)], 4, 0, id="device"),
        pytest.param([(5, 7), (6, 7), (6, 7)], 0, 0, id="device, for a while"),
        pytest.param([(5, 7), (5, 8), (5, 20)], 0, 13, id="host"),
        pytest.param([(5, 7), (5, 8), (5, 7)], 0, 0, id="host, now and then"),
    ],
)
def test_growth_is_from_each_moment_to_the_next(
    moments: list[tuple[int, int]], of_device: int, of_host: int
) -> None:
    """What stops growing has a bound."""
    assert growth(_moments(*moments)) == (of_device, of_host, 0)


def test_growth_names_what_keeps_most() -> None:
    """The name that leads to the most that is more is reported; none where nothing is more."""
    places = [grown_place(_moments((0, 1), (0, 2), (0, last))) for last in (3, 1)]

    assert places == ["Kept.all", None]


@pytest.mark.parametrize(
    "kept",
    [
        pytest.param([0] * 64, id="list"),
        pytest.param({"a": [0] * 64}, id="mapping"),
        pytest.param("x" * 512, id="text"),
        pytest.param(torch.zeros(128), id="tensor"),
        pytest.param(Own([0] * 64), id="an object of its own"),
        pytest.param(lambda kept=(0,) * 64: kept, id="a function's default"),
    ],
)
def test_gauge_looks_into_what_is_plain_or_its_own(kept: object) -> None:
    """Containers, texts, tensors, functions and own objects count with all they lead to."""
    assert _keeping(kept) >= 512


@pytest.mark.parametrize(
    "kept",
    [
        pytest.param(POOLS, id="another package's object"),
        pytest.param(torch, id="module"),
        pytest.param(Counter, id="type"),
    ],
)
def test_gauge_takes_what_is_others_as_it_stands(kept: object) -> None:
    """An object of another package is one thing, and modules and types are none."""
    assert _keeping(kept) <= 128


def test_gauge_sees_the_memory_of_a_function() -> None:
    """What `lru_cache` keeps of a backend's own function counts under the function's name."""
    backend = Keeper(POOLS)
    before = _host(backend).total()
    numbers(500)

    assert 8000 <= _host(backend).total() - before < 9000


def test_gauge_names_what_slots_hold_by_the_class() -> None:
    """An object without a dictionary has one name for all that it keeps."""
    assert _host(Own([0] * 64))["Own"] >= 512


def test_gauge_counts_bytes_of_the_simulated_device() -> None:
    """On `sim` what the device holds are its live bytes, and on a CPU it is nothing."""
    with Rig(subject=subject_of(Keeper)).running() as simulation:
        keeper = Keeper(POOLS)
        before = held_memory(subject_of(Keeper), keeper, simulation, "sim").device
        more = torch.zeros(4, device="sim")
        found = held_memory(subject_of(Keeper), keeper, simulation, "sim").device - before

    assert found >= more.numel() * more.element_size()


@pytest.fixture
def thawed() -> Iterator[None]:
    """Nothing is left out of collections, as in a process of its own; afterwards as before."""
    gc.unfreeze()
    yield
    gc.collect()
    gc.freeze()


@pytest.mark.usefixtures("thawed")
def test_old_objects_are_left_out_of_collections() -> None:
    """Garbage is collected quickly within the block, and as before behind it."""
    with quickly_collected():
        within = gc.get_freeze_count()

    assert within > 0
    assert gc.get_freeze_count() == 0


def test_what_others_left_out_stays_out() -> None:
    """Where the process has frozen its own, a check that ends does not hand it to collections."""
    gc.freeze()
    before = gc.get_freeze_count()
    with quickly_collected():
        within = gc.get_freeze_count()

    # Frozen objects are still freed by their reference counts, so the number may shrink.
    assert 0 < gc.get_freeze_count() <= within <= before
