"""FlashInfer as it is used here: of its classes and their methods what is called, and no more.

A test compares these signatures with those in FlashInfer's wheel.

Shapes: B requests, T tokens and C entries of all contexts in a batch, S slots in the KV cache, Hq
query heads, Hk key and value heads, D and Dv their sizes.
"""

from __future__ import annotations

from importlib import import_module
from typing import Protocol, cast

import torch
from torch import Tensor

from backend_caps_flashinfer.errors import MissingFlashInferError

Cache = tuple[Tensor, Tensor]
"""Keys [S, 1, Hk, D] and values [S, 1, Hk, Dv]: pages of one token."""


class DecodeWrapper(Protocol):
    """FlashInfer's attention of one token a request."""

    def plan(
        self,
        indptr: Tensor,
        indices: Tensor,
        last_page_len: Tensor,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim: int,
        page_size: int,
        *,
        q_data_type: torch.dtype,
        kv_data_type: torch.dtype,
        sm_scale: float,
    ) -> None:
        """Cut the contexts of a batch into chunks, by `indptr` [B + 1] on the host."""

    def run(self, q: Tensor, paged_kv_cache: Cache) -> Tensor:
        """Attend from q [T, Hq, D]: [T, Hq, D]."""


class PrefillWrapper(Protocol):
    """FlashInfer's attention of any number of tokens a request."""

    def plan(  # noqa: PLR0913 - FlashInfer's own
        self,
        qo_indptr: Tensor,
        paged_kv_indptr: Tensor,
        paged_kv_indices: Tensor,
        paged_kv_last_page_len: Tensor,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim_qk: int,
        page_size: int,
        *,
        head_dim_vo: int,
        custom_mask: Tensor | None,
        causal: bool,
        sm_scale: float,
        q_data_type: torch.dtype,
        kv_data_type: torch.dtype,
        uniform_q_len: int | None,
    ) -> None:
        """Cut tokens and contexts into tiles, by both `indptr` [B + 1] on the host."""

    def run(self, q: Tensor, paged_kv_cache: Cache) -> Tensor:
        """Attend from q [T, Hq, D]: [T, Hq, Dv]."""


class MakeDecodeWrapper(Protocol):
    """The class of `DecodeWrapper`."""

    def __call__(
        self,
        float_workspace_buffer: Tensor,
        kv_layout: str,
        *,
        use_cuda_graph: bool,
        use_tensor_cores: bool,
        paged_kv_indptr_buffer: Tensor | None,
        paged_kv_indices_buffer: Tensor | None,
        paged_kv_last_page_len_buffer: Tensor | None,
        backend: str,
    ) -> DecodeWrapper:
        """Make a wrapper; under graphs, one that copies what it plans to the given buffers."""


class MakePrefillWrapper(Protocol):
    """The class of `PrefillWrapper`."""

    def __call__(
        self,
        float_workspace_buffer: Tensor,
        kv_layout: str,
        *,
        use_cuda_graph: bool,
        qo_indptr_buf: Tensor | None,
        paged_kv_indptr_buf: Tensor | None,
        paged_kv_indices_buf: Tensor | None,
        paged_kv_last_page_len_buf: Tensor | None,
        custom_mask_buf: Tensor | None,
        mask_indptr_buf: Tensor | None,
        backend: str,
    ) -> PrefillWrapper:
        """Make a wrapper; under graphs, one that copies what it plans to the given buffers."""


class FlashInferPackage(Protocol):
    """The module `flashinfer`."""

    @property
    def BatchDecodeWithPagedKVCacheWrapper(self) -> MakeDecodeWrapper:  # noqa: N802 - its name
        """The class of decode."""

    @property
    def BatchPrefillWithPagedKVCacheWrapper(self) -> MakePrefillWrapper:  # noqa: N802 - its name
        """The class of everything else."""


def load_flashinfer() -> FlashInferPackage:
    """Import FlashInfer, which a backend alone needs, and no declaration.

    Raises:
        MissingFlashInferError: it is not installed, or its import fails.
    """
    try:
        return cast("FlashInferPackage", import_module("flashinfer"))
    except Exception as error:  # without a driver its import raises what it likes
        raise MissingFlashInferError(problem=f"{type(error).__name__}: {error}") from error
