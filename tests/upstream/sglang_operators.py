"""The stand-ins for `sgl_kernel` beside SGLang's own Triton kernels, which are interpreted.

Runs in the environment that `make upstream` builds:

    python -m tests.upstream.sglang_operators

prints as JSON the operators that wrote something else, by draw. Beside each operator that is
compared, SGLang 0.5.23 has a Triton kernel that does the same on devices without a compiled one.

Shapes: B requests, P rows in the request pool, L the longest context, N draft tokens a request (the
root among them), S tokens that a verify may accept.
"""

from __future__ import annotations

import json
import os
import random
import sys
from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

_NUM_DRAWS = 10
_BATCH, _ROWS, _LONGEST = 3, 6, 24
_TREES = ((1, 3), (2, 3), (3, 2))
"""Branches of each draft token, and levels of drafts."""

Written = tuple[str, Sequence[Tensor], Sequence[Tensor]]
"""An operator, and what SGLang's kernel and the stand-in wrote."""


def differences() -> list[str]:
    """Draw arguments for each operator, and list where the two differ."""
    sgl_kernel = import_module("sgl_kernel")
    found = []
    for seed in range(_NUM_DRAWS):
        dice = random.Random(seed)  # noqa: S311 - the same draws each time
        torch.manual_seed(seed)
        for name, theirs, ours in (*_slots(sgl_kernel, dice), *_trees(sgl_kernel, dice)):
            if not all(map(torch.equal, theirs, ours)):
                found.append(f"{name}, draw {seed}")
    return found


def _slots(ours: Any, dice: random.Random) -> Iterator[Written]:
    """Slots and tokens of requests: read, written, packed, shifted and moved."""
    locs = import_module("sglang.kernels.ops.speculative.cache_locs")
    eagle = import_module("sglang.kernels.ops.speculative.eagle")
    layers = import_module("sglang.kernels.ops.speculative.multi_layer_eagle")
    allocation = import_module("sglang.srt.mem_cache.allocation")
    cache = import_module("sglang.kernels.ops.kvcache.cache_move")
    table = torch.randint(1, 999, (_ROWS, _LONGEST), dtype=torch.int32)
    rows = torch.tensor(dice.sample(range(_ROWS), _BATCH))
    starts = torch.tensor([dice.randint(0, 9) for _ in range(_BATCH)])
    sizes = torch.tensor([dice.randint(1, 5) for _ in range(_BATCH)])
    total, grid = int(sizes.sum()), (_BATCH,)

    def new(*shape: int) -> tuple[Tensor, Tensor]:
        return torch.zeros(shape, dtype=torch.int64), torch.zeros(shape, dtype=torch.int64)

    own, read = (rows, table, starts), new(total)
    locs.assign_extend_cache_locs[grid](*own, starts + sizes, read[0], _LONGEST, 4)
    ours.assign_extend_cache_locs_cpu(*own, starts + sizes, read[1], _LONGEST)
    yield "assign_extend_cache_locs", [read[0]], [read[1]]

    read = new(_BATCH * 6)
    locs.assign_draft_cache_locs_contiguous[grid](*own, read[0], _LONGEST, 2, 3)
    ours.assign_draft_cache_locs_contiguous_cpu(*own, read[1], _LONGEST, 2, 3)
    yield "assign_draft_cache_locs_contiguous", [read[0]], [read[1]]

    slots, tables = torch.randint(1, 999, (total,)), (table.clone(), table.clone())
    spans = (starts, starts + sizes, slots, _LONGEST)
    allocation.assign_req_to_token_pool[grid](rows, tables[0], *spans, 4)
    ours.assign_req_to_token_pool_cpu(rows, tables[1], *spans)
    yield "assign_req_to_token_pool", [tables[0]], [tables[1]]

    tokens, read = torch.randint(1, 999, (_BATCH * 5,)), new(_BATCH)
    eagle.fill_bonus_tokens[grid](tokens, sizes, read[0], 5)
    ours.fill_bonus_tokens_cpu(tokens, sizes, read[1], 5)
    yield "fill_bonus_tokens", [read[0]], [read[1]]

    accepted, read = torch.randint(-1, 9, (12,)), new(12)
    eagle.fill_accept_out_cache_loc[(12,)](accepted, torch.arange(100, 109), read[0], 16)
    ours.fill_accept_out_cache_loc_cpu(accepted, torch.arange(100, 109), read[1])
    yield "fill_accept_out_cache_loc", [read[0]], [read[1]]

    ids = torch.randint(1, 999, (total,))
    shifted, firsts = (ids.clone(), ids.clone()), sizes.cumsum(0) - sizes
    layers.rotate_input_ids(shifted[0], firsts, sizes, tokens[:_BATCH])
    ours.rotate_input_ids_cpu(shifted[1], firsts, sizes, tokens[:_BATCH], None)
    yield "rotate_input_ids", [shifted[0]], [shifted[1]]

    moved = [torch.randint(0, 256, (2, _LONGEST, 20), dtype=torch.uint8)]
    moved.append(moved[0].clone())
    places = torch.tensor(dice.sample(range(_LONGEST), 8))
    pointers = [torch.tensor([own.data_ptr() for own in each]).to(torch.uint64) for each in moved]
    strides, target, source = torch.tensor([20, 20]), places[:4], places[4:]
    cache.copy_all_layer_kv_cache_tiled[(2, 2)](pointers[0], strides, target, source, 4, 4, 16)
    ours.copy_all_layer_kv_cache_cpu(pointers[1], strides, target, source)
    yield "copy_all_layer_kv_cache", [moved[0]], [moved[1]]


