"""Bridged backends beside SGLang's own TorchNativeAttnBackend, out of the wheel of 0.5.23.

SGLang's classes are its own; pools, batches and layers are this file's, with what those are asked
for. `tests.upstream.bridged` runs the same with SGLang's own pools, batches and layers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from backend_caps_sglang.errors import BridgeError
from torch import Tensor
from torch_native_caps import TORCH_NATIVE, TORCH_PADDED

from backend_caps.simulator import simulate
from backend_caps.simulator.streams import CUDAGraph, graph
from tests.upstream.bridged import CASES, CLOSE, HEAD_DIM, Drawn, Parts, distance, draw, runner_of
from tests.upstream.bridged_wheel import (
    BACKENDS,
    batch_of,
    bridged,
    bridged_on_device,
    layer_of,
    on_device,
    wheel_parts,
)
from tests.upstream.sglang_environment import run_beside
from tests.upstream.sglang_wheel import RuntimeContext

pytestmark = pytest.mark.upstream

EXTEND, DECODE = CASES[2], CASES[0]
LENGTHS = ((5, 1, 31), (3, 9, 2))
"""Contexts of the same requests at two replays."""
_MLA = SimpleNamespace(
    attention_arch=SimpleNamespace(name="MLA"),
    head_dim=HEAD_DIM,
    context_len=64,
    is_encoder_decoder=True,
)


@pytest.fixture
def parts() -> Iterator[Parts]:
    """SGLang's class, in a plain server."""
    with wheel_parts() as made:
        yield made


@pytest.mark.parametrize("name", BACKENDS)
def test_bridged_backend_is_sglangs_own(name: str, parts: Parts) -> None:
    """Outputs and what is stored are within 1e-5: decode, extend, mixed, GQA, three page sizes."""
    apart = {str(case): distance(name, BACKENDS[name], case, parts) for case in CASES}

    assert {case: far for case, far in apart.items() if far > CLOSE} == {}


def test_distance_sees_another_scaling(parts: Parts) -> None:
    """Were the bridge to change one factor, the comparison would show it."""
    factors = iter((1.0, 2.0))
    changed = replace(parts, layer=lambda case: layer_of(case, scaling=next(factors)))

    assert distance("torch_padded", TORCH_PADDED, EXTEND, changed) > CLOSE


@pytest.mark.parametrize(("name", "needs"), [("torch_native", True), ("torch_padded", False)])
def test_bridged_backend_states_its_need(name: str, needs: bool, parts: Parts) -> None:
    """SGLang's decision finds the flag in the object's own class, and the bound beside it."""
    backend = bridged(parts, draw(DECODE), BACKENDS[name])

    stated = vars(type(backend))["needs_cpu_seq_lens"]
    assert (stated, type(backend).__name__, backend.max_context_len) == (needs, name, 64)


def test_backend_that_declares_no_mirror_gets_none(parts: Parts) -> None:
    """What SGLang keeps on the host is not shown to a backend that says it reads none of it."""
    drawn = draw(DECODE)
    views = [bridged(parts, drawn, own)._view(batch_of(drawn)) for own in BACKENDS.values()]  # noqa: SLF001

    mirrors = [(view.seq_lens_cpu, view.seq_lens_cpu_upper_bound) for view in views]

    assert [own is None for own, _ in mirrors] == [False, True]
    assert [own is None for _, own in mirrors] == [False, True]


def test_graph_replays_over_sglangs_buffers(parts: Parts) -> None:
    """Captured once, and replayed when the buffers hold other lengths, it gives eager outputs."""
    drawn = draw(DECODE)

    with simulate():
        outputs = replayed(parts, drawn)

    assert [*map(torch.equal, outputs, eager(parts, drawn))] == [True, True]


def replayed(parts: Parts, drawn: Drawn) -> list[Tensor]:
    """Capture a decode as SGLang's runner does, and replay it with each of `LENGTHS`."""
    backend, batch = bridged_on_device(parts, drawn), on_device(batch_of(drawn))
    q, new = drawn.q.to("sim"), [own.to("sim") for own in drawn.new]
    backend.init_cuda_graph_state(3, 3)
    backend.init_forward_metadata_out_graph(batch, in_capture=True)
    captured, outputs = CUDAGraph(), []
    with graph(captured):
        backend.init_forward_metadata_in_graph(batch)
        output = backend.forward(q, *new, layer_of(DECODE), batch)
    for lengths in LENGTHS:
        batch.seq_lens.copy_(torch.tensor(lengths))
        backend.init_forward_metadata_out_graph(batch)
        captured.replay()
        outputs.append(output.cpu())
    return outputs


