from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import replace

import pytest
from torch_native_caps import TORCH_PADDED

from backend_caps import BatchKind, Phase, Plan, Role, ServerFlags, SharedReadsEnd, resolve
from backend_caps.conformance.simulator import simulate
from backend_caps.relay import DeviceStreams, DeviceTraits
from backend_caps.relay.streams import GraphLike, StreamLike
from backend_caps.runtime.attention import PhaseBackends
from backend_caps.runtime.graphs import GraphRunner, Obstacle, capture_graphs, choose_graphs
from tests.runtime.graphs.rig import BUCKETS, CONFIG, SIMULATED, Rig, make_model, make_site, uses_of
from tests.runtime.graphs.spies import WatchedPadded

SINGLE, UNIFORM, MIXED = BatchKind
WATCHED = TORCH_PADDED.model_copy(
    update={"implementation": "tests.runtime.graphs.spies:WatchedPadded"}
)
ONLY_DECODE = WATCHED.model_copy(
    update={
        "capabilities": WATCHED.capabilities.model_copy(update={"graph_replay": {SINGLE}}),
    }
)
ASKED = {Phase.DECODE: BUCKETS[SINGLE], Phase.PREFILL: BUCKETS[MIXED]}


def plan_of(*argv: str, only_decode: bool = False) -> Plan:
    """Resolve a server whose decode and prefill run on one watched backend."""
    flags = ServerFlags.from_argv(["--attention-backend", "watched", *argv])
    declaration = ONLY_DECODE if only_decode else WATCHED
    return resolve(uses_of("watched", declaration, [Phase.DECODE, Phase.PREFILL]), flags)


class PooledStreams(DeviceStreams):
    """Streams that note the memory of each capture."""

    def __init__(self) -> None:
        super().__init__("sim", SIMULATED)
        self.pools: list[object] = []

    def capturing(
        self, graph: GraphLike, pool: tuple[int, int], stream: StreamLike
    ) -> AbstractContextManager[object]:
        """Note the pool."""
        self.pools.append(pool)
        return super().capturing(graph, pool, stream)


def capture(
    plan: Plan, streams: DeviceStreams
) -> tuple[PhaseBackends, Mapping[Phase, GraphRunner]]:
    """Capture what a plan allows of what is asked for: the backends and the runners.

    The last that the current stream does to the KV cache is nothing that the host waits for.
    """
    model, site = make_model(streams.device), make_site(streams.device)
    backends = PhaseBackends(plan.uses, Role.TARGET, site)
    for buffer in site.keys_and_values():
        buffer.zero_()
    runners = capture_graphs(
        model,
        backends,
        plan,
        choose_graphs(plan, streams.traits, ASKED),
        streams=streams,
        stream=streams.private_stream(),
    )
    return backends, runners


def test_capture_goes_from_the_largest_bucket_down(streams: DeviceStreams) -> None:
    """The first capture needs the most memory, so those after it need none of their own.

    Each bucket has a warm-up and a capture, both with all of the metadata.
    """
    rig = Rig(streams, BUCKETS[SINGLE], build=WatchedPadded)
    assert isinstance(rig.backend, WatchedPadded)
    backend = rig.backend

    told = (backend.out_graph, backend.in_graph, backend.attended[:: CONFIG.num_hidden_layers])

    for batches in told:
        assert [batch.batch_size for batch in batches] == [8, 8, 4, 4, 2, 2, 1, 1]


def test_captures_share_one_pool() -> None:
    """Every graph of a runner is given the same memory."""
    with simulate("lazy"):
        streams = PooledStreams()

        Rig(streams, BUCKETS[SINGLE])

        assert streams.pools == streams.pools[:1] * len(BUCKETS[SINGLE])


