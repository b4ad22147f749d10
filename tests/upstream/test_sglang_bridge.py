"""Bridged backends beside SGLang's own TorchNativeAttnBackend, out of the wheel of 0.5.23.

SGLang's classes are its own; pools, batches and layers are this file's, with what those are asked
for. `tests.upstream.bridged` runs the same with SGLang's own pools, batches and layers.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from importlib.metadata import distribution
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from backend_caps_sglang.bridging.errors import (
    ContradictedDeclarationError,
    UnbridgedBackendError,
    UnbridgedBatchError,
    UnbridgedLayerError,
    UnreplayedBatchError,
)
from torch import Tensor
from torch_native_caps import TORCH_NATIVE, TORCH_PADDED

from backend_caps import Declaration
from backend_caps.conformance.simulator import simulate
from backend_caps.conformance.simulator.graphs import CUDAGraph, graph
from tests.upstream.bridged import (
    CASES,
    CLOSE,
    HEAD_DIM,
    Case,
    Drawn,
    Parts,
    distance,
    draw,
    lengths_of,
    runner_of,
)
from tests.upstream.sglang_packages import sglang_packages
from tests.upstream.sglang_wheel import WHEELS, RuntimeContext

pytestmark = pytest.mark.upstream

ROOT = WHEELS.parents[1]
PYTHON = WHEELS.with_name("engines") / "sglang-0.5.23" / "bin" / "python"
BACKENDS = {"torch_native": TORCH_NATIVE, "torch_padded": TORCH_PADDED}
EXTEND, DECODE = CASES[2], CASES[0]
LENGTHS = ((5, 1, 31), (3, 9, 2))
"""Contexts of the same requests at two replays."""
_MLA = SimpleNamespace(
    attention_arch=SimpleNamespace(name="MLA"),
    head_dim=HEAD_DIM,
    context_len=64,
    is_encoder_decoder=True,
)


@dataclass(frozen=True, slots=True)
class Pool:
    """A KV pool of one layer, with the methods of SGLang's."""

    keys: Tensor
    values: Tensor

    def get_key_buffer(self, _layer_id: int) -> Tensor:
        """Return keys."""
        return self.keys

    def get_value_buffer(self, _layer_id: int) -> Tensor:
        """Return values."""
        return self.values

    def set_kv_buffer(self, _layer: object, loc: SimpleNamespace, k: Tensor, v: Tensor) -> None:
        """Store."""
        self.keys[loc.loc], self.values[loc.loc] = k, v


def layer_of(case: Case, **other: object) -> SimpleNamespace:
    """Say what SGLang's layer says of itself."""
    plain = {
        "layer_id": 0,
        "tp_q_head_num": case.num_q_heads,
        "tp_k_head_num": case.num_k_heads,
        "qk_head_dim": HEAD_DIM,
        "v_head_dim": HEAD_DIM,
        "scaling": HEAD_DIM**-0.5,
        "logit_cap": 0.0,
        "sliding_window_size": -1,
        "is_cross_attention": False,
        "xai_temperature_len": -1,
        "k_scale": None,
        "v_scale": None,
        "attn_type": import_module("sglang.srt.layers.radix_attention").AttentionType.DECODER,
    }
    return SimpleNamespace(**(plain | other))


def batch_of(drawn: Drawn, **other: object) -> SimpleNamespace:
    """Make a batch with the fields of SGLang's."""
    modes = import_module("sglang.srt.model_executor.forward_batch_info").ForwardMode
    said = {"encoder_lens": None, "forward_mode": modes[drawn.case.mode], **lengths_of(drawn)}
    return SimpleNamespace(**(said | other))


@pytest.fixture
def context() -> RuntimeContext:
    """The flags of a plain server, which a test may change."""
    return RuntimeContext()


@pytest.fixture
def parts(context: RuntimeContext) -> Iterator[Parts]:
    """SGLang's class out of the wheel, and this file's pools, batches and layers."""
    with sglang_packages(context=context):
        native = import_module("sglang.srt.layers.attention.torch_native_backend")
        yield Parts(
            native=native.TorchNativeAttnBackend,
            arch=SimpleNamespace(name="MHA"),
            pools=lambda drawn: (
                SimpleNamespace(req_to_token=drawn.req_to_token),
                Pool(drawn.cache[0].clone(), drawn.cache[1].clone()),
            ),
            batch=batch_of,
            layer=layer_of,
        )


