"""The kernels beyond their numbers: as the compiler and as torch's operators see them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from backend_caps_triton import TritonAttention
from backend_caps_triton.ops import attend
from backend_caps_triton.tiling import Tiling
from torch import Tensor

from backend_caps.kit.scenes import DECODE, GROVE, PREFIXED, VERIFY, Scene, scene, tree_scene

from .compilation import SHARED_BYTES, compiling_for, launch_attend, launch_plan

pytestmark = pytest.mark.slow

every_batch = pytest.mark.parametrize(
    "batch",
    [
        pytest.param(scene(PREFIXED), id="prefill"),
        pytest.param(scene(DECODE, uniform=True), id="decode"),
        pytest.param(scene(VERIFY, uniform=True), id="verify"),
        pytest.param(tree_scene(GROVE), id="trees"),
    ],
)


@pytest.fixture(autouse=True)
def _fresh_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Let nothing that was compiled before stand for what would be compiled now."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))


@pytest.mark.parametrize(
    ("compute_capability", "heads", "head_size", "dtype", "tile", "has_mask"),
    [
        pytest.param(90, (32, 8), 128, torch.bfloat16, 1, False, id="decode"),
        pytest.param(90, (32, 8), 256, torch.bfloat16, 64, True, id="trees of prompts"),
        pytest.param(86, (8, 8), 128, torch.bfloat16, 64, False, id="prefill"),
        pytest.param(86, (8, 8), 256, torch.float16, 64, False, id="prefill with wide heads"),
        pytest.param(80, (32, 8), 80, torch.float32, 4, True, id="trees with odd heads"),
    ],
)
def test_kernels_compile_for_gpus(
    compute_capability: int,
    heads: tuple[int, int],
    head_size: int,
    dtype: torch.dtype,
    tile: int,
    has_mask: bool,
) -> None:
    """Down to machine code, and into the shared memory that such a GPU has."""
    with compiling_for(compute_capability) as compiler:
        launch_attend(heads, head_size, dtype, tile, has_mask=has_mask)

    assert set(compiler.shared_bytes) == {"attend_kernel", "combine_kernel"}
    assert max(compiler.shared_bytes.values()) <= SHARED_BYTES[compute_capability]


@pytest.mark.parametrize(
    ("num_requests", "width", "has_counts"),
    [
        pytest.param(2, 128, True, id="prompts"),
        pytest.param(1, 1, False, id="one request of one token"),
    ],
)
def test_plans_compile_for_gpus(num_requests: int, width: int, *, has_counts: bool) -> None:
    """So do the kernels that plan, also where Triton compiles in that a number is 1."""
    with compiling_for(90) as compiler:
        launch_plan(num_requests, width, has_counts=has_counts)

    assert set(compiler.shared_bytes) == {"plan_kernel", "copy_slots_kernel"}


def test_steps_are_by_the_widest_dtype() -> None:
    """Shared memory holds keys and values as the cache has them, also where queries are less."""
    cache = torch.empty(128, 8, 128)

    tiling = Tiling.of(torch.empty(64, 8, 128, dtype=torch.bfloat16), cache, cache, 64)

    assert tiling == Tiling.of(torch.empty(64, 8, 128), cache, cache, 64)


def test_operators_name_what_they_write() -> None:
    """Their schemas tell torch which arguments change."""
    schema = attend._opoverload._schema  # noqa: SLF001 - the only way to an operator's schema

    written = [own.name for own in schema.arguments if own.alias_info and own.alias_info.is_write]

    assert written == ["parts", "weights", "output"]


@every_batch
def test_forward_runs_where_the_device_has_no_values(batch: Scene) -> None:
    """On the meta device nothing can be read back, and every shape still comes out."""
    meta = batch.on("meta")

    output = meta.run(TritonAttention)

    assert output.device.type == "meta"
    assert output.shape == batch.q.shape


@pytest.mark.parametrize("batch", [scene(DECODE, uniform=True), tree_scene(GROVE)])
def test_forward_compiles_whole(batch: Scene) -> None:
    """`torch.compile` finds no break in a forward, and what it makes gives the same."""
    backend = TritonAttention(batch.pools)

    def attended(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        backend.init_forward_metadata(batch.batch)
        return backend.forward(q, k, v, batch.layer, batch.batch)

    compiled = torch.compile(attended, backend="aot_eager", fullgraph=True)
    output = compiled(batch.q, batch.k, batch.v)

    assert torch.equal(output, attended(batch.q, batch.k, batch.v))
