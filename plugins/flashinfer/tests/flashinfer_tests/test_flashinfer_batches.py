"""Padding, order, idle batches, and what one preparation serves."""

from __future__ import annotations

from copy import copy
from dataclasses import replace

import pytest
import torch
from backend_caps_flashinfer import FlashInfer, MissingMirrorError

from backend_caps.kit.scenes import (
    DECODE,
    FORK,
    GROVE,
    PREFIXED,
    VERIFY,
    Scene,
    Setting,
    layer_of,
    padded,
    reference_attention,
    scene,
    tree_scene,
)

pytestmark = pytest.mark.usefixtures("fake_flashinfer")

BATCHES = {"prefill": (PREFIXED, False), "decode": (DECODE, True), "verify": (VERIFY, True)}
every_kind = pytest.mark.parametrize("kind", [*BATCHES, "trees"])
STALE = Setting(stale_slot=2**30)


@every_kind
def test_padding_gets_zeros(kind: str) -> None:
    """A padded token's output is zero, though nothing of it is a number or a slot."""
    real = _scene(kind, STALE)

    output = _with_padding(real).run(FlashInfer)

    assert torch.equal(output[len(real.q) :], torch.zeros_like(real.q))


@every_kind
def test_padding_of_length_zero_gets_zeros(kind: str) -> None:
    """A padded request without a context, as graphs have it, gets zeros too."""
    real = _scene(kind, STALE)
    batch = _with_padding(real)
    for lengths in (batch.batch.seq_lens, batch.batch.seq_lens_cpu):
        assert lengths is not None
        lengths[len(real.counts) :] = 0

    output = batch.run(FlashInfer)

    assert torch.equal(output[len(real.q) :], torch.zeros_like(real.q))


def test_requests_of_no_length_get_zeros() -> None:
    """A request without a context sees nothing, whatever its row in the pool is."""
    batch = scene(VERIFY, uniform=True)
    for lengths in (batch.batch.seq_lens, batch.batch.seq_lens_cpu):
        assert lengths is not None
        lengths[1] = 0

    output = batch.run(FlashInfer)

    assert torch.equal(output[3:6], torch.zeros_like(output[3:6]))


def test_tokens_after_the_last_request_see_nothing() -> None:
    """Tokens beyond the sum of the extend lengths, which no request owns, get zeros."""
    real = scene(PREFIXED)

    output = padded(real, rows=0, tokens=2).run(FlashInfer)

    assert torch.equal(output[-2:], torch.zeros_like(real.q[:2]))


@every_kind
def test_empty_batches_give_empty_outputs(kind: str) -> None:
    """An idle rank's batch of no requests is no work for FlashInfer, and gives no rows."""
    busy = _scene(kind)
    idle, backend = busy.select([]), FlashInfer(busy.pools)
    for batch in (idle, busy, idle):
        backend.init_forward_metadata(batch.batch)
        output = batch.forward(backend)

    assert output.shape == (0, idle.layer.tp_q_head_num, idle.layer.v_head_dim)


def test_layers_of_other_heads_have_plans_of_their_own() -> None:
    """A model whose layers scale differently gets what each of them says, batch after batch."""
    soft, sharp = (
        scene(DECODE, uniform=True, setting=Setting(layer=layer_of(scaling=scaling)))
        for scaling in (0.1, 0.9)
    )
    backend = FlashInfer(soft.pools)

    for _ in range(2):
        backend.init_forward_metadata(soft.batch)
        outputs = [own.forward(backend) for own in (soft, replace(soft, layers=sharp.layers))]

    for output, own in zip(outputs, (soft, sharp), strict=True):
        expected = reference_attention(own)
        torch.testing.assert_close(output.double(), expected, atol=1e-5, rtol=1e-5)


def test_graphs_of_one_size_keep_masks_apart() -> None:
    """Where drafts are trees at times, a graph without a mask sees what it saw before."""
    trees = tree_scene(GROVE)
    chains = scene([(prefix, len(tree)) for prefix, tree in GROVE], uniform=True)
    backend = FlashInfer(trees.pools)
    backend.init_cuda_graph_state(len(trees.counts), len(trees.q))

    for batch in (trees, chains):
        backend.init_forward_metadata_out_graph(batch.batch)
        backend.init_forward_metadata_in_graph(batch.batch)
        output = replace(batch, pools=trees.pools).forward(backend)

    expected = reference_attention(replace(chains, contexts=trees.contexts))
    torch.testing.assert_close(output.double(), expected, atol=1e-5, rtol=1e-5)


def test_forward_takes_heads_apart() -> None:
    """Queries, keys and values may come as [T, heads, size] too, and not only side by side."""
    batch = scene(PREFIXED)
    backend = FlashInfer(batch.pools)
    backend.init_forward_metadata(batch.batch)

    output = backend.forward(batch.q, batch.k, batch.v, batch.layer, batch.batch)

    assert torch.equal(output, batch.run(FlashInfer).flatten(1))


@pytest.mark.parametrize("field", ["seq_lens_cpu", "extend_seq_lens_cpu"])
def test_a_batch_without_host_lengths_is_refused(field: str) -> None:
    """The error names the backend, what is missing, what it declares and what to do."""
    whole = scene(PREFIXED)
    batch = copy(whole.batch)
    setattr(batch, field, None)

    with pytest.raises(MissingMirrorError) as caught:
        replace(whole, batch=batch).run(FlashInfer)

    assert str(caught.value) == (
        f"backend 'flashinfer' got a batch whose {field} is None; it declares "
        "host_seq_lens=EXACT. Configure the FutureMap by a plan that names this backend."
    )


def test_mixed_batches_are_not_captured() -> None:
    """What the declaration leaves out of `graph_replay` is no graph's batch."""
    batch = scene(PREFIXED)
    backend = FlashInfer(batch.pools)
    backend.init_cuda_graph_state(4, 16)

    with pytest.raises(AssertionError, match="does not declare mixed batches"):
        backend.init_forward_metadata_out_graph(batch.batch)


def _scene(kind: str, setting: Setting | None = None) -> Scene:
    if kind == "trees":
        return tree_scene(GROVE, setting=setting)
    requests, uniform = BATCHES[kind]
    return scene(requests, uniform=uniform, setting=setting)


def _with_padding(real: Scene) -> Scene:
    """Add as many tokens as there are, in as many rows."""
    each = len(FORK) if real.batch.tree_mask is not None else 0
    tokens = each * len(real.counts) or len(real.q)
    return padded(real, rows=len(real.counts), tokens=tokens)
