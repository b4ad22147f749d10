"""What a third party writes to run `torch_padded` in vLLM 0.32: an attention backend of vLLM's.

It is installed beside the plugin in a server of `vllm_cpu_server`, and imported there alone.

Shapes: B requests and T tokens in a batch, W blocks of a request, N tokens of a block, Hk key and
value heads, D their size, S slots of the cache.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from backend_caps_torch_native.padded import TorchPadded
from torch import Tensor
from vllm.v1.attention.backend import (
    AttentionBackend,
    AttentionCGSupport,
    AttentionImpl,
    AttentionMetadataBuilder,
)
from vllm.v1.kv_cache_interface import KVCacheLayout


@dataclass(frozen=True)
class Forward:
    """One forward's requests, by the names of `backend_caps.protocols`."""

    req_to_token: Tensor
    """[1 + B, W * N]; row 0 is for padding."""
    req_pool_indices: Tensor
    seq_lens: Tensor
    extend_seq_lens: Tensor
    out_cache_loc: Tensor
    tree_mask: None = None


class Builder(AttentionMetadataBuilder):  # type: ignore[misc] # vLLM is not here
    """Spreads a block table over single slots."""

    _cudagraph_support = AttentionCGSupport.ALWAYS

    def __init__(self, *args: Any) -> None:
        """Keep what vLLM's own does; it is abstract there."""
        super().__init__(*args)

    def build(self, common_prefix_len: int, common: Any, fast_build: bool = False) -> Forward:  # noqa: ARG002
        """Make what every layer's forward reads."""
        size = self.kv_cache_spec.block_size
        blocks = common.block_table_tensor[: common.num_reqs].long()
        slots = (blocks[:, :, None] * size + torch.arange(size)).flatten(1)
        return Forward(
            req_to_token=torch.cat([torch.zeros_like(slots[:1]), slots]),
            req_pool_indices=torch.arange(1, common.num_reqs + 1),
            seq_lens=common.seq_lens[: common.num_reqs].long(),
            extend_seq_lens=common.query_start_loc[: common.num_reqs + 1].diff(),
            out_cache_loc=common.slot_mapping[: common.num_actual_tokens].long(),
        )


class Pool:
    """The cache of one layer, a slot a token; keys and values stand beside each other."""

    def __init__(self, cache: Tensor, head_size: int) -> None:
        """Take vLLM's [blocks, Hk, N, 2 * D], whose tokens come before its heads in memory."""
        slots = cache.transpose(1, 2)
        self._slots = slots.view(-1, *slots.shape[2:])
        self._head_size = head_size

    def get_key_buffer(self, _layer_id: int) -> Tensor:
        """[S, Hk, D]."""
        return self._slots[..., : self._head_size]

    def get_value_buffer(self, _layer_id: int) -> Tensor:
        """[S, Hk, D]."""
        return self._slots[..., self._head_size :]

    def set_kv_buffer(self, _layer: object, loc: Tensor, k: Tensor, v: Tensor) -> None:
        """Write k and v, [T, Hk, D] each, to slots [T]."""
        self._slots[loc] = torch.cat([k, v], dim=-1)


class Impl(AttentionImpl):  # type: ignore[misc] # vLLM is not here
    """Runs `torch_padded` for one layer."""

    def __init__(
        self, num_heads: int, head_size: int, scale: float, num_kv_heads: int, *_: Any, **__: Any
    ) -> None:
        self.layer = SimpleNamespace(
            layer_id=0,
            tp_q_head_num=num_heads,
            tp_k_head_num=num_kv_heads,
            qk_head_dim=head_size,
            v_head_dim=head_size,
            scaling=scale,
        )

    def forward(
        self,
        layer: object,  # noqa: ARG002
        query: Tensor,
        key: Tensor,
        value: Tensor,
        kv_cache: Tensor,
        attn_metadata: Forward | None,
        output: Tensor,
        *_: Any,
        **__: Any,
    ) -> Tensor:
        """Attend; without metadata vLLM only looks at memory."""
        if attn_metadata is None:
            return output
        runner = SimpleNamespace(
            req_to_token_pool=attn_metadata, token_to_kv_pool=Pool(kv_cache, self.layer.qk_head_dim)
        )
        padded = TorchPadded(runner)
        padded.init_forward_metadata(attn_metadata)  # type: ignore[arg-type]
        count = len(attn_metadata.out_cache_loc)
        q, k, v = (each[:count] for each in (query, key, value))
        done = padded.forward(q, k, v, self.layer, attn_metadata)  # type: ignore[arg-type]
        output[:count] = done.view_as(output[:count])
        return output


class Padded(AttentionBackend):  # type: ignore[misc] # vLLM is not here
    """`torch_padded`, as vLLM asks for a backend."""

    supported_dtypes = [torch.float16, torch.bfloat16, torch.float32]  # noqa: RUF012 - vLLM's

    @staticmethod
    def get_name() -> str:
        """Return a name of vLLM's enum, which its layers look up."""
        return "CUSTOM"

    @staticmethod
    def get_impl_cls() -> type[Impl]:
        """Return what runs a layer."""
        return Impl

    @staticmethod
    def get_builder_cls() -> type[Builder]:
        """Return what prepares a batch."""
        return Builder

    @classmethod
    def supported_kv_cache_layouts(cls) -> tuple[KVCacheLayout, ...]:
        """Ask for a token's heads beside each other, so that a slot is one row."""
        return (KVCacheLayout.LBNHC,)
