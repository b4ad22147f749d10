"""The backend beside the reference: attention as it is defined, in float64.

In a scene everything that no request owns is NaN, so that a read too many shows. A batch brings
the host lengths that are declared to be read, and no others.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from backend_caps import UNDECLARED, BatchKind, HostSeqLens
from backend_caps.conformance.scenes import (
    DECODE,
    PREFILL,
    PREFIXED,
    VERIFY,
    Requests,
    Scene,
    Setting,
    layer_of,
    padded,
    reference_attention,
    scene,
)
from backend_caps.conformance.simulator import simulate
from backend_caps.runtime import AttentionLayer
from torch import Tensor

from my_attention import MyAttentionBackend
from my_attention_caps import DECLARATION

LAYERS = [
    pytest.param(layer_of(num_query_heads=2, num_kv_heads=2), id="a key head for each"),
    pytest.param(layer_of(num_query_heads=6, num_kv_heads=2), id="grouped heads"),
    pytest.param(layer_of(num_query_heads=4, num_kv_heads=1), id="one key head"),
    pytest.param(layer_of(head_size=8, value_size=12), id="wider values"),
]
TOLERANCES = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 2e-2}
every_batch = pytest.mark.parametrize(
    ("requests", "uniform"),
    [
        pytest.param(PREFILL, False, id="prefill"),
        pytest.param(PREFIXED, False, id="prefill over a prefix"),
        pytest.param((*DECODE, *PREFIXED), False, id="mixed"),
        pytest.param(DECODE, True, id="decode"),
        pytest.param(VERIFY, True, id="verify"),
    ],
)
SUCCESSIONS: dict[BatchKind, tuple[Requests, Requests]] = {
    BatchKind.SINGLE_TOKEN_DECODE: (DECODE, ((20, 1), (1, 1), (3, 1))),
    BatchKind.UNIFORM_BATCH: (VERIFY, ((20, 3), (1, 3), (3, 3))),
    BatchKind.MIXED_BATCH: (((4, 3), (0, 4), (9, 1)), ((11, 1), (0, 6), (20, 1))),
}


@every_batch
@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("page_size", [1, 16])
def test_attention_is_as_defined(
    requests: Requests, layer: AttentionLayer, page_size: int, *, uniform: bool
) -> None:
    """Whatever heads, pages and batch there are, the output is that of the reference."""
    setting = Setting(layer=layer, page_size=page_size)
    batch = as_declared(scene(requests, uniform=uniform, setting=setting))

    output = batch.run(MyAttentionBackend)

    assert_close(output, reference_attention(batch))


@every_batch
@pytest.mark.parametrize("dtype", TOLERANCES)
def test_attention_keeps_the_dtype(
    requests: Requests, dtype: torch.dtype, *, uniform: bool
) -> None:
    """The output has the queries' dtype, and is as near to the reference as that dtype allows."""
    batch = as_declared(scene(requests, uniform=uniform, setting=Setting(dtype=dtype)))

    output = batch.run(MyAttentionBackend)

    assert output.dtype == dtype
    assert_close(output, reference_attention(batch))


@every_batch
def test_attention_reads_a_cache_of_another_dtype(requests: Requests, *, uniform: bool) -> None:
    """A 16-bit cache serves a float32 model, within the cache's precision."""
    setting = Setting(cache_dtype=torch.bfloat16)
    batch = as_declared(scene(requests, uniform=uniform, setting=setting))

    output = batch.run(MyAttentionBackend)

    assert output.dtype == torch.float32
    assert_close(output, reference_attention(batch), precision=torch.bfloat16)


@every_batch
def test_padding_changes_nothing(requests: Requests, *, uniform: bool) -> None:
    """Rows of pool row 0, which pad a batch, leave the real requests as they are."""
    real = scene(requests, uniform=uniform)
    longer = as_declared(padded(real, rows=len(real.counts), tokens=len(real.q)))

    output = longer.run(MyAttentionBackend)

    assert_close(output[: len(real.q)], reference_attention(real))


@every_batch
def test_half_batches_do_not_disturb_each_other(requests: Requests, *, uniform: bool) -> None:
    """Two objects whose forwards interleave, as in two-batch overlap, give the whole's output."""
    batch = scene(requests, uniform=uniform)
    halves = [as_declared(batch.select(order)) for order in ([0], [*range(1, len(requests))])]
    backends = [MyAttentionBackend(batch.pools) for _ in halves]

    for half, backend in zip(halves, backends, strict=True):
        backend.init_forward_metadata(half.batch)
    outputs = [half.forward(backend) for half, backend in zip(halves, backends, strict=True)]

    assert_close(torch.cat(outputs), reference_attention(batch))


def test_batch_of_nobody_has_no_output() -> None:
    """A batch without requests, as an idle rank has it, runs."""
    idle = as_declared(scene(DECODE, uniform=True).select([]))

    output = idle.run(MyAttentionBackend)

    assert len(output) == 0


