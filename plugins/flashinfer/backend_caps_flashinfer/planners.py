"""FlashInfer's wrappers, each planned anew for every batch.

Shapes: B requests and T tokens in a batch, L the longest context, C entries of all contexts, Hq
query heads, D and Dv their sizes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Protocol, Self, cast

import torch
from torch import Tensor

from backend_caps_flashinfer.layout import Layout
from backend_caps_flashinfer.package import Cache, FlashInferPackage

_KV_LAYOUT = "NHD"
"""Tokens before heads, as the KV cache has them."""
_KERNELS = "fa2"
"""One family of kernels for all that is asked: custom masks have no other, and what `auto` takes
depends on the device and on what else is installed."""
_PAGE_SIZE = 1
_GROUP_OF_TENSOR_CORES = 4
"""Query heads a key head from which on decode runs on tensor cores. FlashInfer says that they win
for large groups, and names no number; 4 is SGLang 0.5.23's for 16 bits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Heads:
    """What FlashInfer compiles and plans for. All layers of most models are alike in it."""

    num_qo_heads: int
    num_kv_heads: int
    qk_head_dim: int
    v_head_dim: int
    scaling: float
    dtype: torch.dtype
    """Of queries, keys and values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StaticBuffers:
    """Where captured kernels read what was planned; the graphs of one stream share it."""

    qo_indptr: Tensor
    """[B + 1] int32, device."""
    kv_indptr: Tensor
    """[B + 1] int32, device."""
    last_page_len: Tensor
    """[B] int32, device."""
    kv_indices: Tensor
    """[B * L] int32, device."""
    mask: Tensor
    """[T * L / 8 + B] uint8, device: masks in bits, each request's from a byte on."""
    mask_indptr: Tensor
    """[B + 1] int32, device."""

    @classmethod
    def for_batches(
        cls, max_bs: int, max_num_tokens: int, max_context_len: int, device: torch.device
    ) -> Self:
        """Allocate for batches of up to this size, all contexts as long as any may be."""

        def zeros(size: int, dtype: torch.dtype = torch.int32) -> Tensor:
            return torch.zeros(size, dtype=dtype, device=device)

        return cls(
            qo_indptr=zeros(max_bs + 1),
            kv_indptr=zeros(max_bs + 1),
            last_page_len=zeros(max_bs),
            kv_indices=zeros(max_bs * max_context_len),
            mask=zeros(-(-max_num_tokens * max_context_len // 8) + max_bs, torch.uint8),
            mask_indptr=zeros(max_bs + 1),
        )


class Planner(ABC):
    """One wrapper, which keeps what it planned last until it plans again."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._is_copied: _Event | None = None

    def plan(self, layout: Layout, heads: Heads) -> None:
        """Plan a batch.

        Stream: copies to the device go to the current one.
        Sync: until the device has what was planned last, by the same wrapper; and with a custom
        mask, whose size in bits is read back. Keeps: the layout's tensors.
        Capture: no.
        """
        if self._is_copied is not None:
            # The wrapper packs its plan into one pinned buffer, and copies from it without waiting:
            # packed anew before that, the last batch's kernels would follow this batch's plan.
            self._is_copied.synchronize()
        self._plan(layout, heads)
        module = cast("_StreamModule", torch.get_device_module(self._device))
        self._is_copied = module.Event()
        self._is_copied.record(module.current_stream(self._device))

    @abstractmethod
    def run(self, q: Tensor, cache: Cache) -> Tensor:
        """Attend from q [T, Hq, D] by what was planned: [T, Hq, Dv]."""

    @abstractmethod
    def _plan(self, layout: Layout, heads: Heads) -> None: ...


class DecodePlanner(Planner):
    """Attention of one token a request."""

    def __init__(
        self,
        package: FlashInferPackage,
        workspace: Tensor,
        heads: Heads,
        buffers: StaticBuffers | None,
        num_requests: int,
    ) -> None:
        super().__init__(workspace.device)
        group = heads.num_qo_heads // heads.num_kv_heads
        is_static = buffers is not None
        self._wrapper = package.BatchDecodeWithPagedKVCacheWrapper(
            workspace,
            _KV_LAYOUT,
            use_cuda_graph=is_static,
            use_tensor_cores=group >= _GROUP_OF_TENSOR_CORES,
            paged_kv_indptr_buffer=buffers.kv_indptr[: num_requests + 1] if buffers else None,
            paged_kv_indices_buffer=buffers.kv_indices if buffers else None,
            paged_kv_last_page_len_buffer=buffers.last_page_len[:num_requests] if buffers else None,
            backend=_KERNELS,
        )

    def run(self, q: Tensor, cache: Cache) -> Tensor:
        """Attend from q [T, Hq, D] by what was planned: [T, Hq, Dv]."""
        return self._wrapper.run(q, cache)

    def _plan(self, layout: Layout, heads: Heads) -> None:
        self._wrapper.plan(
            layout.kv_indptr_cpu,
            layout.kv_indices,
            layout.last_page_len_cpu,
            heads.num_qo_heads,
            heads.num_kv_heads,
            heads.qk_head_dim,
            _PAGE_SIZE,
            q_data_type=heads.dtype,
            kv_data_type=heads.dtype,
            sm_scale=heads.scaling,
        )


class PrefillPlanner(Planner):
    """Attention of any number of tokens a request, causal or as a custom mask says."""

    def __init__(
        self,
        package: FlashInferPackage,
        workspace: Tensor,
        layout: Layout,
        buffers: StaticBuffers | None,
        num_requests: int,
    ) -> None:
        super().__init__(workspace.device)
        # A wrapper that has a buffer for masks reads a mask from it.
        masks = buffers if layout.custom_mask is not None else None
        self._wrapper = package.BatchPrefillWithPagedKVCacheWrapper(
            workspace,
            _KV_LAYOUT,
            use_cuda_graph=buffers is not None,
            qo_indptr_buf=buffers.qo_indptr[: num_requests + 1] if buffers else None,
            paged_kv_indptr_buf=buffers.kv_indptr[: num_requests + 1] if buffers else None,
            paged_kv_indices_buf=buffers.kv_indices if buffers else None,
            paged_kv_last_page_len_buf=buffers.last_page_len[:num_requests] if buffers else None,
            custom_mask_buf=masks.mask if masks else None,
            mask_indptr_buf=masks.mask_indptr[: num_requests + 1] if masks else None,
            backend=_KERNELS,
        )

    def run(self, q: Tensor, cache: Cache) -> Tensor:
        """Attend from q [T, Hq, D] by what was planned: [T, Hq, Dv]."""
        return self._wrapper.run(q, cache)

    def _plan(self, layout: Layout, heads: Heads) -> None:
        self._wrapper.plan(
            layout.qo_indptr_cpu,
            layout.kv_indptr_cpu,
            layout.kv_indices,
            layout.last_page_len_cpu,
            heads.num_qo_heads,
            heads.num_kv_heads,
            heads.qk_head_dim,
            _PAGE_SIZE,
            head_dim_vo=heads.v_head_dim,
            custom_mask=layout.custom_mask,
            causal=layout.custom_mask is None,
            sm_scale=heads.scaling,
            q_data_type=heads.dtype,
            kv_data_type=heads.dtype,
            uniform_q_len=layout.tokens_each,
        )


class _Event(Protocol):
    def record(self, stream: object, /) -> None: ...

    def synchronize(self) -> None: ...


class _StreamModule(Protocol):
    """The part of `torch.get_device_module(device)` that a planner uses."""

    def Event(self) -> _Event: ...  # noqa: N802 - torch's name

    def current_stream(self, device: torch.device, /) -> object: ...