def _trees(ours: Any, dice: random.Random) -> Iterator[Written]:
    """Trees of drafts, with both layouts of their mask, and what a target accepts of them."""
    theirs = import_module("sglang.kernels.ops.speculative.spec_tree")
    topk, depth = dice.choice(_TREES)
    size = depth + 1 if topk == 1 else dice.randint(3, 6)
    drawn = [_candidates(dice, topk, depth, size - 1) for _ in range(_BATCH)]
    expanded, kept = (torch.tensor(own) for own in zip(*drawn, strict=True))
    lengths = torch.tensor([dice.randint(1, 9) for _ in range(_BATCH)])
    links: Sequence[Tensor] = ()
    for mode in (theirs.TreeMaskMode.FULL_MASK, theirs.TreeMaskMode.QLEN_ONLY):
        before = int(lengths.sum()) if mode == theirs.TreeMaskMode.FULL_MASK else 0
        written = []
        for build in (theirs.sgl_build_tree_kernel_triton, ours.build_tree_kernel_efficient_cpu):
            mask = torch.ones(size * (before + size * _BATCH), dtype=torch.bool)
            places = torch.zeros(_BATCH * size, dtype=torch.int64)
            links = [torch.full((_BATCH, size), -1) for _ in range(3)]
            build(expanded, kept, lengths, mask, places, *links, topk, depth, size, mode)
            written.append([mask, places, *links])
        yield f"build_tree_kernel_efficient of {mode.name}", written[0], written[1]

    # Few tokens, so that a target often has one of the children.
    candidates, target = (torch.randint(0, 3, (_BATCH, size)) for _ in range(2))
    written = []
    for verify, prefix in (
        (theirs.verify_tree_greedy_triton, "retrieve"),
        (ours.verify_tree_greedy_cpu, "retrive"),
    ):
        results = [
            torch.zeros(_BATCH * size, dtype=torch.int32),
            torch.full((_BATCH, depth + 1), -1, dtype=torch.int32),
            torch.zeros(_BATCH, dtype=torch.int32),
        ]
        named = dict(zip(("predicts", "accept_index", "accept_token_num"), results, strict=True))
        for name, link in zip(("index", "next_token", "next_sibling"), links, strict=True):
            named[f"{prefix}_{name}"] = link
        verify(**named, candidates=candidates, target_predict=target)
        written.append(results)
    yield "verify_tree_greedy", written[0], written[1]


def _candidates(
    dice: random.Random, topk: int, depth: int, count: int
) -> tuple[list[int], list[int]]:
    """Draw one request's candidates: the parents by number, and `count` that hang together.

    Level 0 has `topk` candidates, and each later one as many of each of `topk` that are expanded.
    """
    level = [*range(topk)]
    expanded, parents = [-1, *level], dict.fromkeys(level, -1)
    for _ in range(depth - 1):
        first = max(parents) + 1
        parents.update({first + own: level[own // topk] for own in range(topk * topk)})
        level = sorted(dice.sample(range(first, first + topk * topk), topk))
        expanded += level
    kept: set[int] = set()
    while len(kept) < count:
        free = [own for own in parents if own not in kept and parents[own] in {-1, *kept}]
        kept.add(dice.choice(free))
    return expanded, sorted(kept)


if __name__ == "__main__":
    # Triton reads it where a kernel is decorated.
    os.environ["TRITON_INTERPRET"] = "1"
    json.dump(differences(), sys.stdout)
