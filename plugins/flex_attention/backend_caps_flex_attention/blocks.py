"""Tables of the blocks that kernels visit, made on the device.

Shapes: R rows of N tokens in NQ blocks, K places that each row's tokens look at in NK blocks.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

BLOCK = 128
"""Tokens and places in a block: the default of `flex_attention`, whose kernels' tiles divide it."""


@dataclass(frozen=True, slots=True)
class BlockTable:
    """The blocks of places that each block of tokens visits, in the form of `BlockMask`."""

    counts: Tensor
    """[R, 1, NQ] int32, device: how many."""
    indices: Tensor
    """[R, 1, NQ, NK] int32, device: which; behind the count they mean nothing."""


def block_table(begins: Tensor, ends: Tensor, num_places: int) -> BlockTable:
    """List the blocks in which any token of a block sees anything.

    begins   [R, N] int64, device  the first place that each token may see
    ends     [R, N] int64, device  where those places end; not behind the begin: it sees nothing
    returns  the table of ceil(N / 128) by ceil(K / 128) blocks, K being `num_places`

    Stream: the current one.
    Sync: none. Allocates: the table, and R * N * NK flags while it runs. Keeps: nothing.
    Capture: yes. Exact: a block that is left out is seen by nobody.
    """
    num_tokens = begins.shape[1]
    size = min(num_tokens, BLOCK)
    begins, ends = (pad(x, (0, -num_tokens % size))[..., None] for x in (begins, ends))
    firsts = torch.arange(0, num_places, BLOCK, device=begins.device)
    is_seen = (begins < firsts + BLOCK) & (ends > firsts) & (begins < ends)
    num_blocks = len(firsts)
    is_visited = is_seen.reshape(len(begins), -1, size, num_blocks).any(2)
    # Sorting would do too. This keeps the order, and costs one pass: what is not visited goes to
    # a column more, which is cut off.
    columns = torch.where(is_visited, is_visited.cumsum(-1) - 1, num_blocks)
    numbers = torch.arange(num_blocks, dtype=torch.int32, device=begins.device)
    indices = torch.zeros(
        *columns.shape[:2], num_blocks + 1, dtype=torch.int32, device=begins.device
    ).scatter_(2, columns, numbers.expand_as(columns))
    counts = is_visited.sum(-1, dtype=torch.int32)
    return BlockTable(counts[:, None], indices[:, None, :, :num_blocks].contiguous())
