"""Stand-ins for vLLM's compiled operators where they cannot be loaded.

vLLM's wheel has them for CUDA alone. Each stand-in has the schema that vLLM registers, and the
meaning that its callers rely on: torch runs it on CPU tensors, and the simulated device as one
launch. Caches without quantization are all that is stood in for.

Shapes: T tokens, B blocks of N slots, H heads, D and Dv the sizes of keys and values, R and P the
sizes of a latent and of its rotated part.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache

import torch
from torch import Tensor

_PLAIN = ("auto", "float16", "bfloat16", "float32")
"""The dtypes of caches that hold what they are given."""


def reshape_and_cache_flash(
    key: Tensor,
    value: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    slot_mapping: Tensor,
    kv_cache_dtype: str,
    k_scale: Tensor,
    v_scale: Tensor,
) -> None:
    """Store new tokens in their slots; a token of a negative slot is stored nowhere.

    key, value    [T, H, D] and [T, H, Dv]; tokens behind the slots are padding
    key_cache     [B, N, H, D], written
    value_cache   [B, N, H, Dv], written
    slot_mapping  [T] int64
    """
    del k_scale, v_scale
    _require_plain(kv_cache_dtype)
    for new, stored in ((key, key_cache), (value, value_cache)):
        _store(new, stored, slot_mapping)


def concat_and_cache_mla(
    kv_c: Tensor,
    k_pe: Tensor,
    kv_cache: Tensor,
    slot_mapping: Tensor,
    kv_cache_dtype: str,
    scale: Tensor,
    skip_scale: bool = False,
) -> None:
    """Store latents beside their rotated parts; a token of a negative slot is stored nowhere.

    kv_c, k_pe    [T, R] and [T, P]
    kv_cache      [B, N, R + P], written
    slot_mapping  [T] int64
    """
    del scale, skip_scale
    _require_plain(kv_cache_dtype)
    _store(torch.cat([kv_c, k_pe], dim=-1), kv_cache, slot_mapping)


def _store(new: Tensor, stored: Tensor, slots: Tensor) -> None:
    """Write rows of tokens, [T, ...], to their slots of blocks, [B, N, ...]."""
    is_stored = slots >= 0
    own, size = slots[is_stored], stored.shape[1]
    stored[own // size, own % size] = new[: len(slots)][is_stored].to(stored.dtype)


def _require_plain(kv_cache_dtype: str) -> None:
    if kv_cache_dtype not in _PLAIN:
        raise NotImplementedError(f"no stand-in stores a cache of {kv_cache_dtype}")


_STORE = (
    "(Tensor key, Tensor value, Tensor(a!) key_cache, Tensor(b!) value_cache, "
    "Tensor slot_mapping, str kv_cache_dtype, Tensor k_scale, Tensor v_scale) -> ()"
)
_STORE_LATENTS = (
    "(Tensor kv_c, Tensor k_pe, Tensor(a!) kv_cache, Tensor slot_mapping, "
    "str kv_cache_dtype, Tensor scale, bool skip_scale=False) -> ()"
)
_SCHEMAS: Mapping[str, tuple[str, Callable[..., None]]] = {
    "_C_cache_ops::reshape_and_cache_flash": (_STORE, reshape_and_cache_flash),
    "_C_cache_ops::concat_and_cache_mla": (_STORE_LATENTS, concat_and_cache_mla),
}
"""By the name of each operator, its schema and its stand-in."""


@cache
def stand_in() -> tuple[str, ...]:
    """Register the stand-ins of operators that are not there, and return their names."""
    names = [name for name in _SCHEMAS if not _is_there(name)]
    for name in names:
        schema, function = _SCHEMAS[name]
        torch.library.define(name, schema)
        torch.library.impl(name, "cpu", function)
        torch.library.register_fake(name, lambda *_args, **_named: None)
    return tuple(names)


def _is_there(name: str) -> bool:
    namespace, _, operator = name.partition("::")
    return hasattr(getattr(torch.ops, namespace), operator)
