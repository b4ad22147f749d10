"""The parts of vLLM's adapter that need no vLLM: batches, caches, and stand-ins."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from backend_caps_vllm.kit.adapter import variant_arguments
from backend_caps_vllm.kit.batches import HostLengths, InputBuffers, InputTensors
from backend_caps_vllm.kit.caches import joined_cache
from backend_caps_vllm.kit.flex import attend_blocks
from backend_caps_vllm.kit.mla import LATENT, ROTATED, Projections, latents_of
from backend_caps_vllm.kit.operators import merge_attn_states, reshape_and_cache_flash
from backend_caps_vllm.kit.order import OrderedBatch
from backend_caps_vllm.kit.prefill import ragged_attention
from torch import Tensor

from backend_caps.kit.layer_variants import LayerVariant
from backend_caps.kit.scenes import Scene, Setting, reference_attention, scene

PAGE = 4


def drawn(requests: list[tuple[int, int]], *, uniform: bool = False) -> Scene:
    """Draw a scene on pages."""
    return scene(requests, uniform=uniform, setting=Setting(page_size=PAGE, poison=0.0))


def test_keys_and_values_become_views_of_vllms_cache() -> None:
    """What either side writes is there for the other, and the contents stay."""
    pools = drawn([(7, 1)]).pools
    keys, values = pools.keys.clone(), pools.values.clone()

    cache = joined_cache(pools)

    assert cache.shape == (1, len(keys) // PAGE, 2, PAGE, 16)
    assert torch.equal(pools.keys, keys)
    assert torch.equal(pools.values, values)
    pools.keys[5], pools.values[5] = 1.0, 2.0
    assert cache[0, 1, :, 1].tolist() == [[1.0] * 8 + [2.0] * 8] * 2
    assert joined_cache(pools).data_ptr() == cache.data_ptr()


def test_latents_hold_values_first_and_keys_last() -> None:
    """Projections that select make the keys and values of each head of a latent."""
    made = drawn([(7, 1)])
    pools, layer = made.pools, made.layer
    keys, values = pools.keys.clone(), pools.values.clone()

    latents = latents_of(pools)

    assert torch.equal(pools.keys, keys)
    assert torch.equal(pools.values, values)
    (projected,) = Projections(layer, keys)(latents[0, :, :LATENT])
    up_values = projected.view(len(keys), layer.tp_q_head_num, -1)[..., layer.qk_head_dim :]
    assert torch.equal(up_values, values.repeat_interleave(2, dim=1))
    rotated = Projections(layer, keys).rotated_query(made.q)
    assert rotated.shape == (1, layer.tp_q_head_num, ROTATED)


def test_batch_is_described_as_the_runner_does() -> None:
    """Starts, blocks and slots follow the requests; the table is as wide as it is asked."""
    made = drawn([(4, 1), (0, 1)], uniform=True)
    own = InputTensors.of(made.batch, made.pools, 8)

    assert own.query_start_loc.tolist() == [0, 1, 2]
    assert own.seq_lens.tolist() == [5, 1]
    assert own.block_table.shape == (2, 8)
    slots = made.batch.out_cache_loc
    assert own.slot_mapping.tolist() == slots.tolist()
    assert own.block_table[0, 1] == slots[0] // PAGE


def test_padding_has_no_tokens_and_is_stored_nowhere() -> None:
    """Requests in row 0 of the pool are padding."""
    made = drawn([(4, 1), (0, 1)], uniform=True)
    made.batch.req_pool_indices[1] = 0
    own = InputTensors.of(made.batch, made.pools, 8)

    assert own.query_start_loc.tolist() == [0, 1, 1]
    assert own.seq_lens.tolist() == [5, 0]
    assert own.block_table[1].tolist() == [0] * 8
    assert own.slot_mapping[1] == -1


def test_buffers_keep_their_addresses() -> None:
    """A batch is loaded to where the last one was."""
    made = drawn([(4, 1), (0, 1)], uniform=True)
    own = InputTensors.of(made.batch, made.pools, 8)
    buffers = InputBuffers(4, 8, 8, made.q.device)

    dummy = buffers.load_dummy(2, 5)
    assert dummy.seq_lens.sum() == 5
    loaded = buffers.load(own)

    assert loaded.seq_lens.data_ptr() == dummy.seq_lens.data_ptr()
    assert loaded.seq_lens.tolist() == [5, 1]
    assert loaded.slot_mapping.tolist() == own.slot_mapping.tolist()


def test_host_has_bounds_where_the_batch_has() -> None:
    """Without bounds the longest context that the model takes is one."""
    batch = drawn([(4, 1), (0, 1)], uniform=True).batch
    assert HostLengths(batch, 24).max_seq_len() == 5
    batch.seq_lens_cpu = batch.seq_lens_cpu_upper_bound = None

    host = HostLengths(batch, 24)

    assert host.seq_lens_cpu_upper_bound() is None
    assert host.max_seq_len() == 24
    assert host.query_start_loc_cpu().tolist() == [0, 1, 2]
    assert HostLengths(batch, 24, is_capture=True).max_seq_len() == 24


@pytest.mark.parametrize("length", [1, 3])
def test_requests_are_put_in_order_and_back(length: int) -> None:
    """Requests of a decode's length come first; tokens go with them."""
    made = drawn([(0, 5), (4, 1), (2, 3), (7, 1)])
    ordered = OrderedBatch.of(made.batch, length)
    tokens = torch.arange(10)

    counts = {1: (1, 1, 3, 5), 3: (3, 1, 1, 5)}[length]
    assert ordered.batch.extend_seq_lens_cpu == counts
    assert ordered.batch.extend_seq_lens is not None
    assert tuple(ordered.batch.extend_seq_lens.tolist()) == counts
    assert ordered.taken(tokens)[-5:].tolist() == [0, 1, 2, 3, 4]
    assert torch.equal(ordered.returned(ordered.taken(tokens)), tokens)


