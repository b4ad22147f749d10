"""The objects that an engine passes to an attention backend, by SGLang's names.

Protocols: an engine's classes match them without inheriting. A backend gets the fields that it
declares to need, and None for the rest. Importing this loads no torch.

Shapes: P rows in the request pool, L the longest context, S slots in the KV cache, B requests
and T tokens in this batch, Hq query heads, Hk key and value heads, D and Dv their sizes, M entries
in a tree mask.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["ForwardBatch", "Layer", "ModelRunner", "ReqToTokenPool", "TokenToKVPool"]


class ReqToTokenPool(Protocol):
    """The page table, one entry a token."""

    @property
    def req_to_token(self) -> Tensor:
        """[P, L] int32 or int64, device: the slot of each token; row 0 is the padding row."""


class TokenToKVPool(Protocol):
    """The KV cache."""

    def get_key_buffer(self, layer_id: int, /) -> Tensor:
        """Return a layer's keys, [S, Hk, D], device."""

    def get_value_buffer(self, layer_id: int, /) -> Tensor:
        """Return a layer's values, [S, Hk, Dv], device."""

    def set_kv_buffer(self, layer: Layer, loc: Tensor, k: Tensor, v: Tensor, /) -> None:
        """Store k [T, Hk, D] and v [T, Hk, Dv] at the slots loc [T]."""


class ModelRunner(Protocol):
    """The engine's object that a backend is built from."""

    @property
    def req_to_token_pool(self) -> ReqToTokenPool:
        """The page table's pool."""

    @property
    def token_to_kv_pool(self) -> TokenToKVPool:
        """The KV cache's pool."""


class Layer(Protocol):
    """One attention layer of the model."""

    @property
    def layer_id(self) -> int:
        """Its place in the KV cache."""

    @property
    def tp_q_head_num(self) -> int:
        """Hq, on this rank."""

    @property
    def tp_k_head_num(self) -> int:
        """Hk, on this rank; it divides Hq."""

    @property
    def qk_head_dim(self) -> int:
        """D."""

    @property
    def v_head_dim(self) -> int:
        """Dv."""

    @property
    def scaling(self) -> float:
        """The factor on the scores."""


class ForwardBatch(Protocol):
    """One forward's requests.

    With extend lengths, each request brings its own number of tokens: prefill, mixed. Without
    them, all bring T / B: one in decode, several in verify and draft-extend. A request's tokens
    are the last of its context.
    """

    @property
    def req_pool_indices(self) -> Tensor:
        """[B] int64, device: rows of `req_to_token`; 0 for a padded request."""

    @property
    def seq_lens(self) -> Tensor:
        """[B] int64, device: the context's length, this forward's tokens included."""

    @property
    def seq_lens_cpu(self) -> Tensor | None:
        """[B] int64, host: the mirror of `seq_lens`; None where no backend declares it."""

    @property
    def seq_lens_cpu_upper_bound(self) -> Tensor | None:
        """[B] int64, host: never below `seq_lens`; None where no backend declares it."""

    @property
    def extend_seq_lens(self) -> Tensor | None:
        """[B] int32 or int64, device: tokens of this forward; None where all bring the same."""

    @property
    def extend_seq_lens_cpu(self) -> Sequence[int] | None:
        """The same on the host; None where not kept, or `extend_seq_lens` is None."""

    @property
    def tree_mask(self) -> Tensor | None:
        """[M] bool, device: what each token attends to; None: all before it.

        Only without extend lengths. Request after request, T / B rows each, a row as long as the
        request's context (`seq_lens`). Entries after the last request's are padding.
        """

    @property
    def out_cache_loc(self) -> Tensor:
        """[T] int64, device: the slots where this forward's tokens are stored."""
