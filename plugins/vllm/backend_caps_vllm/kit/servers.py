"""vLLM's configuration of a server of like layers, on one rank, and the layers themselves."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace

import torch

from backend_caps.kit.layer_variants import CACHE_DTYPE, PLAIN, LayerVariant
from backend_caps.kit.scenes import Pools
from backend_caps.runtime.model.layers import AttentionLayer
from backend_caps_vllm.kit.engine_modules import VLLM

FLOAT8 = "fp8_e4m3"
"""vLLM's name of a cache in float8."""
_USUAL_SIZES = (1, 2, 4, *range(8, 257, 8))
"""Tokens of the graphs that vLLM captures by default."""


def layer_of(pools: Pools) -> AttentionLayer:
    """Return the first layer of pools, whose sizes are those of all."""
    assert pools.layer is not None, "the kit says which layer its pools are of"
    return pools.layer


def server_config(
    vllm: VLLM, pools: Pools, *, num_tokens_each: int, max_num_tokens: int | None = None
) -> SimpleNamespace:
    """Make the parts of vLLM's configuration that builders size their buffers by.

    Args:
        vllm: its modules.
        pools: the kit's, which say how large everything is.
        num_tokens_each: tokens of each request in a verify; 1: the server does not speculate.
        max_num_tokens: tokens of the largest graph; None: as many as by default.
    """
    layer = layer_of(pools)
    num_rows, longest = pools.req_to_token.shape
    sizes = [own for own in _USUAL_SIZES if max_num_tokens is None or own < max_num_tokens]
    return SimpleNamespace(
        model_config=_model_config(layer, pools.keys.dtype, longest),
        parallel_config=one_rank(),
        cache_config=SimpleNamespace(
            block_size=pools.page_size,
            cache_dtype=cache_dtype_of(pools),
            num_gpu_blocks=len(pools.keys) // pools.page_size,
        ),
        scheduler_config=SimpleNamespace(
            max_num_seqs=num_rows,  # one of padding has no row of its own, and counts
            max_num_batched_tokens=8192,
        ),
        compilation_config=SimpleNamespace(
            cudagraph_mode=vllm.config.CUDAGraphMode.FULL_AND_PIECEWISE,
            cudagraph_capture_sizes=sizes if max_num_tokens is None else [*sizes, max_num_tokens],
            max_cudagraph_capture_size=max_num_tokens or sizes[-1],
            static_forward_context={},
        ),
        speculative_config=speculative_config(num_tokens_each),
        attention_config=vllm.config.AttentionConfig(),
        use_v2_model_runner=True,
    )


def one_rank() -> SimpleNamespace:
    """Make the configuration of ranks, of which there is one."""
    return SimpleNamespace(
        decode_context_parallel_size=1,
        prefill_context_parallel_size=1,
        cp_kv_cache_interleave_size=1,
        tensor_parallel_size=1,
    )


def _model_config(layer: AttentionLayer, dtype: torch.dtype, longest: int) -> SimpleNamespace:
    """Make what builders ask of a model."""
    return SimpleNamespace(
        dtype=dtype,
        max_model_len=longest,
        rswa_window=None,
        hf_config=SimpleNamespace(),
        hf_text_config=SimpleNamespace(),
        get_num_attention_heads=lambda _parallel: layer.tp_q_head_num,
        get_num_kv_heads=lambda _parallel: layer.tp_k_head_num,
        get_head_size=lambda: layer.qk_head_dim,
        get_sliding_window=lambda: None,
    )


def speculative_config(num_tokens_each: int) -> SimpleNamespace | None:
    """Make the configuration of a draft that proposes a chain; None: there is no draft."""
    if num_tokens_each <= 1:
        return None
    return SimpleNamespace(
        num_speculative_tokens=num_tokens_each - 1,
        parallel_drafting=False,
        use_eagle_block_drop=lambda: False,
    )


def cache_dtype_of(pools: Pools) -> str:
    """Return vLLM's name of the dtype of a KV cache; that of the model is "auto"."""
    return FLOAT8 if pools.keys.dtype is CACHE_DTYPE else "auto"


def name_of(layer: AttentionLayer) -> str:
    """Return vLLM's name of a layer."""
    return f"model.layers.{layer.layer_id}.self_attn.attn"


def attention_layer(
    own: AttentionLayer, device: torch.device, variant: LayerVariant = PLAIN
) -> SimpleNamespace:
    """Make vLLM's layer, as far as implementations read it; a cache without scales has ones."""
    layer = SimpleNamespace(layer_name=name_of(own))
    of_keys, of_values = variant.scales_of(own.layer_id) or (1.0, 1.0)
    scales = {"_q_scale": 1.0, "_k_scale": of_keys, "_v_scale": of_values, "_prob_scale": 1.0}
    for name, scale in scales.items():
        setattr(layer, name, torch.tensor(scale, dtype=torch.float32, device=device))
        setattr(layer, f"{name}_float", scale)
    return layer


def cache_spec(vllm: VLLM, pools: Pools, window: int | None) -> SimpleNamespace:
    """Make vLLM's description of a layer's KV cache."""
    layer = layer_of(pools)
    make: Callable[..., SimpleNamespace] = vllm.specs.FullAttentionSpec
    if window is not None:
        make = partial(vllm.specs.SlidingWindowSpec, sliding_window=window)
    return make(
        block_size=pools.page_size,
        num_kv_heads=layer.tp_k_head_num,
        head_size=layer.qk_head_dim,
        head_size_v=layer.v_head_dim,
        dtype=pools.keys.dtype,
    )


def num_blocks_of(vllm: VLLM, spec: SimpleNamespace, longest: int) -> int:
    """Return the blocks in a row of the block table, as wide as vLLM's runner makes it."""
    width: int = vllm.tables.get_block_table_width(
        -(-longest // spec.block_size),
        spec.block_size,
        token_alignment=spec.block_table_token_alignment,
    )
    return width
