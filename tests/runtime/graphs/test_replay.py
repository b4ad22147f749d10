from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import pytest
import torch
from torch import Tensor

from backend_caps import BatchKind, HostSeqLens
from backend_caps.relay import DeviceStreams
from backend_caps.runtime import AttentionBackend, ForwardBatch
from backend_caps.runtime.graphs.pieces import PieceModel, PieceRunner, Pieces
from backend_caps.runtime.graphs.runner import Computed
from backend_caps.runtime.model.layers import AttentionContext, DecoderLayer
from backend_caps.runtime.model.rotary import Rotation
from backend_caps.simulator import simulate
from tests.runtime.graphs.rig import (
    BUCKETS,
    CONFIG,
    DRAFTS,
    MAX_CONTEXT_LEN,
    MAX_REQUESTS,
    NUM_SLOTS,
    SIMULATED,
    Requests,
    Rig,
    Site,
    extended,
    native,
    padded,
    random_requests,
)
from tests.runtime.graphs.spies import WatchedPadded

COUNTS = (4, 16)
"""Sizes in tokens."""


class PieceRig(Rig):
    """A rig whose forwards run in pieces."""

    def __init__(
        self,
        streams: DeviceStreams,
        counts: Iterable[int] = COUNTS,
        *,
        build: Callable[[Site], AttentionBackend] = padded,
        has_head: bool = True,
    ) -> None:
        smallest = BUCKETS[BatchKind.SINGLE_TOKEN_DECODE][:1]
        super().__init__(streams, smallest, build=build, host_seq_lens=HostSeqLens.EXACT)
        head = self.model.lm_head if has_head else None
        self._piece_model = PieceModel(states=self.model.hidden_states, head=head)
        self.in_pieces = PieceRunner(self.cut(counts), self.backend)

    def cut(self, counts: Iterable[int]) -> Pieces:
        """Capture pieces in the rig's memory."""
        return Pieces(self._piece_model, counts, self.place)

    def replay(self, batch: ForwardBatch) -> Computed:
        """Run a forward in pieces."""
        with self.streams.using(self.stream):
            return self.in_pieces.replay(batch)


def drawn_step(rig: Rig, kind: BatchKind, seed: int) -> ForwardBatch:
    """Give every row other slots, and draw a batch with its requests, lengths and tokens."""
    slots = torch.randperm(NUM_SLOTS - 1, generator=torch.Generator().manual_seed(seed)) + 1
    table = slots.view(MAX_REQUESTS, MAX_CONTEXT_LEN).int()
    with rig.streams.using(rig.stream):
        rig.site.req_to_token_pool.req_to_token[1:].copy_(table)
    return rig.batch(random_requests(kind, seed), kind=kind, seed=seed)


def difference(rig: Rig, batch: ForwardBatch) -> float:
    """Measure how far the scores of a replay are from those of an eager forward; NaN is far."""
    eager, replayed = rig.eager(batch), rig.replayed(batch)
    return float((eager - replayed).abs().nan_to_num(nan=torch.inf).max())


SINGLE, UNIFORM, MIXED = BatchKind
every_kind = pytest.mark.parametrize("kind", list(BatchKind), ids=lambda kind: kind.value)
FULL: dict[BatchKind, Requests] = {
    SINGLE: ((4, 1), (0, 1), (23, 1), (9, 1)),
    UNIFORM: ((4, DRAFTS), (0, DRAFTS), (21, DRAFTS), (9, DRAFTS)),
    MIXED: ((4, 1), (0, 7), (20, 4), (9, 4)),
}
"""Requests that fill a bucket."""


@every_kind
def test_replay_writes_the_cache_as_an_eager_forward(
    kind: BatchKind, streams: DeviceStreams
) -> None:
    """What requests own of the KV cache is afterwards what an eager forward leaves there."""
    rig, eager = Rig(streams, BUCKETS[kind]), Rig(streams, BUCKETS[kind][:1])
    requests = FULL[kind][:3]

    rig.replay(rig.batch(requests, kind=kind))
    eager.run(eager.batch(requests, kind=kind))

    torch.testing.assert_close(rig.cache(), eager.cache(), atol=1e-4, rtol=1e-4)


@every_kind
def test_replay_touches_nothing_of_requests_that_left(
    kind: BatchKind, streams: DeviceStreams
) -> None:
    """Padding rows hold no row or slot of the batch before: somebody else may have them by now."""
    rig = Rig(streams, BUCKETS[kind][-1:])
    rig.replay(rig.batch(FULL[kind], kind=kind))
    rig.fill(seed=5)
    before = rig.cache()

    one = rig.batch(FULL[kind][:1], kind=kind)
    rig.replay(one)

    changed = (rig.cache() != before).flatten(2).any(2).any(0).nonzero().flatten() + 1
    assert sorted(changed.tolist()) == sorted(rig.on_host(one.out_cache_loc).tolist())


