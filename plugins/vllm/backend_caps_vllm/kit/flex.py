"""A stand-in for the compiled `flex_attention` that vLLM calls, by the meaning of its block mask.

torch compiles `flex_attention` for the devices that its compiler knows, which the simulated one is
not, and its eager form there takes no block table into account. This one reads of the block mask
what a compiled kernel reads: of each row of query blocks as many key blocks as the row counts, at
the addresses of its table, and within these what the mask function shows. What is hidden has no
part in the result, whatever the cache holds there.

Shapes: T query tokens, S slots of the KV cache, H query heads, Hk key and value heads, D and Dv
their sizes, G rows of query blocks, W entries in a row of the table.
"""

from __future__ import annotations

from types import SimpleNamespace

import torch
from torch import Tensor

from backend_caps.runtime.model.layers import AttentionLayer
from backend_caps_vllm.kit.adapter import Adapted

STAND_IN = "torch.compile(flex_attention), by its block mask"
"""What is stood in for."""


class AdaptedFlex(Adapted):
    """vLLM's FlexAttention on pools of the kit."""

    def _make_implementation(self, own: AttentionLayer, layer: SimpleNamespace) -> SimpleNamespace:
        """Make the implementation, whose module calls the stand-in where there is no GPU."""
        if not torch.cuda.is_available():
            module = self._vllm.module("v1.attention.backends.flex_attention")
            vars(module)["flex_attention_compiled"] = attend_blocks
        return super()._make_implementation(own, layer)


def attend_blocks(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    score_mod: None,
    block_mask: SimpleNamespace,
    scale: float,
    *,
    enable_gqa: bool,
    kernel_options: object,
    return_aux: None,
) -> Tensor:
    """Attend where a block mask shows keys, in float64, so that no bit depends on the batch.

    query    [1, H, T, D]
    key      [1, Hk, S, D]
    value    [1, Hk, S, Dv]
    returns  [1, H, T, Dv]
    """
    del kernel_options
    assert score_mod is None, "vLLM's decoders modify no score"
    assert return_aux is None, "and ask for no sums of weights"
    assert enable_gqa or query.shape[1] == key.shape[1], "a head of keys for each"
    visible = _visible(block_mask, query.shape[2], key.shape[2])
    is_seen, is_any = visible.any(0)[:, None], visible.any(1)[:, None]
    outputs = []
    # Head by head of the keys: scores over all slots are large.
    for queries, *cached in zip(query.chunk(key.shape[1], 1), key[0], value[0], strict=True):
        keys, values = (torch.where(is_seen, own, 0).double() for own in cached)
        scores = (queries.double() @ keys.mT * scale).masked_fill(~visible, -torch.inf)
        outputs.append(torch.where(is_any, scores.softmax(-1), 0) @ values)
    return torch.cat(outputs, 1).to(query.dtype)


def _visible(block_mask: SimpleNamespace, num_queries: int, num_keys: int) -> Tensor:
    """Return which keys each query sees: [T, S] bool."""
    rows, columns = block_mask.BLOCK_SIZE
    table = _whole_rows(block_mask.kv_indices[0, 0])
    counts, device = block_mask.kv_num_blocks[0, 0], table.device
    num_blocks = -(-num_keys // columns)
    is_listed = torch.arange(table.shape[1], device=device) < counts[:, None]
    # An entry behind the counted ones goes to a block of its own, which is then left out.
    listed = torch.where(is_listed, table, num_blocks).long()
    reached = torch.zeros(len(table), num_blocks + 1, dtype=torch.bool, device=device)
    reached = reached.scatter(1, listed, value=True)[:, :num_blocks]
    of_token = reached.repeat_interleave(rows, dim=0)[:num_queries]
    of_slot = of_token.repeat_interleave(columns, dim=1)[:, :num_keys]
    zero = torch.zeros((), dtype=torch.int64, device=device)
    queries = torch.arange(num_queries, device=device)[:, None]
    keys = torch.arange(num_keys, device=device)[None]
    shown: Tensor = block_mask.mask_mod(zero, zero, queries, keys)
    return of_slot & shown


def _whole_rows(table: Tensor) -> Tensor:
    """Widen a view of a table to its rows' memory: a kernel reads as far as a row counts.

    table    [G, W] int32
    returns  [G, the distance of two rows]
    """
    width = table.stride(0)
    return table.as_strided((len(table), width), (width, 1)) if width > table.shape[1] else table
