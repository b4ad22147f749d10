"""The kit's batches in SGLang's own class.

SGLang's lengths in a verify are those before it; the kit's have the verified tokens in them.

Shapes: B requests and T tokens in a batch, M entries in a tree mask.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from types import SimpleNamespace

import torch
from torch import Tensor

from backend_caps.runtime.batch import ForwardMode
from backend_caps.runtime.forward_batch import ForwardBatch
from backend_caps_sglang.kit.loading import SGLang

PADDING_ROW = 0


def num_verified_of(batch: ForwardBatch) -> int:
    """Count the tokens of each request in a verify; 0 where it is none."""
    is_uniform = batch.extend_seq_lens is None and batch.mode is not ForwardMode.DRAFT_EXTEND
    each = batch.num_tokens // batch.batch_size
    return each if is_uniform and each > 1 else 0


def mode_name_of(batch: ForwardBatch) -> str:
    """Name SGLang's mode of a batch. A graph's says which by its lengths alone."""
    if batch.mode is ForwardMode.DRAFT_EXTEND:
        return "DRAFT_EXTEND_V2"
    if batch.extend_seq_lens is not None:
        return "MIXED" if batch.mode is ForwardMode.MIXED else "EXTEND"
    return "TARGET_VERIFY" if num_verified_of(batch) else "DECODE"


def batch_of(
    sglang: SGLang, batch: ForwardBatch, translator: SimpleNamespace, *, fill: int | None
) -> SimpleNamespace:
    """Make SGLang's batch of one of the kit's.

    Args:
        sglang: its modules.
        batch: the kit's; host lengths are asked of it when SGLang asks for them.
        translator: SGLang's, of the runner.
        fill: the length that SGLang gives a request of padding; None: there is none.
    """
    count, modes = num_verified_of(batch), sglang.batches.ForwardMode
    seq_lens = batch.seq_lens - count if count else batch.seq_lens
    if fill is not None:
        seq_lens = torch.where(batch.req_pool_indices == PADDING_ROW, fill, seq_lens)
    made = _told_class(sglang.batches.ForwardBatch)(
        forward_mode=modes[mode_name_of(batch)],
        batch_size=batch.batch_size,
        input_ids=batch.input_ids,
        req_pool_indices=batch.req_pool_indices,
        seq_lens=seq_lens,
        out_cache_loc=batch.out_cache_loc,
        seq_lens_sum=None,
    )
    made.kit_batch = batch
    made.positions = batch.positions
    if count:
        made.spec_info = _verify_input(sglang, batch, count)
    for name, lengths in _extends_of(batch).items():
        setattr(made, name, lengths)
    plan = translator.plan(
        req_pool_indices=made.req_pool_indices,
        seq_lens=seq_lens,
        seq_lens_cpu=None,
        write_virtual=batch.out_cache_loc,
        read_extent=count,
    )
    plan.bind(made, translator)
    return made


def _extends_of(batch: ForwardBatch) -> Mapping[str, Tensor]:
    """Say how many tokens each request brings, where SGLang is told that: [B] int32, device."""
    news, olds = batch.extend_seq_lens, batch.extend_prefix_lens
    if batch.mode is ForwardMode.DRAFT_EXTEND:
        each = batch.num_tokens // batch.batch_size
        news = torch.full_like(batch.seq_lens, each)
        olds = batch.seq_lens - each
    if news is None or olds is None:
        return {}
    starts = news.cumsum(0) - news
    named = {"extend_seq_lens": news, "extend_prefix_lens": olds, "extend_start_loc": starts}
    return {name: own.int() for name, own in named.items()}


def _verify_input(sglang: SGLang, batch: ForwardBatch, count: int) -> object:
    """Make what SGLang says of drafts that are verified; a chain has no mask."""
    has_tree = batch.tree_mask is not None
    made: object = sglang.speculating.EagleVerifyInput(
        draft_token=batch.input_ids,
        custom_mask=batch.tree_mask,
        positions=batch.positions,
        retrieve_index=None,
        retrieve_next_token=None,
        retrieve_next_sibling=None,
        retrieve_cum_len=None,
        spec_steps=count - 1,
        topk=2 if has_tree else 1,
        draft_token_num=count,
        capture_hidden_mode=sglang.batches.CaptureHiddenMode.NULL,
        seq_lens_sum=None,
        seq_lens_cpu=None,
    )
    return made


@cache
def _told_class(base: type) -> Callable[..., SimpleNamespace]:
    """Make SGLang's class one whose host lengths are asked of the kit's batch when they are read.

    So a read is seen where it happens, and a batch without a mirror has none here.
    """

    def host(read: Callable[[ForwardBatch], object]) -> property:
        def get(made: SimpleNamespace) -> object:
            return read(made.kit_batch)

        def leave(_made: SimpleNamespace, _value: object) -> None:
            """Take no value: the kit's batch has it."""

        return property(get, leave)

    told = {
        "seq_lens_cpu": host(_seq_lens_cpu),
        "seq_lens_sum": host(_seq_lens_sum),
        "extend_seq_lens_cpu": host(lambda own: _listed(own.extend_seq_lens_cpu)),
        "extend_prefix_lens_cpu": host(lambda own: _listed(own.extend_prefix_lens_cpu)),
    }
    made: Callable[..., SimpleNamespace] = type(base.__name__, (base,), told)
    return made


def _seq_lens_cpu(batch: ForwardBatch) -> Tensor | None:
    mirror = batch.seq_lens_cpu
    return None if mirror is None else mirror - num_verified_of(batch)


def _seq_lens_sum(batch: ForwardBatch) -> int | None:
    total = batch.seq_lens_sum
    return None if total is None else total - num_verified_of(batch) * batch.batch_size


def _listed(lengths: tuple[int, ...] | None) -> list[int] | None:
    return None if lengths is None else list(lengths)
