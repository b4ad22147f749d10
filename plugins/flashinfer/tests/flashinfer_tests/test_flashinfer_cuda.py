"""FlashInfer itself on a CUDA device, against float64 on the host."""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from shutil import which

import pytest
import torch
from backend_caps_flashinfer import FlashInfer

from backend_caps.kit.scenes import (
    Requests,
    Scene,
    Setting,
    beams,
    dice_of,
    layer_of,
    masked_scene,
    padded,
    random_tree,
    reference_attention,
    scene,
    tree_scene,
)
from backend_caps.runtime.model.layers import AttentionLayer

from .replays import replayed, roomy

TOLERANCE = {torch.bfloat16: 2e-2, torch.float16: 3e-3}
"""Absolute and relative, for outputs of about 1: a few of the dtype's last places."""
every_dtype = pytest.mark.parametrize("dtype", list(TOLERANCE), ids=str)
pytestmark = pytest.mark.timeout(1800)  # the first of each kind compiles
HEADS = [
    pytest.param(1, 1, id="one head"),
    pytest.param(8, 8, id="MHA"),
    pytest.param(8, 4, id="groups of two"),
    pytest.param(32, 8, id="groups of four"),
    pytest.param(64, 8, id="groups of eight"),
    pytest.param(10, 2, id="groups of five"),
]
LONG = ((4095, 1), (0, 1), (127, 1), (128, 1), (1023, 1))
BATCHES = [
    pytest.param(LONG, True, id="decode"),
    pytest.param(((0, 300), (0, 1), (0, 77)), False, id="prefill"),
    pytest.param(((2000, 64), (16, 1), (3, 130)), False, id="prefill over a prefix"),
    pytest.param(((1000, 4), (0, 4), (18, 4)), True, id="verify"),
    pytest.param(((1500, 1), (0, 33), (700, 1)), False, id="mixed"),
]


@pytest.fixture(autouse=True)
def _flashinfer_runs() -> None:
    """Skip where FlashInfer cannot run, and say why."""
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device: FlashInfer's kernels run on no other")
    if find_spec("flashinfer") is None:
        pytest.skip("no flashinfer: pip install 'backend-caps-flashinfer[cuda]'")
    nvcc = Path(os.environ.get("CUDA_HOME", "/usr/local/cuda"), "bin", "nvcc")
    if not (which("nvcc") or nvcc.exists() or find_spec("flashinfer_jit_cache")):
        pytest.skip("no nvcc: FlashInfer compiles its CUDA kernels when they are first run")


@every_dtype
@pytest.mark.parametrize("head_size", [64, 128, 256])
@pytest.mark.parametrize(("num_query_heads", "num_kv_heads"), HEADS)
@pytest.mark.parametrize(("requests", "uniform"), BATCHES)
def test_attention_on_cuda_equals_its_definition(
    requests: Requests,
    num_query_heads: int,
    num_kv_heads: int,
    head_size: int,
    dtype: torch.dtype,
    *,
    uniform: bool,
) -> None:
    """Every batch and head layout is as near to float64 as its dtype allows."""
    setting = _setting(_layer(num_query_heads, num_kv_heads, head_size), dtype)
    batch = scene(requests, uniform=uniform, setting=setting)

    output = batch.on("cuda").run(FlashInfer)

    _assert_near(output, batch)


@pytest.mark.parametrize("page_size", [1, 16, 64])
@pytest.mark.parametrize(("requests", "uniform"), BATCHES)
def test_attention_on_cuda_takes_any_pages(
    requests: Requests, page_size: int, *, uniform: bool
) -> None:
    """Slots come one by one, whatever pages they were given out in."""
    batch = scene(requests, uniform=uniform, setting=_setting(page_size=page_size))

    output = batch.on("cuda").run(FlashInfer)

    _assert_near(output, batch)


@pytest.mark.parametrize(("requests", "uniform"), BATCHES)
def test_padding_on_cuda_gets_zeros_and_changes_nothing(
    requests: Requests, *, uniform: bool
) -> None:
    """Rows of pool row 0, whose tokens are poison and whose slots are none, are left out."""
    real = scene(requests, uniform=uniform, setting=_setting(stale_slot=2**30))
    batch = padded(real, rows=len(real.counts), tokens=len(real.q))

    output = batch.on("cuda").run(FlashInfer)

    _assert_near(output[: len(real.q)], real)
    assert not output[len(real.q) :].any()


