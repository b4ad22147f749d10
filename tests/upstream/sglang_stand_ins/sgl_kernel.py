"""Torch stand-ins for the CPU operators of `sgl_kernel`, SGLang's package of compiled kernels.

PyPI has that package for CUDA alone. SGLang 0.5.23 on a CPU (`SGLANG_USE_CPU_ENGINE=1`) imports
the names below from it, and falls back to torch for the rest: `convert_weight_packed` is left out,
so that SGLang sees no AMX build. Each function has the meaning that the operator's callers rely on,
on CPU tensors, one request after the other; none of it is fast. Outputs are written in place.

Shapes: B requests, P rows in the request pool, L the longest context, N draft tokens a request
(the root among them), S tokens that a verify may accept, T tokens in a batch, C slots in the cache.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

_FULL_MASK = 0
_QUERIES_ONLY = 1
"""The two layouts of a tree mask that are stood in for, by SGLang's numbers."""


def assign_req_to_token_pool_cpu(
    req_pool_indices: Tensor,
    req_to_token: Tensor,
    start_offset: Tensor,
    end_offset: Tensor,
    out_cache_loc: Tensor,
    _pool_len: int,
) -> None:
    """Write newly allocated slots into the page table, from `start` to `end` of each request.

    req_pool_indices        [B]
    req_to_token            [P, L] int32, written
    start_offset, end_offset  [B]
    out_cache_loc           [T], the slots of all requests, one after the other
    """
    first = 0
    for row, start, end in _spans(req_pool_indices, start_offset, end_offset):
        slots = out_cache_loc[first : first + end - start]
        req_to_token[row, start:end] = slots.to(req_to_token.dtype)
        first += end - start


def assign_extend_cache_locs_cpu(
    req_pool_indices: Tensor,
    req_to_token: Tensor,
    start_offset: Tensor,
    end_offset: Tensor,
    out_cache_loc: Tensor,
    _pool_len: int,
) -> None:
    """Read each request's slots from `start` to `end`, one request after the other.

    The arguments are those of `assign_req_to_token_pool_cpu`; `out_cache_loc` is written, and may
    be longer than what is read.
    """
    spans = _spans(req_pool_indices, start_offset, end_offset)
    slots = torch.cat([req_to_token[row, start:end] for row, start, end in spans])
    out_cache_loc[: len(slots)] = slots.to(out_cache_loc.dtype)


def assign_draft_cache_locs_contiguous_cpu(
    req_pool_indices: Tensor,
    req_to_token: Tensor,
    seq_lens: Tensor,
    out_cache_loc: Tensor,
    pool_len: int,
    topk: int,
    speculative_num_steps: int,
) -> None:
    """Read the `topk * speculative_num_steps` slots that follow each request's context.

    seq_lens       [B]
    out_cache_loc  [B * topk * speculative_num_steps], written
    """
    ends = seq_lens + topk * speculative_num_steps
    assign_extend_cache_locs_cpu(
        req_pool_indices, req_to_token, seq_lens, ends, out_cache_loc, pool_len
    )


def copy_all_layer_kv_cache_cpu(
    data_ptrs: Tensor, strides: Tensor, tgt_loc: Tensor, src_loc: Tensor
) -> None:
    """Copy slots to other slots in the buffer of each layer; all are read before one is written.

    data_ptrs  [layers * 2] uint64, where each buffer begins
    strides    [layers * 2], bytes of one slot in each
    tgt_loc    [n], slots
    src_loc    [n], slots
    """
    for begin, stride in zip(data_ptrs.tolist(), strides.tolist(), strict=True):
        read = [ctypes.string_at(begin + slot * stride, stride) for slot in src_loc.tolist()]
        for slot, content in zip(tgt_loc.tolist(), read, strict=True):
            ctypes.memmove(begin + slot * stride, content, stride)


def fill_bonus_tokens_cpu(
    accept_tokens: Tensor, accept_lens: Tensor, bonus_tokens: Tensor, accept_stride: int
) -> None:
    """Take each request's last accepted token.

    accept_tokens  [B * accept_stride]
    accept_lens    [B], the bonus token included
    bonus_tokens   [B], written
    """
    first = torch.arange(len(accept_lens)) * accept_stride
    bonus_tokens.copy_(accept_tokens.flatten()[first + accept_lens - 1])


def fill_accept_out_cache_loc_cpu(
    accept_index: Tensor, out_cache_loc: Tensor, accept_out_cache_loc: Tensor
) -> None:
    """Pack the slots of accepted tokens.

    accept_index          any shape, -1 where nothing was accepted
    out_cache_loc         [B * N]
    accept_out_cache_loc  as long as `accept_index`; its beginning is written
    """
    accepted = accept_index.flatten()
    slots = out_cache_loc[accepted[accepted != -1]]
    accept_out_cache_loc[: len(slots)] = slots


def rotate_input_ids_cpu(
    input_ids: Tensor,
    extend_start_loc: Tensor,
    extend_seq_lens: Tensor,
    topk_index: Tensor,
    select_index: Tensor | None,
) -> None:
    """Shift each request's tokens to the left by one, and put a new one at the end.

    input_ids         [T], written
    extend_start_loc  [B]
    extend_seq_lens   [B]
    topk_index        [B], or [B, 1], the new tokens
    select_index      [B], where in `input_ids` the new one goes, if not at the end
    """
    starts, sizes = extend_start_loc.tolist(), extend_seq_lens.tolist()
    for i, (start, size) in enumerate(zip(starts, sizes, strict=True)):
        if size == 0:
            continue
        input_ids[start : start + size - 1] = input_ids[start + 1 : start + size].clone()
        last = start + size - 1 if select_index is None else int(select_index[i])
        input_ids[last] = topk_index.flatten()[i]


