from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import pytest
import torch
from torch_native_caps import TORCH_PADDED

from backend_caps import (
    BatchKind,
    GraphMetadata,
    Phase,
    Plan,
    Role,
    ServerFlags,
    SharedReadsEnd,
    resolve,
)
from backend_caps.relay import DeviceStreams
from backend_caps.relay.streams import GraphLike, StreamLike
from backend_caps.resolution.rules import RuleSet
from backend_caps.runtime.attention import PhaseBackends
from backend_caps.runtime.graphs.capture import CapturedGraphs, capture_graphs
from backend_caps.runtime.graphs.pieces import PieceModel
from backend_caps.runtime.graphs.runner import GraphRunner
from backend_caps.runtime.step import scores_of
from backend_caps.simulator import simulate
from backend_caps.startup.configuration import Configuration
from backend_caps.startup.errors import StartupError
from backend_caps.startup.graph_choice import GraphSizes
from backend_caps.startup.graph_modes import Bucket, GraphMode, mixed_buckets, uniform_buckets
from tests.runtime.graphs.rig import (
    BUCKETS,
    CONFIG,
    SIMULATED,
    Requests,
    Rig,
    make_model,
    make_site,
    uses_of,
)
from tests.runtime.graphs.spies import WatchedPadded

SINGLE, UNIFORM, MIXED = BatchKind
WATCHED = TORCH_PADDED.model_copy(
    update={"implementation": "tests.runtime.graphs.spies:WatchedPadded"}
)
ONLY_DECODE = WATCHED.model_copy(
    update={"capabilities": WATCHED.capabilities.model_copy(update={"graph_replay": {SINGLE}})}
)
TOKEN_COUNTS = (16, 8)
ASKED = {Phase.DECODE: BUCKETS[SINGLE], Phase.PREFILL: BUCKETS[MIXED]}


def plan_of(*argv: str, only_decode: bool = False) -> Plan:
    """Resolve a server whose decode and prefill run on one watched backend."""
    flags = ServerFlags.from_argv(["--attention-backend", "watched", *argv])
    declaration = ONLY_DECODE if only_decode else WATCHED
    return resolve(
        uses_of("watched", declaration, [Phase.DECODE, Phase.PREFILL]),
        flags,
        rules=RuleSet.builtin("sglang-0.5.13"),
    )


@dataclass
class Told:
    """Keep what captures reported."""

    num_sizes: list[int] = field(default_factory=list)
    sizes: list[tuple[GraphMode, int]] = field(default_factory=list)

    def begin(self, num_sizes: int) -> None:
        """Keep how many there will be."""
        self.num_sizes.append(num_sizes)

    def captured(self, mode: GraphMode, num_tokens: int) -> None:
        """Keep one."""
        self.sizes.append((mode, num_tokens))


class PooledStreams(DeviceStreams):
    """Streams that note the memory of each capture."""

    def __init__(self) -> None:
        super().__init__("sim", SIMULATED)
        self.pools: list[object] = []

    @contextmanager
    def capturing(
        self, graph: GraphLike, pool: tuple[int, int], stream: StreamLike
    ) -> Iterator[None]:
        """Note the pool."""
        self.pools.append(pool)
        with super().capturing(graph, pool, stream):
            yield


def capture(
    plan: Plan, streams: DeviceStreams, observer: Told | None = None
) -> tuple[PhaseBackends, CapturedGraphs]:
    """Capture what a plan allows of what is asked for: the backends and the graphs.

    The last that the current stream does to the KV cache is nothing that the host waits for.
    """
    model, site = make_model(streams.device), make_site(streams.device)
    backends = PhaseBackends(plan.uses, Role.TARGET, site)
    for buffer in site.keys_and_values():
        buffer.zero_()
    captured = capture_graphs(
        lambda contexts: scores_of(model, *contexts),
        backends,
        Configuration.from_plan(
            plan,
            pool_size=2,
            device=streams.device,
            graph_sizes={Role.TARGET: GraphSizes(buckets=ASKED, token_counts=TOKEN_COUNTS)},
            streams=streams,
        ),
        stream=streams.private_stream(),
        in_pieces=PieceModel(states=model.hidden_states, head=model.lm_head),
        observer=observer,
    )
    return backends, captured


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


