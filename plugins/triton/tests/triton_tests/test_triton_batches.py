from __future__ import annotations

import pytest
import torch
from backend_caps_triton import TritonAttention
from backend_caps_triton.work import Cutting, WorkBuffers

from backend_caps.kit.scenes import (
    DECODE,
    GROVE,
    PREFIXED,
    VERIFY,
    Requests,
    Scene,
    Setting,
    reference_attention,
    scene,
    tree_scene,
)

pytestmark = pytest.mark.slow

every_batch = pytest.mark.parametrize(
    "batch",
    [
        pytest.param(scene(PREFIXED), id="prefill"),
        pytest.param(scene(DECODE, uniform=True), id="decode"),
        pytest.param(scene(VERIFY, uniform=True), id="verify"),
        pytest.param(tree_scene(GROVE[:3]), id="trees"),
    ],
)


@every_batch
def test_empty_batches_give_empty_outputs(device: torch.device, batch: Scene) -> None:
    """An idle rank's batch of no requests and no tokens runs, and gives no rows."""
    idle = batch.select([]).on(device)

    output = idle.run(TritonAttention)

    assert output.shape == (0, batch.layer.tp_q_head_num, batch.layer.v_head_dim)


@pytest.mark.parametrize("num_shares", [1, 3, 16])
def test_how_finely_contexts_are_split_changes_no_result(
    device: torch.device, monkeypatch: pytest.MonkeyPatch, num_shares: int
) -> None:
    """From one part for everything to sixteen, the output is that of the definition."""
    cutting = Cutting(num_shares=num_shares, min_chunk=16)
    monkeypatch.setattr(Cutting, "for_device", lambda *_: cutting)
    batch = scene(((100, 1), (0, 1), (60, 1), (16, 1)), uniform=True, setting=_roomy())

    output = batch.on(device).run(TritonAttention).cpu()

    torch.testing.assert_close(output.double(), reference_attention(batch), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("requests", "uniform"),
    [
        pytest.param(((100, 1), (0, 1), (60, 1), (16, 1)), True, id="decode"),
        pytest.param(((90, 20), (0, 20), (60, 20)), True, id="verify"),
        pytest.param(((90, 20), (0, 1), (60, 33)), False, id="prefill"),
    ],
)
@pytest.mark.parametrize("num_shares", [1, 5, 40])
def test_items_fit_into_their_table(requests: Requests, num_shares: int, *, uniform: bool) -> None:
    """Every tile has its items, in the order of requests, and parts of split ones have room."""
    batch = scene(requests, uniform=uniform, setting=_roomy())
    buffers = WorkBuffers(
        max_requests=len(requests),
        max_items=num_shares + len(batch.q),
        width=128,
        device=torch.device("cpu"),
        cutting=Cutting(num_shares=num_shares, min_chunk=16),
    )

    work = buffers.plan(batch.batch, batch.pools.req_to_token)

    _, counts, _, _, _, splits, _, _ = work.requests.unbind(1)
    items = (counts + work.tile - 1) // work.tile * splits
    expected = torch.arange(len(requests)).repeat_interleave(items)
    assert torch.equal(work.owners[: items.sum()].long(), expected)
    assert bool((work.owners[items.sum() :] == -1).all())
    assert int(items[splits > 1].sum()) <= 2 * num_shares


def test_equal_items_are_shared_out_by_length() -> None:
    """A context that is four times as long as the others is split where they are not."""
    batch = scene(((99, 1), (24, 1), (24, 1), (24, 1)), uniform=True, setting=_roomy())
    buffers = WorkBuffers(
        max_requests=4,
        max_items=12,
        width=128,
        device=torch.device("cpu"),
        cutting=Cutting(num_shares=6, min_chunk=16),
    )

    work = buffers.plan(batch.batch, batch.pools.req_to_token)

    assert work.requests[:, 5].tolist() == [4, 1, 1, 1]


def test_slots_are_copied_as_far_as_contexts_go() -> None:
    """The copy of the page table holds each context's slots."""
    batch = scene(((20, 1), (3, 1)), uniform=True)
    buffers = WorkBuffers(
        max_requests=2,
        max_items=9,
        width=24,
        device=torch.device("cpu"),
        cutting=Cutting(num_shares=1, min_chunk=16),
    )

    slots = buffers.plan(batch.batch, batch.pools.req_to_token).slots

    table = batch.pools.req_to_token[batch.batch.req_pool_indices]
    assert torch.equal(slots[0, :21], table[0, :21])
    assert torch.equal(slots[1, :4], table[1, :4])


@pytest.mark.parametrize(("max_bs", "max_num_tokens"), [(2, 9), (3, 2)])
def test_batches_larger_than_was_said_are_refused(max_bs: int, max_num_tokens: int) -> None:
    """More requests or tokens than tables were made for would be written behind their ends."""
    batch = scene(((4, 3), (0, 3), (9, 3)), uniform=True)
    backend = TritonAttention(batch.pools)
    backend.init_cuda_graph_state(max_bs, max_num_tokens)

    with pytest.raises(AssertionError, match="3 requests, 9 tokens: more than was allocated for"):
        backend.init_forward_metadata_out_graph(batch.batch)


def _roomy() -> Setting:
    """Make room for contexts that are cut into chunks."""
    return Setting(max_context_len=128, num_slots=512)
