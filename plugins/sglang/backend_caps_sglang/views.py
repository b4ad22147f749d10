"""SGLang's batches and pools, as a backend of backend-caps reads them. Imports nothing of SGLang.

Nothing is copied: a view reads the object behind it whenever it is asked, so that what a graph was
captured over is what a replay reads.

Shapes: B requests and T tokens in a batch, P rows in the request pool, L the longest context, S
slots in the KV cache, Hk key and value heads, D and Dv their sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from backend_caps import HostSeqLens
from backend_caps.protocols import Layer, ReqToTokenPool


class Named(Protocol):
    """A member of one of SGLang's enums."""

    @property
    def name(self) -> str:
        """Its name."""


class SpecInfo(Protocol):
    """What is read of SGLang's `EagleVerifyInput`; of other inputs nothing is."""

    draft_token_num: int
    """Tokens of a verify, of each request."""
    custom_mask: Tensor | None
    """[M] bool, device: request after request, a row for each token over context and tree."""


class SGLangBatch(Protocol):
    """What is read of SGLang's `ForwardBatch`."""

    @property
    def forward_mode(self) -> Named:
        """What kind of forward it is."""

    @property
    def batch_size(self) -> int:
        """B, requests that pad a graph's batch included."""

    @property
    def req_pool_indices(self) -> Tensor:
        """[B] int64, device."""

    @property
    def seq_lens(self) -> Tensor:
        """[B] int64, device: this forward's tokens included, but in a verify and a draft step."""

    @property
    def seq_lens_cpu(self) -> Tensor | None:
        """[B] int64, host."""

    @property
    def extend_seq_lens(self) -> Tensor | None:
        """[B] int32, device; stale or None in decode."""

    @property
    def extend_seq_lens_cpu(self) -> Sequence[int] | None:
        """The same on the host."""

    @property
    def out_cache_loc(self) -> Tensor:
        """[T] int64, device."""

    @property
    def spec_info(self) -> SpecInfo | None:
        """What speculation adds to the batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchView:
    """One forward of SGLang's. What the backend does not declare to read, it gets as None.

    SGLang's replays hand over buffers of the largest batch, and slots without those of padding:
    both are brought to this batch's size here.
    """

    batch: SGLangBatch
    host_seq_lens: HostSeqLens
    """What the backend declares to read of lengths on the host."""
    tokens_each: int | None
    """Tokens that each request brings; None where each brings its own number."""
    num_unwritten: int = 0
    """How far SGLang's lengths are behind this forward's tokens, which a verify's do not count."""
    tree_mask: Tensor | None = None
    """[M] bool, device: what each token sees; None where each sees all before it."""

    @property
    def req_pool_indices(self) -> Tensor:
        """[B] int64, device: rows of the page table; 0 for a padded request."""
        return self.batch.req_pool_indices[: self.batch.batch_size]

    @property
    def seq_lens(self) -> Tensor:
        """[B] int64, device: each context's length, this forward's tokens included."""
        return self._included(self.batch.seq_lens)

    @property
    def seq_lens_cpu(self) -> Tensor | None:
        """[B] int64, host: the mirror, where it is declared."""
        return self._mirror() if self.host_seq_lens is HostSeqLens.EXACT else None

    @property
    def seq_lens_cpu_upper_bound(self) -> Tensor | None:
        """[B] int64, host. SGLang keeps no bound apart from the mirror, which is exact."""
        return None if self.host_seq_lens is HostSeqLens.NONE else self._mirror()

    @property
    def extend_seq_lens(self) -> Tensor | None:
        """[B] int32, device: tokens of each request; None where all bring the same."""
        return self.batch.extend_seq_lens if self.tokens_each is None else None

    @property
    def extend_seq_lens_cpu(self) -> Sequence[int] | None:
        """The same on the host, where SGLang's scheduler cut the tokens."""
        return self.batch.extend_seq_lens_cpu if self.tokens_each is None else None

    @property
    def out_cache_loc(self) -> Tensor:
        """[T] int64, device: where the tokens' keys and values go; slot 0 for padded tokens."""
        slots = self.batch.out_cache_loc
        if self.tokens_each is None:
            return slots
        return padded(slots, self.batch.batch_size * self.tokens_each)

    def _included(self, lengths: Tensor) -> Tensor:
        own = lengths[: self.batch.batch_size]
        return own + self.num_unwritten if self.num_unwritten else own

    def _mirror(self) -> Tensor | None:
        lengths = self.batch.seq_lens_cpu
        return None if lengths is None else self._included(lengths)


def padded(slots: Tensor, num_tokens: int) -> Tensor:
    """Fill up slots [T] with slot 0, SGLang's own for padding, as far as a graph's batch goes."""
    missing = num_tokens - len(slots)
    return slots if missing <= 0 else torch.nn.functional.pad(slots, (0, missing))


class SGLangPool(Protocol):
    """What is asked of SGLang's KV pool."""

    def get_key_buffer(self, layer_id: int) -> Tensor:
        """Return keys: [S, Hk, D], device."""

    def get_value_buffer(self, layer_id: int) -> Tensor:
        """Return values: [S, Hk, Dv], device."""

    def set_kv_buffer(
        self, layer: Layer, loc_info: object, cache_k: Tensor, cache_v: Tensor
    ) -> None:
        """Store keys and values."""


@dataclass(frozen=True, slots=True)
class PoolView:
    """SGLang's KV pool, by the methods of `backend_caps.protocols`."""

    pool: SGLangPool
    located: Callable[[Tensor], object]
    """Makes of slots what SGLang's pool takes: its `KVWriteLoc`."""

    def get_key_buffer(self, layer_id: int) -> Tensor:
        """Return a layer's keys: [S, Hk, D], device."""
        return self.pool.get_key_buffer(layer_id)

    def get_value_buffer(self, layer_id: int) -> Tensor:
        """Return a layer's values: [S, Hk, Dv], device."""
        return self.pool.get_value_buffer(layer_id)

    def set_kv_buffer(self, layer: Layer, loc: Tensor, k: Tensor, v: Tensor) -> None:
        """Store keys and values of a forward's tokens, by SGLang's own pool.

        loc  [T] int64, device  their slots
        k    [T, Hk, D], device
        v    [T, Hk, Dv], device

        Stream: the current one. Sync: none. Keeps: nothing. Capture: yes, as SGLang's own is.
        """
        self.pool.set_kv_buffer(layer, self.located(loc), k, v)


@dataclass(frozen=True, slots=True)
class Site:
    """What a backend is built from."""

    req_to_token_pool: ReqToTokenPool
    token_to_kv_pool: PoolView