@pytest.mark.parametrize(
    ("metadata", "num_prepared"),
    [
        pytest.param(GraphMetadata.HOST, 1, id="host"),
        pytest.param(GraphMetadata.DEVICE, 1, id="device"),
        pytest.param(GraphMetadata.IN_GRAPH, 0, id="in the graph"),
    ],
)
def test_replay_prepares_what_the_graph_does_not(
    metadata: GraphMetadata, num_prepared: int, streams: DeviceStreams
) -> None:
    """A backend's host code runs before a replay unless its graph rebuilds the metadata."""
    rig = Rig(streams, BUCKETS[SINGLE], build=WatchedPadded, metadata=metadata)
    assert isinstance(rig.backend, WatchedPadded)
    rig.backend.out_graph.clear()

    with streams.using(rig.stream):
        rig.runner.replay(rig.batch(((4, 1), (2, 1)), kind=SINGLE))

    assert len(rig.backend.out_graph) == num_prepared


def test_captures_take_the_metadata_that_the_plan_has() -> None:
    """`torch_padded` rebuilds metadata in the graph, so its replays run none of its host code."""
    with simulate("eager"):
        _, captured = capture(plan_of(), DeviceStreams("sim", SIMULATED))

    runners = [own for own in captured.phases.values() if isinstance(own, GraphRunner)]
    assert [own.graph_metadata for own in runners] == [GraphMetadata.IN_GRAPH] * 2


def test_captures_of_several_phases_share_a_backend_and_its_buffers(streams: DeviceStreams) -> None:
    """A backend makes its buffers once, for the largest batch of all its phases."""
    backends, captured = capture(plan_of(), streams)

    shared = backends.of(Phase.DECODE)

    assert isinstance(shared, WatchedPadded)
    assert shared.states == [(8, 16)]
    assert captured.phases.keys() == {Phase.DECODE, Phase.PREFILL}


def test_captures_mark_reads_where_the_plan_says(streams: DeviceStreams) -> None:
    """A runner marks the end of its reads where its phase's backend declares it."""
    _, captured = capture(plan_of(), streams)

    points = {own.shared_reads_end for own in captured.phases.values()}

    assert points == {SharedReadsEnd.POST_REPLAY}


def test_captures_run_behind_what_made_the_pools() -> None:
    """The captured stream uses weights and pools only once the current stream made them."""
    with simulate("lazy", check_races=True) as simulation:
        capture(plan_of(), DeviceStreams("sim", SIMULATED))

        assert simulation.races == ()


def test_captures_of_both_modes_share_a_pool() -> None:
    """Full graphs and pieces are given the same memory: no two of them run at once."""
    with simulate("lazy"):
        streams = PooledStreams()

        _, captured = capture(plan_of(only_decode=True), streams)

        assert streams.pools == streams.pools[:1] * captured.usage.num_graphs


def test_captures_tell_how_far_they_have_come(streams: DeviceStreams) -> None:
    """The number of sizes comes first, then each size, the largest of a mode first."""
    told = Told()

    capture(plan_of(only_decode=True), streams, told)

    full = [(GraphMode.FULL, bucket.num_tokens) for bucket in reversed(BUCKETS[SINGLE])]
    assert told.sizes == [*full, (GraphMode.PIECEWISE, 16), (GraphMode.PIECEWISE, 8)]
    assert told.num_sizes == [len(told.sizes)]


def test_captures_count_their_memory(streams: DeviceStreams) -> None:
    """The pool holds at least what all graphs return, and static memory what batches are."""
    _, captured = capture(plan_of(), streams)

    usage, most = captured.usage, BUCKETS[MIXED][-1]
    assert usage.pool_bytes >= most.num_tokens * CONFIG.hidden_size * 4
    assert usage.static_bytes >= 8 * (5 * most.batch_size + 3 * most.num_tokens)