def bridged(
    parts: Parts,
    drawn: Drawn,
    declaration: Declaration = TORCH_PADDED,
    runner: Mapping[str, object] | None = None,
) -> SimpleNamespace:
    """Build a backend by its adapter, on a runner that may say other things."""
    made = runner_of(drawn, parts)
    vars(made).update(runner or {})
    name = next(name for name, own in BACKENDS.items() if own is declaration)
    backend: SimpleNamespace = import_module("backend_caps_sglang.bridge").bridge(
        name, declaration
    )(made)
    return backend


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
        outputs = replayed(*on_simulated(parts, drawn))

    assert [*map(torch.equal, outputs, eager(parts, drawn))] == [True, True]


def replayed(
    backend: SimpleNamespace, batch: SimpleNamespace, q: Tensor, new: list[Tensor]
) -> list[Tensor]:
    """Capture a decode as SGLang's runner does, and replay it with each of `LENGTHS`."""
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


def on_simulated(
    parts: Parts, drawn: Drawn
) -> tuple[SimpleNamespace, SimpleNamespace, Tensor, list[Tensor]]:
    """Put a bridged backend, its batch and its tokens on the simulated device."""
    rows, pool = parts.pools(drawn)
    assert isinstance(rows, SimpleNamespace)
    assert isinstance(pool, Pool)
    there: dict[str, object] = {
        "device": "sim",
        "req_to_token_pool": SimpleNamespace(req_to_token=rows.req_to_token.to("sim")),
        "token_to_kv_pool": Pool(pool.keys.to("sim"), pool.values.to("sim")),
    }
    batch = batch_of(drawn)
    for name in ("req_pool_indices", "seq_lens", "out_cache_loc"):
        vars(batch)[name] = vars(batch)[name].to("sim")
    batch.seq_lens_cpu = batch.seq_lens_sum = None
    new = [own.to("sim") for own in drawn.new]
    return bridged(parts, drawn, runner=there), batch, drawn.q.to("sim"), new


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

    with pytest.raises(ContradictedDeclarationError, match="TorchNative reads seq_lens_cpu"):
        adapter(runner_of(draw(DECODE), parts))


def test_graph_that_is_not_declared_is_refused(parts: Parts) -> None:
    """The error names what is captured, what is declared and the flag that leaves it out."""
    backend = bridged(parts, draw(DECODE), TORCH_NATIVE)

    with pytest.raises(UnreplayedBatchError) as caught:
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


@pytest.mark.parametrize("mode", ["TARGET_VERIFY", "DRAFT_EXTEND_V2", "SPLIT_PREFILL"])
def test_mode_that_is_not_bridged_is_refused(mode: str, parts: Parts) -> None:
    """The error names the mode, and those that are bridged."""
    drawn = draw(DECODE)
    modes = import_module("sglang.srt.model_executor.forward_batch_info").ForwardMode
    batch = batch_of(drawn, forward_mode=modes[mode])

    with pytest.raises(UnbridgedBatchError, match=f"{mode} .* DECODE, EXTEND, MIXED"):
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
    """Nothing is computed for a layer that asks for what the backend is not told."""
    drawn = draw(DECODE)
    backend, batch = bridged(parts, drawn), batch_of(drawn)
    backend.init_forward_metadata(batch)

    with pytest.raises(UnbridgedLayerError) as caught:
        backend.forward(drawn.q, *drawn.new, layer_of(DECODE, **other), batch)

    assert caught.value.reasons == (reason,)


def test_sinks_are_refused(parts: Parts) -> None:
    """What a model hands to attention beside queries, keys and values is not dropped."""
    drawn = draw(DECODE)
    backend, batch = bridged(parts, drawn), batch_of(drawn)

    with pytest.raises(UnbridgedLayerError, match="its softmax has sinks"):
        backend.forward(drawn.q, *drawn.new, layer_of(DECODE), batch, sinks=torch.zeros(4))


