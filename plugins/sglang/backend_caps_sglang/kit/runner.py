"""A stand-in for SGLang's model runner, over the kit's own memory.

Shapes: P rows in the request pool, L the longest context.
"""

from __future__ import annotations

from types import SimpleNamespace

import torch

from backend_caps.kit.scenes import Pools
from backend_caps.runtime.model.layers import AttentionLayer
from backend_caps_sglang.kit.engine_modules import SGLang
from backend_caps_sglang.kit.kv_pools import pool_of
from backend_caps_sglang.kit.variants import ServedVariant


def runner_of(
    sglang: SGLang, pools: Pools, *, variant: ServedVariant, num_verified: int
) -> SimpleNamespace:
    """Make a stand-in for the runner of a model of like layers, on one rank, without LoRA.

    Args:
        sglang: its modules.
        pools: the kit's, which say how large everything is.
        variant: what the layers have beside plain attention.
        num_verified: tokens of each request in a verify; 0: it does not speculate.
    """
    layer = pools.layer
    assert layer is not None, "the kit says which layer its pools are of"
    table, pool = pools.req_to_token, pool_of(sglang, pools, variant)
    rows = SimpleNamespace(req_to_token=table, size=len(table) - 1)  # row 0 is the padding's
    device = str(pools.req_to_token.device)
    translator = sglang.translating.KVIndexTranslator(
        req_to_token=pools.req_to_token,
        token_to_kv_pool_allocator=None,
        token_to_kv_pool=pool,
        page_size=pools.page_size,
        device=device,
    )
    return SimpleNamespace(
        device=device,
        gpu_id=0,
        page_size=pools.page_size,
        req_to_token_pool=rows,
        token_to_kv_pool=pool,
        token_to_kv_pool_allocator=None,
        kv_index_translator=translator,
        kv_cache_dtype=pools.keys.dtype,
        sliding_window_size=variant.num_before,
        is_draft_worker=False,
        server_args=sglang.context.get_context().server_args,
        model_config=_model_config(
            sglang, layer, pools.req_to_token.shape[1], is_latent=variant.is_latent
        ),
        decode_num_tokens_per_req=lambda: max(1, num_verified),
    )


def _model_config(
    sglang: SGLang, layer: AttentionLayer, longest: int, *, is_latent: bool
) -> SimpleNamespace:
    """Make the part of a model's configuration that backends size their buffers by."""
    from transformers import LlamaConfig  # noqa: PLC0415 - a dependency of SGLang's alone

    kinds, size, value_size = sglang.models.AttentionArch, layer.qk_head_dim, layer.v_head_dim
    return SimpleNamespace(
        hf_config=LlamaConfig(),
        linear_attn_registry_result=None,
        attention_arch=kinds.MLA if is_latent else kinds.MHA,
        context_len=longest,
        head_dim=size,
        v_head_dim=value_size,
        swa_v_head_dim=value_size,
        qk_nope_head_dim=_PROJECTED if is_latent else size,
        qk_rope_head_dim=size - value_size if is_latent else 0,
        kv_lora_rank=value_size if is_latent else 0,
        is_encoder_decoder=False,
        get_max_num_attention_heads=lambda: layer.tp_q_head_num,
        get_num_kv_heads=lambda _tp_size, _dcp_size=1: layer.tp_k_head_num,
    )


_PROJECTED = 128
"""Features of a key that a model with latents projects, beside the rotated ones."""


def attention_of(
    sglang: SGLang, layer: AttentionLayer, variant: ServedVariant, device: str
) -> torch.nn.Module:
    """Make SGLang's own layer from what the kit knows of one."""
    kinds, window = sglang.layers.AttentionType, variant.window_of(layer.layer_id)
    made: torch.nn.Module = sglang.layers.RadixAttention(
        num_heads=layer.tp_q_head_num,
        head_dim=layer.qk_head_dim,
        scaling=layer.scaling,
        num_kv_heads=layer.tp_k_head_num,
        layer_id=layer.layer_id,
        logit_cap=variant.logit_cap or 0.0,
        v_head_dim=layer.v_head_dim,
        sliding_window_size=-1 if window is None else window,
        attn_type=kinds.ENCODER_ONLY if variant.is_encoder else kinds.DECODER,
    )
    scales = variant.scales_of(layer.layer_id)
    if scales is not None:
        for name, scale in zip("kv", scales, strict=True):
            setattr(made, f"{name}_scale", torch.tensor(scale, device=device))
            setattr(made, f"{name}_scale_float", scale)
    return made
