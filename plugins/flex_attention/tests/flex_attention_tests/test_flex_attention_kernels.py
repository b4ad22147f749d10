"""What compiled kernels compute, and how few of them there are."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from backend_caps.kit.scenes import (
    CHAIN,
    COMB,
    DECODE,
    FORK,
    GROVE,
    PREFILL,
    PREFIXED,
    STAR,
    VERIFY,
    Requests,
    Scene,
    Setting,
    layer_of,
    padded,
    reference_attention,
    scene,
    tree_scene,
)

from .rig import bounded, compiled_output, needs_compiler

# A kernel takes seconds to compile, and many times that on a machine that compiles others.
pytestmark = [pytest.mark.slow, needs_compiler, pytest.mark.timeout(400)]

_WIDE = Setting(max_context_len=1024, num_slots=4096, seed=1)
KINDS = [
    pytest.param(
        [
            scene(PREFIXED),
            scene(PREFILL),
            scene((*DECODE, *PREFIXED)),
            scene(((700, 3), (0, 1), (128, 150), (129, 40)), setting=_WIDE),
            scene(((0, 1),)),
        ],
        id="prefill and mixed",
    ),
    pytest.param(
        [
            scene(DECODE, uniform=True),
            scene(((1000, 1), (0, 1), (127, 1), (128, 1), (255, 1)), uniform=True, setting=_WIDE),
            scene(DECODE[:2], uniform=True),
        ],
        id="decode",
    ),
    pytest.param(
        [scene(DECODE[:1], uniform=True), scene(((999, 1),), uniform=True, setting=_WIDE)],
        id="decode of one request",
    ),
    pytest.param(
        [
            scene(VERIFY, uniform=True),
            scene(((1000, 3), (0, 3), (126, 3), (127, 3)), uniform=True, setting=_WIDE),
        ],
        id="verify",
    ),
    pytest.param(
        [
            tree_scene(GROVE),
            tree_scene([(1000, STAR), (0, COMB), (126, FORK)], num_spare=70, setting=_WIDE),
            tree_scene([(7, CHAIN), (7, STAR)]),
        ],
        id="trees",
    ),
]
LAYERS = [
    pytest.param(
        Setting(layer=layer_of(16, 2, 128), dtype=torch.bfloat16, page_size=16),
        2e-2,
        id="16 heads over 2 of 128 in bfloat16",
    ),
    pytest.param(
        Setting(layer=layer_of(3, 3, 80), dtype=torch.float16, page_size=64, num_slots=512),
        2e-3,
        id="3 heads of 80 in float16",
    ),
    pytest.param(
        Setting(layer=layer_of(8, 1, 96, 64), page_size=1),
        1e-5,
        id="8 heads over 1 of 96, values of 64, in float32",
    ),
]
# Triton's dots take 16 at least.
_ON_A_GPU = Setting(layer=layer_of(head_size=64), max_context_len=1024, num_slots=4096)
ON_A_GPU = [
    pytest.param(scene(((700, 3), (0, 1), (128, 150)), setting=_ON_A_GPU), id="mixed"),
    pytest.param(scene(((999, 1), (0, 1)), uniform=True, setting=_ON_A_GPU), id="decode"),
    pytest.param(scene(((999, 4), (0, 4)), uniform=True, setting=_ON_A_GPU), id="verify"),
    pytest.param(tree_scene(GROVE, setting=_ON_A_GPU), id="trees"),
]


@pytest.mark.parametrize("batches", KINDS)
def test_a_kernel_equals_the_definition_for_all_batches_of_its_kind(
    batches: Sequence[Scene],
) -> None:
    """One compilation serves other lengths, sizes and tables; a second one would be an error."""
    outputs = [compiled_output(bounded(batches[0]))]

    with torch.compiler.set_stance("fail_on_recompile"):
        outputs += [compiled_output(bounded(batch)) for batch in batches[1:]]

    for batch, output in zip(batches, outputs, strict=True):
        torch.testing.assert_close(
            output.double(), reference_attention(batch), atol=1e-5, rtol=1e-5
        )


@pytest.mark.parametrize(("setting", "tolerance"), LAYERS)
def test_kernels_serve_other_layers(setting: Setting, tolerance: float) -> None:
    """Heads, their sizes and dtypes that models have are compiled too, each for itself."""
    batch = scene(DECODE, uniform=True, setting=setting)

    output = compiled_output(bounded(batch))

    assert output.dtype == setting.dtype
    torch.testing.assert_close(
        output.double(), reference_attention(batch), atol=tolerance, rtol=tolerance
    )


@pytest.mark.parametrize(
    ("requests", "uniform"),
    [pytest.param(PREFIXED, False, id="prefill"), pytest.param(DECODE, True, id="decode")],
)
def test_kernels_read_nothing_that_nobody_owns(requests: Requests, *, uniform: bool) -> None:
    """Unowned slots and page-table entries that are no slots change no bit of a kernel's output."""
    clean = scene(requests, uniform=uniform, setting=Setting(poison=0.0))
    poisoned = Setting(poison=torch.nan, stale_slot=2**30)

    output = compiled_output(scene(requests, uniform=uniform, setting=poisoned))

    assert torch.equal(output, compiled_output(clean))


def test_kernels_give_zeros_for_padding() -> None:
    """Padded tokens that are no numbers get zeros, and leave the others as they are."""
    real = scene(PREFIXED)
    batch = padded(real, rows=2, tokens=5)

    output = compiled_output(batch)

    assert torch.equal(output[len(real.q) :], torch.zeros_like(output[len(real.q) :]))
    assert torch.equal(output[: len(real.q)], compiled_output(real))


@pytest.mark.parametrize(
    ("requests", "uniform"),
    [
        pytest.param(((7, 3), *PREFIXED), False, id="prefill"),
        pytest.param(VERIFY, True, id="verify"),
    ],
)
def test_a_request_of_no_numbers_spoils_no_other(requests: Requests, *, uniform: bool) -> None:
    """One request whose keys and values overflowed leaves the others' outputs as they were."""
    batch = scene(requests, uniform=uniform)
    whole = compiled_output(batch)
    batch.k[:3] = batch.v[:3] = torch.nan

    output = compiled_output(batch)

    assert torch.equal(output[3:], whole[3:])


@pytest.mark.skipif(
    not torch.cuda.is_available(), reason="no CUDA device: Triton's kernels are compiled for one"
)
@pytest.mark.parametrize("batch", ON_A_GPU)
def test_kernels_on_cuda_equal_the_definition(batch: Scene) -> None:
    """Triton's kernels give on a GPU what C++ gives on a CPU."""
    there = bounded(batch).on("cuda")

    output = compiled_output(there).cpu()

    torch.testing.assert_close(output.double(), reference_attention(batch), atol=2e-5, rtol=2e-5)
