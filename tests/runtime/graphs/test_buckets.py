from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from backend_caps import BatchKind
from backend_caps.relay import DeviceStreams
from backend_caps.startup.errors import StartupError
from backend_caps.startup.graph_modes import Bucket, mixed_buckets, uniform_buckets
from tests.runtime.graphs.rig import BUCKETS, Requests, Rig

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

    batch = rig.batch(requests_, kind=kind)

    assert rig.runner.holds(batch) is expected


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

    batch = rig.batch([(4, 1)] * count, kind=SINGLE)

    assert rig.runner.holds(batch) is held


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
    """A size that no batch of the kind has is told with what was expected."""
    with pytest.raises(StartupError) as refused:
        Bucket(kind=kind, batch_size=batch_size, num_tokens=num_tokens)

    assert refused.value.message == (
        f"a graph for {kind.value!r} has batch_size={batch_size} and num_tokens={num_tokens}; "
        f"{expected} was expected. Name other sizes."
    )
