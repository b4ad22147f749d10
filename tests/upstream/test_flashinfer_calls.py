"""What the plugin `flashinfer` calls, against the code in FlashInfer's wheel."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
import torch
from backend_caps_flashinfer import FlashInfer
from backend_caps_flashinfer.package import (
    DecodeWrapper,
    MakeDecodeWrapper,
    MakePrefillWrapper,
    PrefillWrapper,
)
from torch import Tensor

from backend_caps.kit.scenes import (
    DECODE,
    FORK,
    GROVE,
    PREFIXED,
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
from backend_caps.simulator import simulate
from tests.upstream import flashinfer_wheel as wheel

# Run by other tests too, and faster untraced.
pytestmark = [pytest.mark.upstream, pytest.mark.no_cover]

CALLS = [
    pytest.param(MakeDecodeWrapper.__call__, wheel.DECODE, "__init__", id="decode"),
    pytest.param(DecodeWrapper.plan, wheel.DECODE, "_plan_impl", id="decode.plan"),
    pytest.param(DecodeWrapper.run, wheel.DECODE, "run", id="decode.run"),
    pytest.param(MakePrefillWrapper.__call__, wheel.PREFILL, "__init__", id="prefill"),
    pytest.param(PrefillWrapper.plan, wheel.PREFILL, "plan", id="prefill.plan"),
    pytest.param(PrefillWrapper.run, wheel.PREFILL, "run", id="prefill.run"),
]
BATCHES = [
    pytest.param(PREFIXED, False, id="prefill"),
    pytest.param(DECODE, True, id="decode"),
    pytest.param(VERIFY, True, id="verify"),
    pytest.param((*DECODE, *PREFIXED), False, id="mixed"),
]
HEADS = [
    pytest.param(Setting(dtype=torch.float16), id="plain cores"),
    pytest.param(
        Setting(dtype=torch.float16, layer=layer_of(num_query_heads=5, num_kv_heads=1)),
        id="tensor cores",
    ),
]
HEADERS = "flashinfer/data/include/flashinfer"
EVIDENCE = [
    pytest.param(
        f"{HEADERS}/attention/decode.cuh",
        r"uint32_t chunk_size = chunk_end - chunk_start;",
        id="a chunk behind a context's end has no sign",
    ),
    pytest.param(
        f"{HEADERS}/attention/scheduler.cuh",
        r"cudaMemcpyAsync\(int_buffer, page_locked_int_buffer",
        id="a plan is copied from pinned memory without waiting",
    ),
    pytest.param(
        f"{HEADERS}/attention/prefill.cuh",
        r"Prefill kernels do not support bf16 on sm75",
        id="7.5 has no prefill in bfloat16",
    ),
    pytest.param(
        f"{HEADERS}/attention/prefill.cuh",
        r"static_assert\(sizeof\(DTypeQ\) == 2\);",
        id="prefill has no float32",
    ),
]


@pytest.fixture
def own_wrappers(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let `import flashinfer` find the wheel's wrappers, on a device that has pinned memory."""
    monkeypatch.setitem(sys.modules, "flashinfer", wheel.wrappers())
    monkeypatch.setattr("backend_caps_flashinfer.backend._WORKSPACE_BYTES", 16)
    with simulate("eager"):
        yield


@pytest.mark.parametrize(("call", "where", "method"), CALLS)
def test_calls_fit_the_signatures_of_the_wheel(
    call: Callable[..., object], where: tuple[str, str], method: str
) -> None:
    """Whatever the plugin passes, by place or by name, arrives at the parameter of that name."""
    passed = inspect.signature(call).parameters.values()
    by_place = [own.name for own in passed if own.kind is not own.KEYWORD_ONLY]
    by_name = [own.name for own in passed if own.kind is own.KEYWORD_ONLY]

    bound = wheel.signature(where, method).bind(*by_place, **{name: name for name in by_name})

    assert bound.arguments == {name: name for name in (*by_place, *by_name)}


@pytest.mark.parametrize(("path", "pattern"), EVIDENCE)
def test_wheel_has_what_the_declaration_says_of_it(path: str, pattern: str) -> None:
    """What keeps the backend from declaring more stands in the sources that FlashInfer compiles."""
    assert re.search(pattern, wheel.read(path)) is not None