def test_layer_without_keys_of_its_own_is_refused(parts: Parts) -> None:
    """A layer that reads another's cache brings no keys, and a backend of ours stores some."""
    drawn = draw(DECODE)
    backend, batch = bridged(parts, drawn), batch_of(drawn)

    with pytest.raises(UnbridgedLayerError, match="another layer's keys and values"):
        backend.forward(drawn.q, None, None, layer_of(DECODE), batch)


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        ({"is_draft_worker": True}, "the runner is a draft model's"),
        ({"sliding_window_size": 4096}, "the model's sliding windows"),
        ({"kv_cache_dtype": torch.float8_e4m3fn}, "here it is fp8_e4m3"),
        ({"model_config": _MLA}, "it takes attention_arch mha; here it is mla"),
    ],
)
def test_server_that_is_not_bridged_is_refused(
    other: dict[str, object], reason: str, parts: Parts
) -> None:
    """What the backend does not take, or the bridge does not carry over, is told at the start."""
    with pytest.raises(UnbridgedBackendError, match=reason):
        bridged(parts, draw(DECODE), runner=other)


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (RuntimeContext(speculative_algorithm="EAGLE"), "--speculative-algorithm EAGLE verifies"),
        (RuntimeContext(enable_two_batch_overlap=True), "--enable-two-batch-overlap is not"),
    ],
)
def test_flags_that_are_not_bridged_are_refused(flags: RuntimeContext, reason: str) -> None:
    """Speculation and two-batch overlap are told at the start, by their flags."""
    with sglang_packages(context=flags):
        native = import_module("sglang.srt.layers.attention.torch_native_backend")
        parts = Parts(
            native=native.TorchNativeAttnBackend,
            arch=SimpleNamespace(name="MHA"),
            pools=lambda drawn: (SimpleNamespace(req_to_token=drawn.req_to_token), None),
            batch=batch_of,
            layer=layer_of,
        )

        with pytest.raises(UnbridgedBackendError, match=reason):
            bridged(parts, draw(DECODE))


@pytest.fixture
def beside(tmp_path: Path) -> Callable[[str], dict[str, object]]:
    """Runs a module beside the real SGLang, with this checkout's plugins installed."""
    for name in ("backend-caps-sglang", "backend-caps-torch-native"):
        info = Path(str(distribution(name).locate_file("")))
        folder = f"{name.replace('-', '_')}-{distribution(name).version}.dist-info"
        (tmp_path / folder).symlink_to(info / folder)
    plugins = [str(ROOT / "plugins" / name) for name in ("sglang", "torch_native")]
    path = os.pathsep.join([str(tmp_path), *plugins])

    def run(module: str) -> dict[str, object]:
        if not PYTHON.exists():
            raise FileNotFoundError(f"no environment at {PYTHON}. Build it: make upstream")
        done = subprocess.run(
            [str(PYTHON), "-m", module],
            capture_output=True,
            text=True,
            check=False,
            cwd=ROOT,
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path},
        )
        assert done.returncode == 0, done.stderr
        document: dict[str, object] = json.loads(done.stdout)
        return document

    return run


@pytest.mark.sglang
def test_bridged_backend_is_sglangs_own_in_sglang(
    beside: Callable[[str], dict[str, float]],
) -> None:
    """With SGLang's own pools, batches and layers, outputs are within 1e-5 too."""
    apart = beside("tests.upstream.bridged")

    assert len(apart) == len(BACKENDS) * len(CASES)
    assert {case: far for case, far in apart.items() if far > CLOSE} == {}


@pytest.mark.sglang
def test_sglang_loads_the_plugin(beside: Callable[[str], dict[str, object]]) -> None:
    """SGLang's scheduler has our decision, its registry our backend, its parser the name."""
    assert beside("tests.upstream.sglang_loaded") == {
        "scheduler_had_sglangs": True,
        "scheduler_has_ours": True,
        "adapter": "torch_native_sglang:torch_padded (backend-caps-torch-native 0.1.0)",
        "flag": "torch_padded",
    }
