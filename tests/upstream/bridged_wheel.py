"""Bridged backends on SGLang's classes out of the wheel of 0.5.23, with pools and batches of ours.

Pools, batches and layers are this file's, with what SGLang's classes are asked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from types import SimpleNamespace

from torch import Tensor
from torch_native_caps import TORCH_NATIVE, TORCH_PADDED

from backend_caps import Declaration
from tests.upstream.bridged import HEAD_DIM, Case, Drawn, Parts, lengths_of, runner_of
from tests.upstream.sglang_packages import sglang_packages
from tests.upstream.sglang_wheel import RuntimeContext

BACKENDS = {"torch_native": TORCH_NATIVE, "torch_padded": TORCH_PADDED}


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


@contextmanager
def wheel_parts(context: RuntimeContext | None = None) -> Iterator[Parts]:
    """Take SGLang's class out of the wheel, and this file's pools, batches and layers.

    Args:
        context: the flags; those of a plain server unless given.
    """
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


def on_device(batch: SimpleNamespace) -> SimpleNamespace:
    """Put a batch on the simulated device, without its mirror."""
    for name in ("req_pool_indices", "seq_lens", "out_cache_loc"):
        vars(batch)[name] = vars(batch)[name].to("sim")
    if batch.spec_info is not None:
        batch.spec_info.custom_mask = batch.spec_info.custom_mask.to("sim")
    batch.seq_lens_cpu = batch.seq_lens_sum = None
    return batch


def bridged_on_device(parts: Parts, drawn: Drawn) -> SimpleNamespace:
    """Build a backend over pools on the simulated device."""
    rows, pool = parts.pools(drawn)
    assert isinstance(rows, SimpleNamespace)
    assert isinstance(pool, Pool)
    there: dict[str, object] = {
        "device": "sim",
        "req_to_token_pool": SimpleNamespace(req_to_token=rows.req_to_token.to("sim")),
        "token_to_kv_pool": Pool(pool.keys.to("sim"), pool.values.to("sim")),
    }
    return bridged(parts, drawn, runner=there)


def bridged(
    parts: Parts,
    drawn: Drawn,
    declaration: Declaration = TORCH_PADDED,
    runner: Mapping[str, object] | None = None,
) -> SimpleNamespace:
    """Build a backend by its adapter, on a runner that may say other things."""
    made = runner_of(drawn, parts)
    vars(made).update(runner or {})
    name = next((name for name, own in BACKENDS.items() if own is declaration), "another")
    backend: SimpleNamespace = import_module("backend_caps_sglang.bridge").bridge(
        name, declaration
    )(made)
    return backend