def test_captures_of_several_phases_share_a_backend_and_its_buffers(
    streams: DeviceStreams,
) -> None:
    """A backend makes its buffers once, for the largest batch of all its phases."""
    backends, runners = capture(plan_of(), streams)

    shared = backends.of(Phase.DECODE)

    assert isinstance(shared, WatchedPadded)
    assert shared.states == [(8, 16)]
    assert runners.keys() == {Phase.DECODE, Phase.PREFILL}


def test_captures_mark_reads_where_the_plan_says(streams: DeviceStreams) -> None:
    """A runner marks the end of its reads where its phase's backend declares it."""
    _, runners = capture(plan_of(), streams)

    points = {own.shared_reads_end for own in runners.values()}

    assert points == {SharedReadsEnd.POST_REPLAY}


def test_captures_run_behind_what_made_the_pools() -> None:
    """The captured stream uses weights and pools only once the current stream made them."""
    with simulate("lazy", check_races=True) as simulation:
        capture(plan_of(), DeviceStreams("sim", SIMULATED))

        assert simulation.races == ()


def test_captures_that_nobody_chose_are_none(streams: DeviceStreams) -> None:
    """Without a kind to capture there is no runner, and no memory."""
    _, runners = capture(plan_of("--disable-cuda-graph"), streams)

    assert runners == {}


def test_choice_takes_what_is_declared_asked_for_and_there() -> None:
    """Kinds without an obstacle are captured, in the sizes that were asked for."""
    choices = choose_graphs(plan_of(), SIMULATED, ASKED)

    chosen = {(own.phase, own.kind): own.buckets for own in choices if own.buckets}
    assert chosen == {
        (Phase.DECODE, SINGLE): BUCKETS[SINGLE],
        (Phase.PREFILL, MIXED): BUCKETS[MIXED],
    }


NO_GRAPHS = replace(SIMULATED, has_graphs=False)


@pytest.mark.parametrize(
    ("argv", "traits", "only_decode", "kind", "expected"),
    [
        pytest.param((), SIMULATED, False, UNIFORM, (Obstacle.SIZES,), id="sizes"),
        pytest.param((), NO_GRAPHS, False, MIXED, (Obstacle.DEVICE,), id="device"),
        pytest.param((), SIMULATED, True, MIXED, (Obstacle.BACKEND,), id="backend"),
        pytest.param(
            ("--disable-cuda-graph",), SIMULATED, False, MIXED, (Obstacle.DISABLED,), id="flag"
        ),
        pytest.param(
            ("--speculative-algorithm", "NGRAM"),
            SIMULATED,
            False,
            MIXED,
            (Obstacle.SPECULATION,),
            id="speculation",
        ),
        pytest.param(
            ("--disable-cuda-graph", "--speculative-algorithm", "NGRAM"),
            NO_GRAPHS,
            True,
            UNIFORM,
            tuple(Obstacle),
            id="all of them",
        ),
    ],
)
def test_choice_names_every_obstacle(
    argv: tuple[str, ...],
    traits: DeviceTraits,
    kind: BatchKind,
    expected: tuple[Obstacle, ...],
    *,
    only_decode: bool,
) -> None:
    """What is not captured says everything that would have to go."""
    plan = plan_of(*argv, only_decode=only_decode)

    choices = choose_graphs(plan, traits, ASKED)

    found = {(own.phase, own.kind): own for own in choices}[Phase.PREFILL, kind]
    assert (found.obstacles, found.buckets) == (expected, ())


def test_choice_looks_at_the_phases_that_a_role_has() -> None:
    """Every kind is decided on in each phase with a backend, and nowhere else."""
    choices = choose_graphs(plan_of(), SIMULATED, {})

    assert [own.phase for own in choices] == [Phase.PREFILL] * 3 + [Phase.DECODE] * 3


def test_obstacles_have_reasons() -> None:
    """Each obstacle has words of its own."""
    reasons = {own.reason for own in Obstacle}

    assert len(reasons) == len(Obstacle)
    assert "--disable-cuda-graph is given" in reasons
