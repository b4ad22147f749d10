from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from backend_caps import BatchKind, HostSeqLens
from backend_caps.relay import DeviceStreams
from backend_caps.simulator import simulate
from tests.runtime.graphs.piece_rig import PieceRig, difference, drawn_step
from tests.runtime.graphs.rig import BUCKETS, DRAFTS, SIMULATED, Requests, Rig, extended, native

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
    batch = rig.batch(FULL[kind], kind=kind)
    rig.replay(batch)
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
    plain = rig.batch(FULL[kind][:3], kind=kind)
    batch = extended(plain, FULL[kind][:3])

    logits = rig.replayed(batch)

    assert len(logits) == 3
    torch.testing.assert_close(logits, rig.eager(batch), atol=1e-4, rtol=1e-4)


def test_replay_repeats_what_a_backend_took_from_the_host(streams: DeviceStreams) -> None:
    """A backend that slices by host lengths scores wrongly: a graph keeps those of its capture."""
    rig = Rig(streams, BUCKETS[SINGLE], build=native, host_seq_lens=HostSeqLens.EXACT)
    batch = rig.batch(FULL[SINGLE], kind=SINGLE)

    logits = rig.replayed(batch)

    assert not torch.allclose(logits, rig.eager(batch), atol=1e-2)


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
    rig = PieceRig(streams, build=native)

    assert wrong_steps(rig, NUM_STEPS, list(BatchKind)) == []
