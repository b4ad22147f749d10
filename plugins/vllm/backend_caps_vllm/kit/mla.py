"""Backends of vLLM for latent attention, over a model whose latents are what the kit has.

Such a layer caches one latent for each token, from which projections make the keys and values of
all heads; its rotated part, which all heads share, is the end of the keys. The model here has
projections that select: the latent of a token is its values and its keys, one head behind the
other. So queries, outputs and the cache are those of a scene of the kit, and the layer is vLLM's.

Shapes: T tokens, A layers in the KV cache, S slots in each, N of them in a block, Hq query heads,
Hk key and value heads, D and Dv their sizes, R and P the sizes of a latent and of its rotated part.
"""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from functools import partial
from types import SimpleNamespace

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from backend_caps.kit import KitError
from backend_caps.kit.scenarios import Scenario
from backend_caps.kit.scenes import Pools
from backend_caps.runtime.model.layers import AttentionLayer
from backend_caps_vllm.kit.adapter import Adapted, ServedLayer, Tokens
from backend_caps_vllm.kit.prefill import prefill_backend
from backend_caps_vllm.kit.servers import attention_layer, layer_of

LATENT, ROTATED = 512, 64
"""R and P of DeepSeek's models, for which kernels have cases of their own."""
WHOLE = LATENT + ROTATED
"""The numbers of a token that a layer caches."""
_MODULE = "model_executor.layers.attention.mla_attention"
_PREFILL = "v1.attention.backends.mla.prefill.base"
_LATENTS: MutableMapping[Tensor, Tensor] = WeakTensorKeyDictionary()
"""By the keys of pools, the latents that they are a part of."""


def takes(scenario: Scenario) -> bool:
    """Return whether latents have room for all heads, and one layer runs.

    vLLM scales the prompts of all layers as the first one says; the kit's layers differ in it.
    """
    width = scenario.num_kv_heads * (scenario.head_size + scenario.value_size)
    return width <= WHOLE and len(scenario.layer_ids) == 1


def latents_of(pools: Pools) -> Tensor:
    """Return the latents of pools, whose values are the first of their entries, and keys the last.

    Pools whose keys and values are apart are changed: both tensors are replaced by views, which
    have the same contents.

    returns  [A, S, R + P], device

    Raises:
        KitError: keys and values of all heads are larger than a latent.
    """
    latents = _LATENTS.get(pools.key_buffers)
    if latents is None:
        *outer, num_heads, key_size = pools.key_buffers.shape
        value_size = pools.value_buffers.shape[-1]
        if num_heads * (key_size + value_size) > WHOLE:
            raise KitError.uncheckable("vllm", "its latents have no room for so many heads")
        latents = pools.key_buffers.new_zeros(*outer, WHOLE)
        values = latents[..., : num_heads * value_size].view(*outer, num_heads, value_size)
        keys = latents[..., WHOLE - num_heads * key_size :].view(*outer, num_heads, key_size)
        keys.copy_(pools.key_buffers)
        values.copy_(pools.value_buffers)
        # `object.__setattr__` sets fields of frozen dataclasses.
        object.__setattr__(pools, "key_buffers", keys)
        object.__setattr__(pools, "value_buffers", values)
        _LATENTS[keys] = latents
    return latents