def eager(parts: Parts, drawn: Drawn) -> list[Tensor]:
    """Run the same lengths eagerly, on the CPU."""
    backend, batch, outputs = bridged(parts, drawn), batch_of(drawn), []
    for lengths in LENGTHS:
        batch.seq_lens.copy_(torch.tensor(lengths))
        backend.init_forward_metadata(batch)
        outputs.append(backend.forward(drawn.q, *drawn.new, layer_of(DECODE), batch))
    return outputs


def test_padded_request_of_a_graph_reads_nothing(parts: Parts) -> None:
    """SGLang pads with row 0 and the length that the backend names; that output is zero."""
    drawn = draw(DECODE)
    backend, layer = bridged(parts, drawn), layer_of(DECODE)
    length = backend.get_cuda_graph_seq_len_fill_value()
    batch = batch_of(drawn)
    batch.req_pool_indices[1], batch.seq_lens[1], batch.out_cache_loc[1] = 0, length, 0

    backend.init_forward_metadata(batch)
    output = backend.forward(drawn.q, *drawn.new, layer, batch)

    assert [row.any().item() for row in output] == [True, False, True]


def test_class_that_contradicts_its_declaration_is_refused(parts: Parts) -> None:
    """A class that slices by host lengths, and is declared to need none, is not built."""
    declaration = TORCH_PADDED.model_copy(update={"implementation": TORCH_NATIVE.implementation})
    adapter = import_module("backend_caps_sglang.bridge").bridge("liar", declaration)

    with pytest.raises(BridgeError, match="TorchNative reads seq_lens_cpu"):
        adapter(runner_of(draw(DECODE), parts))


def test_graph_that_is_not_declared_is_refused(parts: Parts) -> None:
    """The error names what is captured, what is declared and the flag that leaves it out."""
    backend = bridged(parts, draw(DECODE), TORCH_NATIVE)

    with pytest.raises(BridgeError) as caught:
        backend.init_cuda_graph_state(4, 4)

    assert str(caught.value) == (
        "SGLang captures a graph of single_token_decode batches, and backend 'torch_native' "
        "declares graph_replay={}. Start the server with --disable-decode-cuda-graph."
    )


@pytest.mark.parametrize(("mode", "ends"), [("DECODE", "POST_REPLAY"), ("EXTEND", "POST_REPLAY")])
def test_reads_end_where_the_backend_says(mode: str, ends: str, parts: Parts) -> None:
    """SGLang's default, which is earlier than what is declared, does not hold."""
    modes = import_module("sglang.srt.model_executor.forward_batch_info").ForwardMode

    assert bridged(parts, draw(DECODE)).shared_read_ends(modes[mode]).name == ends


@pytest.mark.parametrize("mode", ["TARGET_VERIFY", "DLLM_EXTEND", "SPLIT_PREFILL"])
def test_mode_that_is_not_bridged_is_refused(mode: str, parts: Parts) -> None:
    """The error names the mode, and those that are bridged."""
    drawn = draw(DECODE)
    modes = import_module("sglang.srt.model_executor.forward_batch_info").ForwardMode
    batch = batch_of(drawn, forward_mode=modes[mode])

    with pytest.raises(BridgeError, match=f"{mode} .* DECODE, EXTEND, MIXED"):
        bridged(parts, drawn).init_forward_metadata(batch)


def test_idle_batch_is_nothing(parts: Parts) -> None:
    """A rank without requests prepares nothing, and SGLang's own base answers for the layer."""
    drawn = draw(DECODE)
    modes = import_module("sglang.srt.model_executor.forward_batch_info").ForwardMode
    backend, batch = bridged(parts, drawn), batch_of(drawn, forward_mode=modes.IDLE)

    backend.init_forward_metadata(batch)
    output = backend.forward(drawn.q[:0], None, None, layer_of(DECODE), batch)

    assert output.shape == (0, DECODE.num_q_heads * HEAD_DIM)


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        ({"logit_cap": 30.0}, "its logits are capped at 30.0"),
        ({"sliding_window_size": 127}, "it has a sliding window of 127"),
        ({"is_cross_attention": True}, "it attends to an encoder's output"),
        ({"xai_temperature_len": 1024}, "its temperature follows the position"),
        ({"k_scale": 1.0}, "its cache has scales"),
        ({"attn_type": SimpleNamespace(name="ENCODER_ONLY")}, "its attention is ENCODER_ONLY"),
    ],
)
def test_layer_that_is_not_bridged_is_refused(
    other: dict[str, object], reason: str, parts: Parts
) -> None:
    """Nothing is computed for a layer that asks for what the backend does not receive."""
    drawn = draw(DECODE)
    backend, batch = bridged(parts, drawn), batch_of(drawn)
    backend.init_forward_metadata(batch)

    with pytest.raises(BridgeError, match=f"through the bridge: {reason}\\. Plain") as caught:
        backend.forward(drawn.q, *drawn.new, layer_of(DECODE, **other), batch)

    assert caught.value.code == "layer-unbridged"