def test_decode_is_compiled_for_groups_below_those_of_tensor_cores() -> None:
    """Groups of 1, 2 and 3 query heads a key head run on plain cores, and have a kernel there."""
    source = wheel.read(f"{HEADERS}/utils.cuh")
    macro = source.partition("#define DISPATCH_GQA_GROUP_SIZE")[2].partition("#define")[0]

    assert {int(size) for size in re.findall(r"group_size == (\d+)", macro)} >= {1, 2, 3}


@pytest.mark.usefixtures("own_wrappers")
@pytest.mark.parametrize("setting", HEADS)
@pytest.mark.parametrize(("requests", "uniform"), BATCHES)
def test_wheels_own_wrappers_attend(requests: Requests, setting: Setting, *, uniform: bool) -> None:
    """FlashInfer's checks pass, and what reaches its kernels is the batch."""
    batch = scene(requests, uniform=uniform, setting=setting)

    _assert_attended([batch.on("sim").run(FlashInfer).cpu()], [batch])


@pytest.mark.usefixtures("own_wrappers")
def test_wheels_own_wrappers_attend_to_trees() -> None:
    """FlashInfer packs a tree mask as it is, and its kernels find every bit."""
    batch = tree_scene(GROVE, setting=Setting(dtype=torch.float16))

    _assert_attended([batch.on("sim").run(FlashInfer).cpu()], [batch])


@pytest.mark.usefixtures("own_wrappers")
@pytest.mark.parametrize("setting", HEADS)
@pytest.mark.parametrize("count", [1, 3])
def test_wheels_own_wrappers_plan_anew_for_a_graph(count: int, setting: Setting) -> None:
    """A graph's wrapper takes padding alone, then batches of any lengths, in the same buffers."""
    full, *others = (
        scene([(prefix, count) for prefix in prefixes], uniform=True, setting=setting)
        for prefixes in ((7, 7, 7, 7), (4, 0, 18), (20,))
    )
    batches = [full.select([]), *others, full]

    _assert_attended(_planned_for_a_graph(batches, 4, count), batches)


@pytest.mark.usefixtures("own_wrappers")
def test_wheels_own_wrappers_plan_trees_anew_for_a_graph() -> None:
    """A graph's wrapper packs each batch's masks into the same buffer."""
    setting = Setting(dtype=torch.float16)
    batches = [tree_scene(GROVE[:count], setting=setting) for count in (1, 4, 2)]

    _assert_attended(_planned_for_a_graph(batches, 4, len(FORK)), batches)


def _assert_attended(outputs: list[Tensor], batches: list[Scene]) -> None:
    for output, batch in zip(outputs, batches, strict=True):
        expected = reference_attention(batch)
        torch.testing.assert_close(output.double(), expected, atol=2e-3, rtol=2e-3)


def _planned_for_a_graph(batches: list[Scene], num_requests: int, count: int) -> list[Tensor]:
    """Prepare every batch as for a replay, and attend as the graph would."""
    outputs = []
    backend: FlashInfer | None = None
    for real in batches:
        batch = _filled(real, num_requests, count).on("sim")
        if backend is None:
            backend = FlashInfer(batch.pools)
            backend.init_cuda_graph_state(num_requests, num_requests * count)
            static = batch.pools
        for name in ("req_to_token", "keys", "values"):
            getattr(static, name).copy_(getattr(batch.pools, name))
        backend.init_forward_metadata_out_graph(batch.batch)
        backend.init_forward_metadata_in_graph(batch.batch)
        outputs.append(replace(batch, pools=static).forward(backend)[: len(real.q)].cpu())
    return outputs


def _filled(real: Scene, num_requests: int, count: int) -> Scene:
    """Pad a batch with requests of no length, as a graph runner does."""
    rows = num_requests - len(real.counts)
    filled = padded(real, rows=rows, tokens=rows * count)
    for lengths in (filled.batch.seq_lens, filled.batch.seq_lens_cpu):
        assert lengths is not None
        lengths[len(real.counts) :] = 0
    return filled
