"""FlashInfer's two wrappers in plain PyTorch, under the names that its package has.

They behave as FlashInfer does in what an adapter can get wrong. A plan is packed into one pinned
buffer, from which it is copied without waiting. Kernels go as far as was planned, and read every
place from the wrapper's buffers: a replay follows the last plan. What they make of a token that
sees nothing is no number.

Shapes: B requests, T tokens and C entries of all contexts in a batch, S slots in the KV cache, Hq
query heads, Hk key and value heads, D and Dv their sizes.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

_MAX_REQUESTS = 128
_GROUPS_OF_DECODE = frozenset({1, 2, 3, 4, 6, 8, 16})
"""Query heads a key head for which FlashInfer's decode kernel is compiled."""
_MAX_PRODUCTS = 1 << 24
"""Products of weights and values that are held at a time: 64 MiB."""
Cache = tuple[Tensor, Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Places:
    """Where a kernel finds a batch; all on the device."""

    qo_indptr: Tensor
    kv_indptr: Tensor
    kv_indices: Tensor
    mask: Tensor | None = None
    mask_indptr: Tensor | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Constants:
    """What a plan bakes into the calls of kernels."""

    num_rows: int
    dtype: torch.dtype
    sm_scale: float
    causal: bool


class _Wrapper:
    """What both wrappers do alike."""

    _places: _Places
    _constants: _Constants

    def __init__(self, workspace: Tensor, kv_layout: str, backend: str, num_fixed: int) -> None:
        assert kv_layout == "NHD", kv_layout
        assert backend == "fa2", backend
        self._device, self._num_fixed = workspace.device, num_fixed
        self._is_static = num_fixed > 0
        self._pinned = torch.zeros(_MAX_REQUESTS, dtype=torch.int32)
        if self._device.type != "cpu":
            self._pinned = self._pinned.pin_memory()
        self._schedule = torch.zeros(_MAX_REQUESTS, dtype=torch.int32, device=self._device)

    def _upload(self, kv_indptr: Tensor, page_size: int) -> None:
        """Plan how far kernels go in each context."""
        lengths = kv_indptr.diff()
        assert kv_indptr.device.type == "cpu", "a plan reads lengths on the host"
        assert kv_indptr.dtype == torch.int32, kv_indptr.dtype
        assert page_size == 1, page_size
        if not len(lengths):
            raise ZeroDivisionError("FlashInfer divides by the number of requests")
        if self._is_static and len(lengths) != self._num_fixed:
            raise ValueError(f"planned {len(lengths)} requests, of {self._num_fixed}")
        self._pinned[: len(lengths)] = lengths
        self._schedule.copy_(self._pinned, non_blocking=True)

    def _to_device(self, numbers: Tensor, buffer: Tensor | None) -> Tensor:
        """Copy to the wrapper's own buffer, where it has one."""
        is_beside = self._device.type == "cpu" or numbers.device.type != "cpu"
        assert is_beside or numbers.is_pinned(), "a copy from pageable memory is staged by the host"
        if buffer is None:
            return numbers.to(self._device, non_blocking=True)
        if len(numbers) > len(buffer):
            raise ValueError(f"{len(numbers)} entries for a buffer of {len(buffer)}")
        buffer[: len(numbers)].copy_(numbers, non_blocking=True)
        return buffer

    def _attend(self, q: Tensor, cache: Cache) -> Tensor:
        keys, values = (pages.squeeze(1) for pages in cache)
        constants = self._constants
        if (q.dtype, keys.dtype) != (constants.dtype, constants.dtype):
            raise ValueError(f"planned for {constants.dtype}, got {q.dtype} and {keys.dtype}")
        if len(q) != constants.num_rows:
            raise ValueError(f"planned for {constants.num_rows} rows, got {len(q)}")
        visited, visible = _seen(len(q), self._places, self._schedule, causal=constants.causal)
        slots = torch.where(visited, self._places.kv_indices, 0).long()
        group = q.shape[1] // keys.shape[1]
        some_keys, some_values = (
            torch.where(visited[:, None, None], heads[slots], 0).repeat_interleave(group, dim=1)
            for heads in (keys, values)
        )
        scores = torch.einsum("nhd,chd->hnc", q.float(), some_keys.float()) * constants.sm_scale
        weights = scores.masked_fill(~visible, -torch.inf).softmax(-1)
        # Kernels read no other request's values; here they are left out of the sum, some rows at a
        # time: the products of all rows of a long prompt would take 19 GB.
        some_values = some_values.float()
        num_rows = max(1, _MAX_PRODUCTS // max(1, some_values.numel()))
        output = torch.cat(
            [
                (row_weights[..., None] * some_values)
                .masked_fill_(~row_visible[..., None, None], 0)
                .sum(1)
                for row_weights, row_visible in zip(
                    torch.split(weights.permute(1, 2, 0), num_rows),
                    torch.split(visible, num_rows),
                    strict=True,
                )
            ]
        ).to(q.dtype)
        return output.masked_fill(~visible.any(1)[:, None, None], torch.nan)


class BatchDecodeWithPagedKVCacheWrapper(_Wrapper):
    """Attention of one token a request."""

    def __init__(
        self,
        float_workspace_buffer: Tensor,
        kv_layout: str = "NHD",
        use_cuda_graph: bool = False,
        use_tensor_cores: bool = False,
        paged_kv_indptr_buffer: Tensor | None = None,
        paged_kv_indices_buffer: Tensor | None = None,
        paged_kv_last_page_len_buffer: Tensor | None = None,
        backend: str = "auto",
    ) -> None:
        num_fixed = 0
        if use_cuda_graph:
            assert paged_kv_last_page_len_buffer is not None
            num_fixed = len(paged_kv_last_page_len_buffer)
        super().__init__(float_workspace_buffer, kv_layout, backend, num_fixed)
        self._use_tensor_cores = use_tensor_cores
        self._indptr, self._indices = paged_kv_indptr_buffer, paged_kv_indices_buffer
        self._every_token = torch.arange(_MAX_REQUESTS + 1, device=self._device)

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
        q_data_type: torch.dtype | str | None = "float16",
        kv_data_type: torch.dtype | str | None = None,
        sm_scale: float | None = None,
    ) -> None:
        """Plan a batch."""
        del head_dim
        group = num_qo_heads // num_kv_heads
        if not self._use_tensor_cores and group not in _GROUPS_OF_DECODE:
            raise RuntimeError(f"Unsupported group_size: {group}")
        assert torch.equal(last_page_len, torch.ones_like(last_page_len)), last_page_len
        self._upload(indptr, page_size)
        num_requests = len(indptr) - 1
        self._places = _Places(
            qo_indptr=self._every_token[: num_requests + 1],
            kv_indptr=self._to_device(indptr, self._indptr),
            kv_indices=self._to_device(indices, self._indices),
        )
        self._constants = _constants(num_requests, q_data_type, kv_data_type, sm_scale)

    def run(self, q: Tensor, paged_kv_cache: Cache) -> Tensor:
        """Attend by the last plan."""
        assert q.shape[-1] == paged_kv_cache[1].shape[-1], "decode has one head size for both"
        return self._attend(q, paged_kv_cache)


class BatchPrefillWithPagedKVCacheWrapper(_Wrapper):
    """Attention of any number of tokens a request."""

    def __init__(
        self,
        float_workspace_buffer: Tensor,
        kv_layout: str = "NHD",
        use_cuda_graph: bool = False,
        qo_indptr_buf: Tensor | None = None,
        paged_kv_indptr_buf: Tensor | None = None,
        paged_kv_indices_buf: Tensor | None = None,
        paged_kv_last_page_len_buf: Tensor | None = None,
        custom_mask_buf: Tensor | None = None,
        mask_indptr_buf: Tensor | None = None,
        backend: str = "auto",
    ) -> None:
        num_fixed = 0
        if use_cuda_graph:
            assert qo_indptr_buf is not None
            assert paged_kv_last_page_len_buf is not None
            num_fixed = len(qo_indptr_buf) - 1
        super().__init__(float_workspace_buffer, kv_layout, backend, num_fixed)
        self._qo_indptr, self._indptr = qo_indptr_buf, paged_kv_indptr_buf
        self._indices = paged_kv_indices_buf
        self._mask, self._mask_indptr = custom_mask_buf, mask_indptr_buf
        self._max_rows: int | None = None

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
        head_dim_vo: int | None = None,
        custom_mask: Tensor | None = None,
        *,
        causal: bool = False,
        sm_scale: float | None = None,
        q_data_type: torch.dtype | str = "float16",
        kv_data_type: torch.dtype | str | None = None,
        uniform_q_len: int | None = None,
    ) -> None:
        """Plan a batch."""
        del num_qo_heads, num_kv_heads, head_dim_qk, head_dim_vo
        num_rows = int(qo_indptr[-1])
        if self._is_static:
            assert qo_indptr.diff().tolist() == [uniform_q_len] * self._num_fixed
            self._max_rows = self._max_rows or num_rows
            if num_rows > self._max_rows:
                raise ValueError(f"{num_rows} rows, more than the first plan's {self._max_rows}")
        self._upload(paged_kv_indptr, page_size)
        mask, mask_indptr = self._mask, self._mask_indptr
        if custom_mask is not None:
            lengths = paged_kv_indptr.diff() - 1 + paged_kv_last_page_len
            sizes = qo_indptr.diff() * lengths
            mask, mask_indptr = _packed(custom_mask, sizes.to(self._device))
            mask = self._to_device(mask, self._mask)
            mask_indptr = self._to_device(mask_indptr, self._mask_indptr)
        self._places = _Places(
            qo_indptr=self._to_device(qo_indptr, self._qo_indptr),
            kv_indptr=self._to_device(paged_kv_indptr, self._indptr),
            kv_indices=self._to_device(paged_kv_indices, self._indices),
            mask=mask,
            mask_indptr=mask_indptr,
        )
        made = _constants(num_rows, q_data_type, kv_data_type, sm_scale, causal=causal)
        self._constants = made

    def run(self, q: Tensor, paged_kv_cache: Cache) -> Tensor:
        """Attend by the last plan."""
        return self._attend(q, paged_kv_cache)