def test_metadata_serves_every_layer() -> None:
    """One preparation serves all layers, and keys that are stored need not be stored again."""
    batch = as_declared(scene(PREFIXED))
    backend = MyAttentionBackend(batch.pools)
    backend.init_forward_metadata(batch.batch)

    first = batch.forward(backend)
    second = replace(batch, k=batch.k + 1, v=batch.v + 1).forward(backend, save_kv_cache=False)

    assert torch.equal(first, second)


@every_batch
@pytest.mark.parametrize("schedule", ["eager", "lazy"])
def test_forward_does_not_wait(requests: Requests, schedule: str, *, uniform: bool) -> None:
    """On the simulated device the host waits for nothing, and the output is the same."""
    batch = as_declared(scene(requests, uniform=uniform))

    with simulate(schedule) as run:
        moved = batch.on("sim")
        num_moving = len(run.hidden_syncs)
        output = moved.run(MyAttentionBackend)
        waits = run.hidden_syncs[num_moving:]
        found = output.cpu()

    assert waits == []
    assert_close(found, reference_attention(batch))


@pytest.mark.parametrize("kind", BatchKind, ids=lambda kind: kind.value)
def test_later_batch_is_served_as_well(kind: BatchKind) -> None:
    """A backend serves another batch after its first, by a graph where `graph_replay` says so."""
    declared = DECLARATION.capabilities.graph_replay
    is_uniform = kind is not BatchKind.MIXED_BATCH
    first, later = (
        as_declared(scene(requests, uniform=is_uniform, setting=Setting(seed=seed)))
        for seed, requests in enumerate(SUCCESSIONS[kind])
    )

    with simulate("lazy"):
        serve = replay if declared is not UNDECLARED and kind in declared else serve_eagerly
        output = serve(first.on("sim"), later.on("sim")).cpu()

    assert_close(output, reference_attention(later))


def serve_eagerly(first: Scene, later: Scene) -> Tensor:
    """Run one batch after the other in the same memory; return the later one's output."""
    backend = MyAttentionBackend(first.pools)
    backend.init_forward_metadata(first.batch)
    first.forward(backend)
    batch = load(first, later)
    backend.init_forward_metadata(batch.batch)
    return batch.forward(backend)


def replay(first: Scene, later: Scene) -> Tensor:
    """Capture one batch's forward as an engine does; return what a replay gives for the other."""
    backend = MyAttentionBackend(first.pools)
    backend.init_cuda_graph_state(len(first.counts), len(first.q))
    backend.init_forward_metadata(first.batch)
    first.forward(backend)
    backend.init_forward_metadata_out_graph(first.batch)
    device = torch.get_device_module("sim")
    recording = device.CUDAGraph()
    with device.graph(recording):
        backend.init_forward_metadata_in_graph(first.batch)
        output = first.forward(backend)
    backend.init_forward_metadata_out_graph(load(first, later).batch)
    recording.replay()
    return output


def load(first: Scene, later: Scene) -> Scene:
    """Copy a batch over another, as a graph needs it: in place, but for what the host knows."""
    for static, fresh in zip(tensors(first), tensors(later), strict=True):
        static.copy_(fresh)
    return replace(
        first,
        batch=replace(
            first.batch,
            seq_lens_cpu=later.batch.seq_lens_cpu,
            seq_lens_sum=later.batch.seq_lens_sum,
            seq_lens_cpu_upper_bound=later.batch.seq_lens_cpu_upper_bound,
            extend_seq_lens_cpu=later.batch.extend_seq_lens_cpu,
            extend_prefix_lens_cpu=later.batch.extend_prefix_lens_cpu,
        ),
    )


def tensors(held: Scene) -> list[Tensor]:
    """List what a batch and its pools have on the device."""
    batch, pools = held.batch, held.pools
    placed = (batch.req_pool_indices, batch.seq_lens, batch.out_cache_loc, batch.positions)
    extends = (batch.extend_seq_lens, batch.extend_prefix_lens)
    own = (held.q, held.k, held.v, pools.req_to_token, pools.keys, pools.values)
    return [*placed, *own, *(extend for extend in extends if extend is not None)]


def as_declared(batch: Scene) -> Scene:
    """Leave to a batch the host lengths that the backend declares to read, and no others.

    Bounds are two tokens too long, where the page table has room.
    """
    declared = DECLARATION.capabilities.host_seq_lens
    if declared is HostSeqLens.EXACT:
        return batch
    longest = batch.pools.req_to_token.shape[1]
    bounds = (batch.batch.seq_lens + 2).clamp(max=longest)
    lean = replace(
        batch.batch,
        seq_lens_cpu_upper_bound=bounds if declared is HostSeqLens.UPPER_BOUND else None,
        seq_lens_cpu=None,
        seq_lens_sum=None,
        extend_seq_lens_cpu=None,
        extend_prefix_lens_cpu=None,
    )
    return replace(batch, batch=lean)


def assert_close(output: Tensor, expected: Tensor, precision: torch.dtype | None = None) -> None:
    """Compare with the reference, as closely as the output's dtype allows, or another."""
    tolerance = TOLERANCES[precision or output.dtype]
    torch.testing.assert_close(output.double(), expected, atol=tolerance, rtol=tolerance)