def test_batch_in_order_stays_as_it_is() -> None:
    """Nothing is moved that needs not be."""
    batch = drawn([(4, 1), (0, 5)]).batch

    assert OrderedBatch.of(batch, 1).batch is batch


def test_tokens_without_a_slot_are_stored_nowhere() -> None:
    """A negative slot is padding's."""
    keys, values = torch.zeros(2, PAGE, 1, 2), torch.zeros(2, PAGE, 1, 2)
    new, one = torch.ones(2, 1, 2), torch.ones(())

    reshape_and_cache_flash(new, new, keys, values, torch.tensor([5, -1]), "auto", one, one)

    assert [own.sum() for own in (keys, values)] == [2, 2]
    assert keys[1, 1].tolist() == [[1.0, 1.0]]


def test_two_parts_of_contexts_are_merged() -> None:
    """Attention over both parts is that over the whole; an empty part has no share."""
    q, k, v = torch.randn(3, 2, 8), torch.randn(9, 2, 8), torch.randn(9, 2, 8)
    starts = torch.tensor([0, 3])

    def part(first: int, last: int) -> tuple[Tensor, Tensor]:
        keys = torch.tensor([0, last - first])
        return ragged_attention(q, k[first:last], v[first:last], starts, keys, 0.3, is_causal=False)

    whole, sums = part(0, 9)
    output, output_sums = torch.empty_like(q), torch.empty(2, 3)
    merge_attn_states(output, output_sums, *part(0, 4), *part(4, 9), None, None)

    assert torch.allclose(output, whole, atol=1e-6)
    assert torch.allclose(output_sums, sums, atol=1e-5)
    nothing = torch.full_like(q, torch.nan), torch.full((2, 3), torch.inf)
    merge_attn_states(output, None, *nothing, whole, sums, None, None)
    assert torch.allclose(output, whole, atol=1e-6)


def test_prompts_attend_within_their_requests() -> None:
    """Ragged attention is that of the scene, where no token is cached."""
    made = drawn([(0, 5), (0, 1), (0, 9)])
    starts = torch.tensor([0, 5, 6, 15])
    keys, values = (own.repeat_interleave(2, dim=1) for own in (made.k, made.v))

    output, _ = ragged_attention(made.q, keys, values, starts, starts, 0.3, is_causal=True)

    assert torch.allclose(output.double(), reference_attention(made), atol=1e-5)


def test_blocks_are_read_as_far_as_a_row_counts() -> None:
    """A view of a table is read beyond its width, as a kernel does; hidden keys have no part."""
    table = torch.tensor([[2, 1, 7, 7]], dtype=torch.int32)
    mask = SimpleNamespace(
        kv_indices=table[None, None, :, :1],
        kv_num_blocks=torch.tensor([[[2]]], dtype=torch.int32),
        BLOCK_SIZE=(2, 4),
        mask_mod=lambda _batch, _head, query, key: key >= query,
    )
    query, key = torch.randn(1, 2, 2, 8), torch.randn(1, 1, 12, 8)
    key[:, :, :4] = torch.nan

    output = attend_blocks(
        query, key, key, None, mask, 0.3, enable_gqa=True, kernel_options={}, return_aux=None
    )

    seen = key[0, 0, 4:]
    weights = (query[0, :, :] @ seen.T * 0.3).softmax(-1)
    assert torch.allclose(output[0], weights @ seen, atol=1e-5)


def test_implementations_get_what_a_layer_has_beside_plain_attention() -> None:
    """A plain layer gives nothing more; a cap and sinks are named as vLLM names them."""
    device = torch.device("cpu")
    given = variant_arguments(LayerVariant(logit_cap=0.5, has_sinks=True), 4, device)

    assert variant_arguments(LayerVariant(num_before=3), 4, device) == {}
    assert given["logits_soft_cap"] == 0.5
    assert isinstance(given["sinks"], torch.Tensor)
    assert given["sinks"].shape == (4,)