SINGLE, UNIFORM, MIXED = BatchKind
SEVERAL = "the same number of tokens, above 1, for each request"
FITS = [
    pytest.param(SINGLE, [(4, 1)] * 8, SINGLE, True, id="as many requests as the largest"),
    pytest.param(UNIFORM, [(4, 3)] * 5, UNIFORM, False, id="one request too many"),
    pytest.param(SINGLE, [(4, 2)], UNIFORM, False, id="two tokens a request for one"),
    pytest.param(UNIFORM, [(4, 2)], UNIFORM, False, id="two tokens a request for three"),
    pytest.param(UNIFORM, [(4, 3)] * 2, MIXED, True, id="extend lengths that are equal"),
    pytest.param(UNIFORM, [(4, 3), (4, 2)], MIXED, False, id="extend lengths that differ"),
    pytest.param(MIXED, [(4, 2), (4, 4)], MIXED, True, id="extend lengths for a mixed graph"),
    pytest.param(MIXED, [(4, 17)], MIXED, False, id="one token too many"),
    pytest.param(MIXED, [(4, 1)] * 2, SINGLE, False, id="no extend lengths for a mixed graph"),
]


@pytest.mark.parametrize(("captured", "requests_", "kind", "expected"), FITS)
def test_runner_holds_what_fits(
    captured: BatchKind,
    requests_: Requests,
    kind: BatchKind,
    streams: DeviceStreams,
    *,
    expected: bool,
) -> None:
    """A batch is replayed where a bucket of its kind is large enough."""
    rig = Rig(streams, BUCKETS[captured])

    assert rig.runner.holds(rig.batch(requests_, kind=kind)) is expected


def test_runner_holds_no_empty_batch(streams: DeviceStreams) -> None:
    """An idle step has nothing to replay."""
    rig = Rig(streams, BUCKETS[SINGLE])
    batch = rig.batch([(4, 1)], kind=SINGLE)
    nobody = torch.zeros(0, dtype=torch.int64)

    idle = replace(batch, input_ids=nobody, req_pool_indices=nobody, seq_lens=nobody)

    assert not rig.runner.holds(idle)


@pytest.mark.parametrize(("count", "held"), [(1, True), (3, False), (4, True), (5, False)])
def test_bucket_that_pads_nothing_holds_its_own_size(
    count: int, streams: DeviceStreams, *, held: bool
) -> None:
    """Without padding a batch of another size is replayed by no graph."""
    rig = Rig(streams, uniform_buckets((1, 4, 8), pads=False))

    assert rig.runner.holds(rig.batch([(4, 1)] * count, kind=SINGLE)) is held


def test_buckets_name_each_size_once() -> None:
    """Sizes are sorted, and one that is named twice is one bucket."""
    single = uniform_buckets((4, 1, 4))
    mixed = mixed_buckets(4, (16, 8, 16))

    assert [(own.kind, own.batch_size, own.num_tokens) for own in (*single, *mixed)] == [
        (SINGLE, 1, 1),
        (SINGLE, 4, 4),
        (MIXED, 4, 8),
        (MIXED, 4, 16),
    ]


@pytest.mark.parametrize(
    ("kind", "batch_size", "num_tokens", "expected"),
    [
        pytest.param(SINGLE, 0, 0, "at least 1 of each", id="no request"),
        pytest.param(MIXED, 4, 0, "at least 1 of each", id="no token"),
        pytest.param(SINGLE, 4, 8, "one token a request", id="two tokens a request"),
        pytest.param(UNIFORM, 4, 9, SEVERAL, id="a remainder"),
        pytest.param(UNIFORM, 4, 4, SEVERAL, id="one token"),
    ],
)
def test_bucket_refuses_a_size_that_its_kind_lacks(
    kind: BatchKind, batch_size: int, num_tokens: int, expected: str
) -> None:
    """A size that no batch of the kind has is reported with what was expected."""
    with pytest.raises(StartupError) as refused:
        Bucket(kind=kind, batch_size=batch_size, num_tokens=num_tokens)

    assert refused.value.message == (
        f"a graph for {kind.value!r} has batch_size={batch_size} and num_tokens={num_tokens}; "
        f"{expected} was expected. Name other sizes."
    )