def build_tree_kernel_efficient_cpu(  # noqa: PLR0913, PLR0917 - the operator takes as many
    parent_list: Tensor,
    selected_index: Tensor,
    verified_seq_len: Tensor,
    tree_mask: Tensor,
    positions: Tensor,
    retrieve_index: Tensor,
    retrieve_next_token: Tensor,
    retrieve_next_sibling: Tensor,
    topk: int,
    depth: int,
    draft_token_num: int,
    tree_mask_mode: int,
) -> None:
    """Link each request's draft tokens to a tree, whose root is the token verified last.

    A candidate is numbered by its level and place: candidate `c` has the parent that
    `parent_list[c // topk]` numbers, and those with `c < topk` hang on the root.

    parent_list            [B, ...], candidates that were expanded, by `candidate // topk`
    selected_index         [B, N - 1], the candidates that were kept, ascending
    verified_seq_len       [B], tokens before the root
    tree_mask              flat, written: `[B, N, N]`, or N rows of `context + N` a request
    positions              [B * N], written: where in its context each token is
    retrieve_index         [B, N], written: each token's place in `[B * N]`
    retrieve_next_token    [B, N] of -1, written: each token's first child
    retrieve_next_sibling  [B, N] of -1, written: the next child of its parent

    No path to the root is longer than `depth`. `tree_mask_mode` says which of the two layouts
    `tree_mask` has; a third one, of a bit a token, has no stand-in.
    """
    assert tree_mask_mode in {_FULL_MASK, _QUERIES_ONLY}, f"mask layout {tree_mask_mode}"
    flat, begin = tree_mask.view(-1), 0
    for i, context in enumerate(verified_seq_len.tolist()):
        parents = list(_parents(parent_list[i].tolist(), selected_index[i].tolist(), topk))
        seen = torch.zeros(draft_token_num, draft_token_num, dtype=flat.dtype)
        for token in range(draft_token_num):
            path = list(_path(token, parents, depth))
            seen[token, [0, *path]] = 1
            positions[i * draft_token_num + token] = context + len(path)
        before = context if tree_mask_mode == _FULL_MASK else 0
        size = draft_token_num * (before + draft_token_num)
        flat[begin : begin + size].view(draft_token_num, -1)[:, before:] = seen
        begin += size
        retrieve_index[i] = torch.arange(draft_token_num) + i * draft_token_num
        # From the last, so that a parent's first child is the one with the lowest number.
        for token in range(draft_token_num - 1, 0, -1):
            parent = parents[token]
            if parent is not None:
                retrieve_next_sibling[i, token] = retrieve_next_token[i, parent]
                retrieve_next_token[i, parent] = token


def verify_tree_greedy_cpu(
    *,
    predicts: Tensor,
    accept_index: Tensor,
    accept_token_num: Tensor,
    candidates: Tensor,
    retrive_index: Tensor,  # as SGLang's callers spell it
    retrive_next_token: Tensor,
    retrive_next_sibling: Tensor,
    target_predict: Tensor,
) -> None:
    """Walk from the root to children that the target predicts, as far as there is one.

    predicts          [B * N], written at accepted tokens: what the target predicts after each
    accept_index      [B, S] of -1, written: places of accepted tokens in `[B * N]`, the root first
    accept_token_num  [B], written: how many were accepted, without the root
    candidates        [B, N], draft tokens
    target_predict    [B, N], the target's token after each of them

    The links are those that `build_tree_kernel_efficient_cpu` writes.
    """
    most = accept_index.shape[1]
    for i in range(len(candidates)):
        token, walked = 0, [0]
        while len(walked) < most:
            expected = int(target_predict[i, token])
            siblings = _siblings(i, token, retrive_next_token, retrive_next_sibling)
            found = next((own for own in siblings if int(candidates[i, own]) == expected), None)
            if found is None:
                break
            walked.append(found)
            token = found
        places = retrive_index[i, walked]
        accept_index[i, : len(walked)] = places.to(accept_index.dtype)
        accept_token_num[i] = len(walked) - 1
        predicts[places.long()] = target_predict[i, walked].to(predicts.dtype)


def _spans(rows: Tensor, starts: Tensor, ends: Tensor) -> Sequence[tuple[int, int, int]]:
    return list(zip(rows.tolist(), starts.tolist(), ends.tolist(), strict=True))


def _parents(expanded: list[int], kept: list[int], topk: int) -> Iterator[int | None]:
    """List each token's parent, by its number among the kept: None for the root and strays."""
    yield None
    for candidate in kept:
        level = candidate // topk
        if level == 0:
            yield 0
        else:
            parent = expanded[level]
            yield kept.index(parent) + 1 if parent in kept else None


def _path(token: int, parents: Sequence[int | None], depth: int) -> Iterator[int]:
    """Walk from a token to the root, which is left out."""
    own: int | None = token
    for _ in range(depth):
        if not own:
            return
        yield own
        own = parents[own]


def _siblings(request: int, token: int, children: Tensor, siblings: Tensor) -> Iterator[int]:
    own = int(children[request, token])
    while own != -1:
        yield own
        own = int(siblings[request, own])