def test_requests_of_no_length_on_cuda_get_zeros() -> None:
    """A batch of padding alone, as graphs are captured with, gives zeros."""
    batch = scene(LONG, uniform=True, setting=_setting())
    assert batch.batch.seq_lens_cpu is not None
    batch.batch.seq_lens.zero_()
    batch.batch.seq_lens_cpu.zero_()

    output = batch.on("cuda").run(FlashInfer)

    assert not output.any()


@every_dtype
@pytest.mark.parametrize("topk", [1, 4, 64])
def test_trees_on_cuda_equal_their_definition(topk: int, dtype: torch.dtype) -> None:
    """Trees up to the declared width are verified over contexts of any length."""
    dice = dice_of(topk)
    trees = [(prefix, random_tree(65, topk, dice)) for prefix in (0, 7, 1000, 4000)]
    batch = tree_scene(trees, num_spare=99, setting=_setting(dtype=dtype))

    output = batch.on("cuda").run(FlashInfer)

    _assert_near(output, batch)


@pytest.mark.parametrize("num_steps", [1, 3])
def test_drafts_on_cuda_equal_their_definition(num_steps: int) -> None:
    """A draft step's tokens see their own branch of what the steps before have stored."""
    dice = dice_of(num_steps)
    drafts = [(prefix, beams(8, num_steps, dice)) for prefix in (0, 129, 2000)]
    batch = masked_scene(drafts, setting=_setting())

    output = batch.on("cuda").run(FlashInfer)

    _assert_near(output, batch)


@pytest.mark.parametrize("count", [1, 4])
def test_replays_on_cuda_equal_their_definition(count: int) -> None:
    """One capture serves 500 batches whose lengths, pages and contents change."""
    captured = scene([(0, count)] * 8, uniform=True, setting=_setting())
    batches = [
        scene(requests, uniform=True, setting=_setting(seed=seed))
        for seed, requests in enumerate(_steps(count))
    ]

    outputs = replayed(captured, [batches[i % len(batches)] for i in range(500)], "cuda")

    for at, output in enumerate(outputs):
        _assert_near(output, batches[at % len(batches)])


def test_replays_of_trees_on_cuda_equal_their_definition() -> None:
    """One capture serves other trees: each plan packs its own mask."""
    dice = dice_of(0)
    setting = _setting(max_context_len=512)
    prefixes = ((400, 0, 33, 8), (1, 2), (250, 250, 250))
    trees = [[(prefix, random_tree(4, 2, dice)) for prefix in own] for own in prefixes]
    captured, *batches = (tree_scene(own, setting=setting) for own in trees)

    outputs = replayed(roomy(captured), [*batches, captured], "cuda")

    for output, batch in zip(outputs, [*batches, captured], strict=True):
        _assert_near(output, batch)


def _steps(count: int) -> Sequence[Requests]:
    """Grow a few contexts, and let others come and go."""
    return [
        [((41 * step * (row + 1)) % 700, count) for row in range(1 + step % 8)]
        for step in range(20)
    ]


def _layer(
    num_query_heads: int = 32, num_kv_heads: int = 8, head_size: int = 128
) -> AttentionLayer:
    return layer_of(num_query_heads, num_kv_heads, head_size, scaling=head_size**-0.5)


def _setting(
    layer: AttentionLayer | None = None,
    dtype: torch.dtype = torch.bfloat16,
    *,
    page_size: int = 1,
    stale_slot: int = 0,
    max_context_len: int = 4160,
    seed: int = 0,
) -> Setting:
    return Setting(
        layer=layer or _layer(),
        dtype=dtype,
        page_size=page_size,
        stale_slot=stale_slot,
        max_context_len=max_context_len,
        num_slots=2**13,
        num_rows=32,
        seed=seed,
    )


def _assert_near(output: torch.Tensor, batch: Scene) -> None:
    tolerance = TOLERANCE[batch.q.dtype]
    found = output.cpu().double()
    torch.testing.assert_close(found, reference_attention(batch), atol=tolerance, rtol=tolerance)