def _constants(
    num_rows: int,
    dtype: torch.dtype | str | None,
    kv_dtype: torch.dtype | str | None,
    sm_scale: float | None,
    *,
    causal: bool = False,
) -> _Constants:
    assert isinstance(dtype, torch.dtype), dtype
    assert kv_dtype == dtype, kv_dtype
    assert sm_scale is not None, "the layer's scaling is not FlashInfer's default"
    return _Constants(num_rows=num_rows, dtype=dtype, sm_scale=sm_scale, causal=causal)


def _seen(
    num_tokens: int, places: _Places, schedule: Tensor, *, causal: bool
) -> tuple[Tensor, Tensor]:
    """Tell which entries kernels visit, [C], and which of them each token sees, [T, C]."""
    kv_indptr, qo_indptr = places.kv_indptr, places.qo_indptr
    device, last = schedule.device, len(kv_indptr) - 2
    entries = torch.arange(len(places.kv_indices), device=device)
    owner = torch.searchsorted(kv_indptr[1:], entries, right=True).clamp(max=last)
    at = entries - kv_indptr[owner]
    visited = (entries < kv_indptr[-1]) & (at < schedule[owner])
    tokens = torch.arange(num_tokens, device=device)
    asker = torch.searchsorted(qo_indptr[1:], tokens, right=True).clamp(max=last)
    own = tokens - qo_indptr[asker]
    lengths = kv_indptr.diff()[asker]
    visible = visited & (owner == asker[:, None])
    if places.mask is not None and places.mask_indptr is not None:
        bits = own[:, None] * lengths[:, None] + at
        bytes_ = (places.mask_indptr[asker][:, None] + bits // 8).clamp(0, len(places.mask))
        padded = torch.cat([places.mask, places.mask.new_zeros(1)])
        visible = visible & ((padded[bytes_.long()] >> (bits % 8)) & 1).bool()
    elif causal:
        before = lengths - qo_indptr.diff()[asker]
        visible = visible & (at <= (before + own)[:, None])
    return visited, visible


def _packed(mask: Tensor, sizes: Tensor) -> tuple[Tensor, Tensor]:
    """Pack the requests' masks, of these sizes, into bits: each one from a byte on."""
    starts = sizes.cumsum(0) - sizes
    num_bytes = (sizes + 7) // 8
    indptr = torch.cat([num_bytes.new_zeros(1), num_bytes.cumsum(0)])
    total = int(indptr[-1])
    at = torch.arange(total, device=mask.device)
    owner = torch.searchsorted(indptr[1:].contiguous(), at, right=True)
    bits = (at - indptr[owner])[:, None] * 8 + torch.arange(8, device=mask.device)
    padded = torch.cat([mask, mask.new_zeros(1)])
    is_own = bits < sizes[owner][:, None]
    found = padded[torch.where(is_own, starts[owner][:, None] + bits, len(mask))]
    weights = 2 ** torch.arange(8, device=mask.device)
    return (found * weights).sum(1).to(torch.uint8), indptr.to(torch.int32)
