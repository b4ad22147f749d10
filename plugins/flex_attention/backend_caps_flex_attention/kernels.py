"""The two ways to attend: `flex_attention`, compiled, and the same masks evaluated eagerly.

Shapes: R rows of N tokens, K places that each row's tokens look at, Hq query heads, Hk key and
value heads, D and Dv their sizes, C contexts of W tokens, R * K = C * W.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from enum import Enum
from functools import cache
from importlib import import_module

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention
from torch.nn.functional import scaled_dot_product_attention

from backend_caps_flex_attention.blocks import BLOCK, BlockTable
from backend_caps_flex_attention.masks import Branches, Spans, visible_of

_VARIANTS = 64
"""How often a kernel may be compiled, in a process: for each head layout, dtype and kind of batch.
Torch's own limit is 8."""


class Mode(Enum):
    """How a backend attends."""

    COMPILED = "compiled"
    """By `flex_attention`, in a kernel that skips what nobody sees."""
    EAGER = "eager"
    """By `scaled_dot_product_attention`, over all places, with the masks spread out."""


class NotCompiledError(Exception):
    """Raised where torch runs as it stands what it was asked to compile."""

    def __init__(self) -> None:
        super().__init__("torch.compile is switched off")


def attend_compiled(
    q: Tensor, keys: Tensor, values: Tensor, mask: Spans | Branches, table: BlockTable, scale: float
) -> Tensor:
    """Attend by a kernel, which is compiled at the first batch of its kind.

    On one core that takes 3 to 5 seconds, and another 5 for the first of a process; later
    processes find it on disk. A row that requests share is one kind. Rows of requests are one for
    each N, a batch of a single row another; so they are with trees.

    q        [R, N, Hq, D], device
    keys     [R, K, Hk, D], device   in q's dtype, and numbers wherever the table points
    values   [R, K, Hk, Dv], device  the same
    returns  [R, N, Hq, Dv], device  zeros for tokens of blocks that visit nothing

    Stream: the current one.
    Sync: none on the device; the host compiles where it has not. Allocates: the output.
    Capture: yes, once it is compiled.

    Raises:
        NotCompiledError: torch.compile is switched off.
    """
    heads_first = [x.transpose(1, 2) for x in (q, keys, values)]
    tables = [table.counts, table.indices]
    _mark_sizes(heads_first, tables, mask.parts, num_rows=len(q))
    attend = _by_spans if isinstance(mask, Spans) else _by_branches
    output = _compiled(attend)(*heads_first, *tables, *mask.parts, scale)
    return output.transpose(1, 2)


def attend_eagerly(
    q: Tensor, keys: Tensor, values: Tensor, mask: Spans | Branches, scale: float, width: int
) -> Tensor:
    """Attend by torch's own attention, context by context.

    q        [R, N, Hq, D], device
    keys     [R, K, Hk, D], device   in q's dtype
    values   [R, K, Hk, Dv], device  the same
    width    W; a context is attended to by itself, so that none spoils another
    returns  [R, N, Hq, Dv], device

    Stream: the current one.
    Sync: none. Allocates: the output, C * N of it, and the mask, C * N * W. Capture: yes.
    """
    num_rows, num_tokens = mask.shape
    each = keys.shape[1] // width
    visible = visible_of(mask, keys.shape[1], q.device)
    keys, values = (x.reshape(num_rows * each, width, *x.shape[2:]) for x in (keys, values))
    visible = visible.reshape(num_rows, num_tokens, each, width).transpose(1, 2).flatten(0, 1)
    queries = q[:, None].expand(-1, each, *q.shape[1:]).flatten(0, 1)
    output = scaled_dot_product_attention(
        queries.transpose(1, 2),
        keys.transpose(1, 2),
        values.transpose(1, 2),
        attn_mask=visible[:, None],
        scale=scale,
        enable_gqa=True,
    ).transpose(1, 2)
    # A softmax over nothing is undefined. A token sees one context at most, so that the sum is it.
    output = output.masked_fill(~visible.any(2)[..., None, None], 0)
    return output.reshape(num_rows, each, *output.shape[1:]).sum(1)


def _mark_sizes(
    heads_first: Sequence[Tensor], tables: Sequence[Tensor], masks: Sequence[Tensor], num_rows: int
) -> None:
    """Say which sizes differ between batches, so that a kernel is compiled for all of them.

    Left alone, torch takes sizes for one that are equal by chance at the first batch.
    """
    for x in heads_first:
        torch._dynamo.maybe_mark_dynamic(x, [0, 2])  # noqa: SLF001 - documented under this name
    for x in tables:
        torch._dynamo.maybe_mark_dynamic(x, [*range(x.ndim)])  # noqa: SLF001
    for x in masks:
        torch._dynamo.mark_static(x)  # noqa: SLF001
    if num_rows > 1:
        # A draft or a verify always brings the same number of tokens, and masks go by it.
        torch._dynamo.mark_static(heads_first[0], 2)  # noqa: SLF001


@cache
def _compiled(attend: Callable[..., Tensor]) -> Callable[..., Tensor]:
    with warnings.catch_warnings():
        # It imports what torch itself calls deprecated. Under `-W error` that would be no compiler.
        warnings.simplefilter("ignore", DeprecationWarning)
        import_module("torch._inductor.compile_fx")
    compiled: Callable[..., Tensor] = torch.compile(  # type: ignore[call-overload] # left out there
        attend, dynamic=True, fullgraph=True, recompile_limit=_VARIANTS
    )
    return compiled


def _by_spans(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    counts: Tensor,
    indices: Tensor,
    begins: Tensor,
    ends: Tensor,
    scale: float,
) -> Tensor:
    mask = Spans(begins, ends, (q.shape[0], q.shape[2]))

    def mask_mod(row: Tensor, _head: Tensor, token: Tensor, place: Tensor) -> Tensor:
        return mask.visible(row, token, place)

    return _flex(q, keys, values, counts, indices, mask_mod, scale)


def _by_branches(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    counts: Tensor,
    indices: Tensor,
    lengths: Tensor,
    starts: Tensor,
    entries: Tensor,
    scale: float,
) -> Tensor:
    mask = Branches(lengths, starts, entries, (q.shape[0], q.shape[2]))

    def mask_mod(row: Tensor, _head: Tensor, token: Tensor, place: Tensor) -> Tensor:
        return mask.visible(row, token, place)

    return _flex(q, keys, values, counts, indices, mask_mod, scale)


def _flex(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    counts: Tensor,
    indices: Tensor,
    mask_mod: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor],
    scale: float,
) -> Tensor:
    if not torch.compiler.is_dynamo_compiling():
        raise NotCompiledError
    block_mask = BlockMask.from_kv_blocks(
        counts,
        indices,
        BLOCK_SIZE=BLOCK,
        mask_mod=mask_mod,
        seq_lengths=(q.shape[2], keys.shape[2]),
        compute_q_blocks=False,
    )
    output = flex_attention(q, keys, values, block_mask=block_mask, scale=scale, enable_gqa=True)
    assert isinstance(output, Tensor), "nothing else was asked for"
    return output
