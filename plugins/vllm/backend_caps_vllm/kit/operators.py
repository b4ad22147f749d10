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


def gather_and_maybe_dequant_cache(
    src_cache: Tensor,
    dst: Tensor,
    block_table: Tensor,
    cu_seq_lens: Tensor,
    token_to_seq: Tensor,
    num_tokens: int,
    kv_cache_dtype: str,
    scale: Tensor,
    seq_starts: Tensor | None,
) -> None:
    """Copy parts of contexts out of their blocks, request behind request.

    src_cache     [B, N, R + P]
    dst           [C, R + P], of which the first rows are written
    block_table   [requests, M] int32
    cu_seq_lens   [requests + 1] int32: where each request's rows begin
    token_to_seq  [rows] int32: each row's request
    seq_starts    [requests] int32: where the parts begin in their contexts; None: at 0
    """
    del scale
    _require_plain(kv_cache_dtype)
    own, size = token_to_seq[:num_tokens].long(), src_cache.shape[1]
    places = torch.arange(num_tokens) - cu_seq_lens[own]
    if seq_starts is not None:
        places = places + seq_starts[own]
    blocks = block_table[own, places // size].long()
    dst[:num_tokens] = src_cache[blocks, places % size].to(dst.dtype)


def merge_attn_states(
    output: Tensor,
    output_lse: Tensor | None,
    prefix_output: Tensor,
    prefix_lse: Tensor,
    suffix_output: Tensor,
    suffix_lse: Tensor,
    prefill_tokens_with_context: int | None,
    output_scale: Tensor | None = None,
) -> None:
    """Merge attention over two parts of contexts by the sums of their weights.

    output, prefix_output, suffix_output  [T, H, Dv]
    output_lse, prefix_lse, suffix_lse    [H, T] float32: the logarithms of the sums
    prefill_tokens_with_context           tokens that have a prefix, which come first; None: all
    """
    assert output_scale is None, "nothing here is quantized"
    count = len(output) if prefill_tokens_with_context is None else prefill_tokens_with_context
    is_behind = torch.arange(len(output)) >= count
    both = torch.stack([prefix_lse.masked_fill(is_behind, -torch.inf), suffix_lse]).double()
    both = both.masked_fill(both == torch.inf, -torch.inf)  # of no weights FlashAttention says inf
    total = both.logsumexp(0)
    shares = torch.where(total == -torch.inf, 0, (both - total).exp()).transpose(1, 2)[..., None]
    outputs = torch.stack([prefix_output, suffix_output]).double()
    output.copy_((outputs.masked_fill(shares == 0, 0) * shares).sum(0))
    if output_lse is not None:
        output_lse.copy_(total)


def _store(new: Tensor, stored: Tensor, slots: Tensor) -> None:
    """Write rows of tokens, [T, ...], to their slots of blocks, [B, N, ...]."""
    is_stored = slots >= 0
    own, size = slots[is_stored], stored.shape[1]
    stored[own // size, own % size] = new[: len(slots)][is_stored].to(stored.dtype)


def _require_plain(kv_cache_dtype: str) -> None:
    if kv_cache_dtype not in _PLAIN:
        raise NotImplementedError(f"no stand-in stores a cache of {kv_cache_dtype}")


STORE = "_C_cache_ops::reshape_and_cache_flash"
STORE_LATENTS = "_C_cache_ops::concat_and_cache_mla"
GATHER = "_C_cache_ops::gather_and_maybe_dequant_cache"
MERGE = "_C::merge_attn_states"
_STORE = (
    "(Tensor key, Tensor value, Tensor(a!) key_cache, Tensor(b!) value_cache, "
    "Tensor slot_mapping, str kv_cache_dtype, Tensor k_scale, Tensor v_scale) -> ()"
)
_STORE_LATENTS = (
    "(Tensor kv_c, Tensor k_pe, Tensor(a!) kv_cache, Tensor slot_mapping, "
    "str kv_cache_dtype, Tensor scale, bool skip_scale=False) -> ()"
)
_GATHER = (
    "(Tensor src_cache, Tensor(a!) dst, Tensor block_table, Tensor cu_seq_lens, "
    "Tensor token_to_seq, int num_tokens, str kv_cache_dtype, Tensor scale, "
    "Tensor? seq_starts) -> ()"
)
_MERGE = (
    "(Tensor(a!) output, Tensor(b!)? output_lse, Tensor prefix_output, Tensor prefix_lse, "
    "Tensor suffix_output, Tensor suffix_lse, int? prefill_tokens_with_context, "
    "Tensor? output_scale=None) -> ()"
)
_SCHEMAS: Mapping[str, tuple[str, Callable[..., None]]] = {
    STORE: (_STORE, reshape_and_cache_flash),
    STORE_LATENTS: (_STORE_LATENTS, concat_and_cache_mla),
    GATHER: (_GATHER, gather_and_maybe_dequant_cache),
    MERGE: (_MERGE, merge_attn_states),
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