@every_kind
def test_capture_touches_nothing_that_a_request_can_own(
    kind: BatchKind, streams: DeviceStreams
) -> None:
    """Warm-up and capture write to the padding slot alone."""
    captured, fresh = Rig(streams, BUCKETS[kind]), Rig(streams, BUCKETS[kind][:1])

    fresh.fill(seed=0)

    assert torch.equal(captured.cache(), fresh.cache())


def test_capture_touches_nothing_that_was_replayed_before(streams: DeviceStreams) -> None:
    """A later capture in the same memory finds no row or slot of a batch there."""
    rig = Rig(streams, BUCKETS[SINGLE])
    rig.replay(rig.batch(FULL[SINGLE], kind=SINGLE))
    rig.fill(seed=5)
    before = rig.cache()

    rig.capture(BUCKETS[SINGLE])

    assert torch.equal(rig.cache(), before)


def test_replay_returns_a_view_that_the_next_one_overwrites(streams: DeviceStreams) -> None:
    """Logits are the graph's own memory: whoever samples from them does so on its stream."""
    rig = Rig(streams, BUCKETS[SINGLE][-1:])
    one, other = (rig.batch(FULL[SINGLE], kind=SINGLE, seed=seed) for seed in (1, 2))

    first = rig.replay(one).output
    second = rig.replay(other).output

    assert first.data_ptr() == second.data_ptr()
    torch.testing.assert_close(rig.on_host(first), rig.eager(other), atol=1e-4, rtol=1e-4)


@every_kind
def test_replay_scores_last_tokens_where_they_are_asked_for(
    kind: BatchKind, streams: DeviceStreams
) -> None:
    """With extend lengths, a request has one row of logits, however many tokens it brings."""
    rig = Rig(streams, BUCKETS[kind])
    batch = extended(rig.batch(FULL[kind][:3], kind=kind), FULL[kind][:3])

    logits = rig.replayed(batch)

    assert len(logits) == 3
    torch.testing.assert_close(logits, rig.eager(batch), atol=1e-4, rtol=1e-4)


def test_replay_repeats_what_a_backend_took_from_the_host(streams: DeviceStreams) -> None:
    """A backend that slices by host lengths scores wrongly: a graph keeps those of its capture."""
    rig = Rig(streams, BUCKETS[SINGLE], build=native, host_seq_lens=HostSeqLens.EXACT)
    batch = rig.batch(FULL[SINGLE], kind=SINGLE)

    assert not torch.allclose(rig.replayed(batch), rig.eager(batch), atol=1e-2)


@every_kind
def test_replay_never_makes_the_host_wait(kind: BatchKind) -> None:
    """A replay is launched without one synchronisation, hidden ones included."""
    with simulate("lazy") as simulation:
        rig = Rig(DeviceStreams("sim", SIMULATED), BUCKETS[kind])
        batch = rig.batch(FULL[kind][:3], kind=kind)
        simulation.hidden_syncs.clear()
        simulation.host_waits.clear()

        rig.replay(batch)

        assert simulation.hidden_syncs + simulation.host_waits == []


NUM_STEPS = 500


def wrong_steps(rig: Rig, num_steps: int, kinds: Sequence[BatchKind]) -> list[int]:
    """List the steps, of each kind in turn, whose scores are not those of an eager forward."""
    return [
        seed
        for seed in range(num_steps)
        if difference(rig, drawn_step(rig, kinds[seed % len(kinds)], seed)) > 1e-4
    ]


@pytest.mark.no_cover  # run by other tests too
def test_replays_of_one_capture_are_eager_ones(streams: DeviceStreams) -> None:
    """Lengths, page tables and batches change in every step, and the scores are the eager ones."""
    rig = Rig(streams, [bucket for buckets in BUCKETS.values() for bucket in buckets])

    assert wrong_steps(rig, NUM_STEPS, list(BatchKind)) == []


@pytest.mark.no_cover  # run by other tests too
def test_pieces_of_one_capture_are_eager_ones(streams: DeviceStreams) -> None:
    """So are those in pieces, with a backend that slices by host lengths."""
    assert wrong_steps(PieceRig(streams, build=native), NUM_STEPS, list(BatchKind)) == []


LAYERS = CONFIG.num_hidden_layers
REQUESTS: dict[BatchKind, Requests] = {
    SINGLE: ((4, 1), (0, 1), (23, 1)),
    UNIFORM: ((4, DRAFTS), (0, DRAFTS), (21, DRAFTS)),
    MIXED: ((4, 1), (0, 7), (20, 4)),
}


class RefusedError(Exception):
    """A layer gives up."""