class Projections:
    """The weights of a layer whose keys and values are parts of its latents.

    Args:
        layer: the kit's.
        like: a tensor of the weights' dtype and device.
    """

    def __init__(self, layer: AttentionLayer, like: Tensor) -> None:
        heads, groups = layer.tp_q_head_num, layer.tp_k_head_num
        size, value_size = layer.qk_head_dim, layer.v_head_dim
        entries = torch.eye(WHOLE)
        key_part = entries[:, WHOLE - groups * size :].view(WHOLE, groups, size)
        value_part = entries[:, : groups * value_size].view(WHOLE, groups, value_size)
        # [R + P, Hq, D] and [R, Hq, Dv]: what makes each query head's keys and values.
        self._keys = key_part.repeat_interleave(heads // groups, dim=1).to(like)
        values = value_part.repeat_interleave(heads // groups, dim=1).to(like)
        self.up_keys = self._keys[:LATENT]
        """[R, Hq, D], device."""
        self.up_values = values[:LATENT]
        """[R, Hq, Dv], device."""
        self.weight = torch.cat([self.up_keys, self.up_values], dim=-1).flatten(1)
        """[R, Hq * (D + Dv)], device."""

    def rotated_query(self, query: Tensor) -> Tensor:
        """Return the part of queries, [T, Hq, D], that meets rotated entries: [T, Hq, P]."""
        return torch.einsum("thd,phd->thp", query, self._keys[LATENT:])

    def __call__(self, latent: Tensor) -> tuple[Tensor]:
        """Make keys and values of latents, [T, R], as vLLM's `kv_b_proj`: [T, Hq * (D + Dv)]."""
        return (latent @ self.weight,)


class AdaptedLatent(Adapted):
    """A backend of vLLM for latent attention, on pools of the kit."""

    def _make_caches(self) -> Tensor:
        """Return the latents in blocks: [A, S / N, N, R + P]."""
        latents = latents_of(self._pools)
        return latents.view(len(latents), -1, self._pools.page_size, WHOLE)

    def _make_spec(self) -> SimpleNamespace:
        made: SimpleNamespace = self._vllm.specs.MLAAttentionSpec(
            block_size=self._pools.page_size,
            num_kv_heads=1,
            head_size=WHOLE,
            dtype=self._pools.keys.dtype,
        )
        return made

    def _make_config(
        self, *, num_tokens_each: int, max_num_tokens: int | None = None
    ) -> SimpleNamespace:
        config = super()._make_config(
            num_tokens_each=num_tokens_each, max_num_tokens=max_num_tokens
        )
        config.model_config.get_head_size = lambda: WHOLE
        return config

    def _make_layer(self, own: AttentionLayer, config: SimpleNamespace) -> SimpleNamespace:
        """Make vLLM's layer with the attributes and methods that its forward calls."""
        like = self._pools.keys
        self._projections = Projections(own, like)
        layer, module = attention_layer(own, like.device), self._vllm.module(_MODULE)
        sizes = self._sizes()
        for name, value in {
            **sizes,
            "num_heads": own.tp_q_head_num,
            "kv_cache_dtype": "auto",
            "use_pcp": False,
            "q_pad_num_heads": None,
            "is_aiter_triton_fp4_bmm_enabled": False,
            "is_aiter_triton_fp8_bmm_enabled": False,
            "is_amx_bmm_enabled": False,
            "W_UK_T": self._projections.up_keys.permute(1, 2, 0),
            "W_UV": self._projections.up_values.transpose(0, 1),
            "prefill_backend": prefill_backend(self._vllm.module(_PREFILL), own, sizes, config),
        }.items():
            setattr(layer, name, value)
        layer._v_up_proj = partial(module.MLAAttention._v_up_proj, layer)  # noqa: SLF001 - vLLM's name
        return layer

    def _sizes(self) -> dict[str, int | None]:
        own = layer_of(self._pools)
        return {
            "q_lora_rank": None,
            "kv_lora_rank": LATENT,
            "qk_nope_head_dim": own.qk_head_dim,
            "qk_rope_head_dim": ROTATED,
            "v_head_dim": own.v_head_dim,
        }

    def _make_implementation(self, own: AttentionLayer, layer: SimpleNamespace) -> SimpleNamespace:
        sizes = self._sizes()
        made: SimpleNamespace = self._backend.get_impl_cls()(
            num_heads=own.tp_q_head_num,
            head_size=WHOLE,
            scale=own.scaling,
            num_kv_heads=1,
            alibi_slopes=None,
            sliding_window=None,
            kv_cache_dtype="auto",
            logits_soft_cap=None,
            attn_type=self._vllm.attention.AttentionType.DECODER,
            kv_sharing_target_layer_name=None,
            qk_head_dim=own.qk_head_dim + ROTATED,
            kv_b_proj=self._projections,
            **sizes,
        )
        layer.impl = made
        return made

    def _attend(self, own: ServedLayer, tokens: Tokens, slots: Tensor | None) -> Tensor:
        """Attend by the forward of vLLM's own layer: [T, Hq * Dv].

        slots  [T] int64: where the tokens are stored; None: nowhere
        """
        query = torch.cat([tokens.query, self._projections.rotated_query(tokens.query)], dim=-1)
        key, value = tokens.key.flatten(1), tokens.value.flatten(1)
        between = key.new_zeros(len(key), WHOLE - key.shape[1] - value.shape[1])
        latents = torch.cat([value, between, key], dim=-1)
        latent, rotated = latents[:, :LATENT], latents[:, None, LATENT:]
        if slots is not None:
            scale: Tensor = vars(own.layer)["_k_scale"]
            own.implementation.do_kv_cache_update(latent, rotated, own.cache, slots, "auto", scale)
        output = query.new_empty(len(query), query.shape[1] * tokens.value.shape[-1])
        forward: Callable[..., object] = self._vllm.module(_MODULE).MLAAttention.forward_impl
        forward(own.layer, query, latent, rotated, own.cache, self._metadata, output=output)
        return output