def test_sinks_are_refused(parts: Parts) -> None:
    """What a model hands to attention beside queries, keys and values is not dropped."""
    drawn = draw(DECODE)
    backend, batch = bridged(parts, drawn), batch_of(drawn)

    with pytest.raises(BridgeError, match="its softmax has sinks"):
        backend.forward(drawn.q, *drawn.new, layer_of(DECODE), batch, sinks=torch.zeros(4))


def test_layer_without_keys_of_its_own_is_refused(parts: Parts) -> None:
    """A layer that reads another's cache brings no keys, and a backend of ours stores some."""
    drawn = draw(DECODE)
    backend, batch = bridged(parts, drawn), batch_of(drawn)

    with pytest.raises(BridgeError, match="another layer's keys and values"):
        backend.forward(drawn.q, None, None, layer_of(DECODE), batch)


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        ({"sliding_window_size": 4096}, "the model's sliding windows"),
        ({"kv_cache_dtype": torch.float8_e4m3fn}, "here it is fp8_e4m3"),
        ({"model_config": _MLA}, "it takes attention_arch mha; here it is mla"),
    ],
)
def test_server_that_is_not_bridged_is_refused(
    other: dict[str, object], reason: str, parts: Parts
) -> None:
    """What the backend does not take, or the bridge does not carry, is reported at the start."""
    with pytest.raises(BridgeError, match=reason):
        bridged(parts, draw(DECODE), runner=other)


_EAGLE: Mapping[str, object] = {
    "speculative_algorithm": "EAGLE",
    "speculative_num_steps": 3,
    "speculative_eagle_topk": 1,
    "speculative_num_draft_tokens": 4,
}


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        ({"speculative_algorithm": "NGRAM"}, "NGRAM is not bridged; EAGLE, EAGLE3, STANDALONE are"),
        ({"speculative_adaptive": True}, "--speculative-adaptive changes backends"),
        ({"enable_multi_layer_eagle": True}, "--enable-multi-layer-eagle is not bridged"),
        ({"speculative_eagle_topk": 65}, "-topk is 65, and the backends take at most 64"),
    ],
)
def test_flags_that_are_not_bridged_are_refused(flags: dict[str, Any], reason: str) -> None:
    """What is not carried over of speculation, or not declared, is reported at the start."""
    with (
        wheel_parts(RuntimeContext(**{**_EAGLE, **flags})) as parts,
        pytest.raises(BridgeError, match=reason),
    ):
        bridged(parts, draw(DECODE))


def test_backend_that_declares_no_two_batch_overlap_is_refused_under_it() -> None:
    """What it declares counts: SGLang's wrapper would run its halves without asking."""
    capabilities = TORCH_PADDED.capabilities.model_copy(update={"two_batch_overlap": False})
    declaration = TORCH_PADDED.model_copy(update={"capabilities": capabilities})

    with wheel_parts(RuntimeContext(enable_two_batch_overlap=True)) as parts:
        assert bridged(parts, draw(DECODE), TORCH_PADDED).needs_cpu_seq_lens
        with pytest.raises(BridgeError, match="--enable-two-batch-overlap is given"):
            bridged(parts, draw(DECODE), declaration)


@pytest.mark.installed_engine
def test_bridged_backend_is_sglangs_own_in_sglang() -> None:
    """With SGLang's own pools, batches and layers, outputs are within 1e-5 too."""
    apart: Mapping[str, Any] = run_beside("tests.upstream.bridged")

    assert len(apart) == len(BACKENDS) * len(CASES)
    assert {case: far for case, far in apart.items() if far > CLOSE} == {}


@pytest.mark.installed_engine
def test_halves_of_two_batch_overlap_are_the_whole_batch() -> None:
    """SGLang's wrapper has three of a backend, and cuts decode, chain and tree by itself."""
    apart: Mapping[str, Any] = run_beside("tests.upstream.sglang_halves")

    assert [*apart] == ["decode", "chain", "tree"]
    assert {case: far for case, far in apart.items() if far > CLOSE} == {}


@pytest.mark.installed_engine
def test_sglang_loads_the_plugin() -> None:
    """SGLang's scheduler has our decision, its registry our backend, its parser the name."""
    assert run_beside("tests.upstream.sglang_loaded") == {
        "scheduler_had_sglangs": True,
        "scheduler_has_ours": True,
        "adapter": "torch_native_sglang:torch_padded (backend-caps-torch-native 0.1.0)",
        "flag": "torch_padded",
    }