class Refusing(DecoderLayer):
    """A layer that runs once, to warm up, and gives up in the capture."""

    def __init__(self) -> None:
        self._has_run = False

    def __call__(self, hidden: Tensor, rotation: Rotation, context: AttentionContext) -> Tensor:
        """Run once."""
        del rotation, context
        if self._has_run:
            raise RefusedError
        self._has_run = True
        return hidden


@every_kind
@pytest.mark.parametrize("build", [native, padded], ids=["host lengths", "device lengths"])
def test_pieces_score_as_an_eager_forward(
    build: type[WatchedPadded], kind: BatchKind, streams: DeviceStreams
) -> None:
    """Whatever a backend reads, and whatever kind of batch comes, the logits are the eager ones."""
    rig = PieceRig(streams, build=build)

    for seed in range(8):
        assert difference(rig, drawn_step(rig, kind, seed)) < 1e-4


@every_kind
def test_pieces_write_the_cache_as_an_eager_forward(
    kind: BatchKind, streams: DeviceStreams
) -> None:
    """What requests own of the KV cache is afterwards what an eager forward leaves there."""
    rig, eager = PieceRig(streams), PieceRig(streams)

    rig.replay(rig.batch(REQUESTS[kind], kind=kind))
    eager.run(eager.batch(REQUESTS[kind], kind=kind))

    torch.testing.assert_close(rig.cache(), eager.cache(), atol=1e-4, rtol=1e-4)


def test_pieces_hand_a_backend_the_batch_as_it_is(streams: DeviceStreams) -> None:
    """Attention runs eagerly, once a layer, and sees neither padding nor another batch."""
    rig = PieceRig(streams, build=WatchedPadded)
    backend = rig.backend
    assert isinstance(backend, WatchedPadded)
    backend.attended.clear()
    batch = rig.batch(REQUESTS[MIXED], kind=MIXED)

    rig.replay(batch)

    assert len(backend.attended) == LAYERS
    assert all(own is batch for own in backend.attended)


def test_pieces_are_captured_without_a_backend(streams: DeviceStreams) -> None:
    """Neither the forward that warms up nor the capture calls one."""
    rig = PieceRig(streams, build=WatchedPadded)
    backend = rig.backend
    assert isinstance(backend, WatchedPadded)
    num_attended = len(backend.attended)

    rig.cut(COUNTS)

    assert len(backend.attended) == num_attended


@pytest.mark.parametrize(
    ("num_tokens", "expected"),
    [
        pytest.param(1, True, id="less than the smallest"),
        pytest.param(16, True, id="the largest"),
        pytest.param(17, False, id="more"),
    ],
)
def test_pieces_hold_as_many_tokens_as_the_largest(
    num_tokens: int, streams: DeviceStreams, *, expected: bool
) -> None:
    """The number of tokens decides, whoever they belong to."""
    rig = PieceRig(streams)

    assert rig.in_pieces.holds(rig.batch([(0, num_tokens)], kind=MIXED)) is expected


def test_pieces_attend_over_trees(streams: DeviceStreams) -> None:
    """A batch of trees runs in pieces with its mask."""
    rig = PieceRig(streams)

    assert difference(rig, rig.tree_batch((4, 0, 20), seed=3)) < 1e-4


@every_kind
def test_pieces_never_make_the_host_wait(kind: BatchKind) -> None:
    """A forward in pieces is launched without one synchronisation, hidden ones included."""
    with simulate("lazy") as simulation:
        rig = PieceRig(DeviceStreams("sim", SIMULATED))
        batch = rig.batch(REQUESTS[kind], kind=kind)
        simulation.hidden_syncs.clear()
        simulation.host_waits.clear()

        rig.replay(batch)

        assert simulation.hidden_syncs + simulation.host_waits == []


def test_pieces_with_padding_that_is_no_number_score_right(streams: DeviceStreams) -> None:
    """What a larger batch leaves in the padding of a smaller one reaches no token of it."""
    rig = PieceRig(streams)
    large, small = (rig.batch([(0, size)], kind=MIXED) for size in (16, 9))
    rig.model.embedding.weight[int(large.input_ids[-1])] = torch.nan
    rig.replay(large)

    assert difference(rig, small) < 1e-4


def test_pieces_whose_capture_fails_leave_none_open() -> None:
    """An error within a capture ends it, so that others can be made."""
    with simulate("lazy"):
        rig = PieceRig(DeviceStreams("sim", SIMULATED))
        layers, rig.model.layers = rig.model.layers, (*rig.model.layers, Refusing())

        with pytest.raises(RefusedError):
            rig.cut(COUNTS)

        rig.model.layers = layers
        assert rig.cut(COUNTS).num_graphs == len(COUNTS) * (LAYERS + 1)
