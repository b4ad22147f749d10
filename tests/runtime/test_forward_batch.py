from __future__ import annotations

import pytest
import torch

from backend_caps.relay import RelayError, RelayPayload
from backend_caps.runtime.batch import ForwardMode, ScheduleBatch
from backend_caps.runtime.forward_batch import ForwardBatch, sampling_of
from backend_caps.runtime.model.sampling import SamplingBatch
from backend_caps.runtime.request import Sampling
from tests.runtime.memories import make_batch, make_memory, make_relay, values_of


def _ready(batch: ScheduleBatch) -> ScheduleBatch:
    """Resolve a batch's tokens by a relay; a row's last token is 100 and its number."""
    relay = make_relay(batch.memory)
    rows = torch.arange(16, device=batch.seq_lens.device)
    relay.stash(rows, RelayPayload(rows + 100))
    if batch.mode in {ForwardMode.DECODE, ForwardMode.MIXED}:
        relay.set_input_ids_sentinel(batch)
    relay.resolve_future(batch)
    return batch


def _mixed(device: torch.device | str) -> ScheduleBatch:
    """Make a batch of prompts of 3 and 1 tokens, and a decode row at length 5."""
    memory = make_memory(device)
    running = make_batch(memory, 4)
    running.prepare_for_decode()
    batch = make_batch(memory, 3, 1, first=2)
    batch.mix_with_running(running)
    return _ready(batch)


def test_init_new_places_every_token_of_a_mixed_batch(device: torch.device) -> None:
    """Prompt tokens count from their prefix, decode tokens stand at the end of their context."""
    forward = ForwardBatch.init_new(_mixed(device))

    assert forward.input_ids.tolist() == [2, 2, 2, 3, 101]
    assert forward.positions.tolist() == [0, 1, 2, 0, 4]
    assert forward.last_token_indices is not None
    assert forward.last_token_indices.tolist() == [2, 3, 4]
    assert (forward.batch_size, forward.num_tokens) == (3, 5)


def test_init_new_keeps_host_lengths_where_the_scheduler_cut_there(device: torch.device) -> None:
    """The host's own numbers stay beside the uploaded ones; of a tensor the host has none."""
    batch = _mixed(device)
    on_device = batch.copy()
    on_device.extend_seq_lens = torch.tensor(batch.extend_seq_lens, device=device)
    on_device.extend_prefix_lens = torch.tensor(batch.extend_prefix_lens, device=device)

    forward, other = (ForwardBatch.init_new(each) for each in (batch, on_device))

    assert forward.extend_seq_lens_cpu == (3, 1, 1)
    assert forward.extend_prefix_lens_cpu == (0, 0, 4)
    assert other.extend_seq_lens_cpu is other.extend_prefix_lens_cpu is None


@pytest.mark.parametrize(
    ("mirror", "known", "expected"),
    [
        pytest.param([3, 4], 100, 100, id="somebody summed"),
        pytest.param([3, 4], None, 7, id="nobody summed"),
        pytest.param(None, None, None, id="no mirror"),
    ],
)
def test_init_new_sums_the_mirror_where_nobody_did(
    mirror: list[int] | None, known: int | None, expected: int | None
) -> None:
    """A sum that is known is kept, one that is not is made, and no mirror has none."""
    memory = make_memory()
    batch = _ready(make_batch(memory, 3, 4))
    batch.seq_lens_cpu = None if mirror is None else torch.tensor(mirror)
    batch.seq_lens_sum = known

    forward = ForwardBatch.init_new(batch)

    assert forward.seq_lens_sum == expected


def test_init_new_writes_nothing_to_the_schedulers_batch(device: torch.device) -> None:
    """Every field of the batch, and what each tensor holds, is what it was before."""
    batch = _mixed(device)
    before = values_of(batch)

    ForwardBatch.init_new(batch)

    assert values_of(batch) == before


def test_init_new_refuses_tokens_that_are_not_there() -> None:
    """Before the relay has brought the tokens, no forward is made of the batch."""
    memory = make_memory()
    batch = make_batch(memory, 3)

    with pytest.raises(RelayError, match="3 prompt tokens are staged"):
        ForwardBatch.init_new(batch)


GREEDY = Sampling(max_new_tokens=8)


def _sampling(device: torch.device | str, *wanted: Sampling) -> SamplingBatch | None:
    """Gather how a batch of requests with contexts of 3, 4, ... tokens wants its tokens."""
    memory = make_memory(device)
    batch: ScheduleBatch = make_batch(memory, *range(3, 3 + len(wanted)))
    for request, own in zip(batch.requests, wanted, strict=True):
        request.sampling = own
    return sampling_of(batch)


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
