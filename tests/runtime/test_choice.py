from __future__ import annotations

import pytest
import torch

from backend_caps.runtime.batch import ScheduleBatch
from backend_caps.runtime.forward_batch import sampling_of
from backend_caps.runtime.model.sampling import SamplingBatch
from backend_caps.runtime.request import Sampling
from tests.runtime.memories import make_batch, make_memory

GREEDY = Sampling(max_new_tokens=8)


def _sampling(device: torch.device | str, *wanted: Sampling) -> SamplingBatch | None:
    """Gather how a batch of requests with contexts of 3, 4, ... tokens wants its tokens."""
    memory, staging = make_memory(device)
    batch: ScheduleBatch = make_batch(memory, staging, *range(3, 3 + len(wanted)))
    for request, own in zip(batch.requests, wanted, strict=True):
        request.sampling = own
    return sampling_of(batch, staging)


@pytest.mark.parametrize(
    "other", [GREEDY, Sampling(max_new_tokens=8, temperature=1.5, top_k=1, seed=3)]
)
def test_sampling_of_greedy_requests_is_nothing(other: Sampling) -> None:
    """Where every request wants the likeliest token, nothing is uploaded."""
    assert _sampling("cpu", GREEDY, other) is None


def test_sampling_of_tells_each_request_its_own(device: torch.device) -> None:
    """Temperature, seed, top_k and top_p of each request stand at its place."""
    own = Sampling(max_new_tokens=8, temperature=0.75, top_k=5, top_p=0.5, seed=2**63 - 1)

    sampling = _sampling(device, GREEDY, own)

    assert sampling is not None
    assert sampling.temperature.tolist() == [0.0, 0.75]
    assert sampling.seeds.tolist() == [0, 2**63 - 1]
    assert sampling.top_k is not None
    assert sampling.top_k.tolist()[1] == 5
    assert sampling.top_p is not None
    assert sampling.top_p.tolist() == [1.0, 0.5]


def test_sampling_of_positions_are_the_contexts_lengths() -> None:
    """A token's noise is that of its place in its context, whatever the step."""
    sampling = _sampling("cpu", GREEDY, Sampling(max_new_tokens=8, temperature=1.0))

    assert sampling is not None
    assert sampling.positions.tolist() == [3, 4]


def test_sampling_of_narrows_nothing_where_nobody_asks() -> None:
    """Without a top_k or top_p, a sort of the vocabulary is spared."""
    sampling = _sampling("cpu", Sampling(max_new_tokens=8, temperature=1.0))

    assert sampling is not None
    assert sampling.top_k is sampling.top_p is None


def test_sampling_of_lets_others_choose_among_all() -> None:
    """Who asks for no top_k has one that is above every vocabulary, beside one who asks."""
    free = Sampling(max_new_tokens=8, temperature=1.0)

    sampling = _sampling("cpu", free, Sampling(max_new_tokens=8, temperature=1.0, top_k=3))

    assert sampling is not None
    assert sampling.top_k is not None
    assert sampling.top_k.tolist()[0] > 10**9


@pytest.mark.parametrize(
    "extreme",
    [
        pytest.param(Sampling(max_new_tokens=8, temperature=1e6), id="temperature"),
        pytest.param(Sampling(max_new_tokens=8, temperature=1.0, top_k=2**70), id="top_k"),
        pytest.param(Sampling(max_new_tokens=8, temperature=1.0, top_p=1e-12), id="top_p"),
    ],
)
def test_sampling_of_takes_whatever_sampling_lets_pass(extreme: Sampling) -> None:
    """No value that `Sampling` accepts is too large or too small for the upload."""
    assert _sampling("cpu", extreme) is not None
