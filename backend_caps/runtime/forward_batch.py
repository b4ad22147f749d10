"""One forward's batch: the scheduler's batch made into tensors.

`ForwardBatch.init_new` is the one place where that happens, and the owner of the sum of the
lengths. What a forward changes it changes here: the scheduler's batch is only read.

Shapes: B requests in the batch, T tokens in all, M entries in a tree mask.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from backend_caps.relay import require_input_ids
from backend_caps.runtime.batch import ForwardMode, ScheduleBatch, token_positions
from backend_caps.runtime.model.sampling import SamplingBatch

_OF_TOKENS = ("input_ids", "positions", "out_cache_loc")
_OF_REQUESTS = (
    *("req_pool_indices", "seq_lens", "seq_lens_cpu", "seq_lens_cpu_upper_bound"),
    *("extend_seq_lens", "extend_prefix_lens", "extend_seq_lens_cpu", "extend_prefix_lens_cpu"),
    "last_token_indices",
)
"""Fields with an entry for each token, and for each request."""


@dataclass(slots=True, kw_only=True)
class ForwardBatch:
    """What model and attention read.

    With extend lengths, each request brings its own number of tokens; without them all bring T / B.
    """

    mode: ForwardMode
    """What kind of step it is; backends go by the extend lengths."""
    input_ids: Tensor
    """[T] int64, device."""
    positions: Tensor
    """[T] int64, device: each token's place in its context."""
    req_pool_indices: Tensor
    """[B] int64, device: rows of the page table; 0 for a padded request."""
    seq_lens: Tensor
    """[B] int64, device: each context's length, this forward's tokens included."""
    out_cache_loc: Tensor
    """[T] int64, device: where the tokens' keys and values go."""
    seq_lens_cpu: Tensor | None
    """[B] int64, host: the mirror, or None without one."""
    seq_lens_sum: int | None
    """The mirror's sum; None where there is no mirror."""
    seq_lens_cpu_upper_bound: Tensor | None = None
    """[B] int64, host: never below `seq_lens`; None where no backend needs it."""
    extend_seq_lens: Tensor | None = None
    """[B] int64, device: tokens of each request; None where all bring the same."""
    extend_prefix_lens: Tensor | None = None
    """[B] int64, device: tokens before them; None where `extend_seq_lens` is."""
    extend_seq_lens_cpu: tuple[int, ...] | None = None
    """The same on the host, where the scheduler cut the tokens there."""
    extend_prefix_lens_cpu: tuple[int, ...] | None = None
    """Tokens before them, where `extend_seq_lens_cpu` is."""
    mixed_lens_cpu: tuple[int, ...] | None = None
    """[B] tokens of each request, on the host, where extend lengths are device tensors. Only
    `two_batch.split` reads it."""
    last_token_indices: Tensor | None = None
    """[B] int64, device: each request's last token, of which logits are made; None: every token."""
    sampling: SamplingBatch | None = None
    """How tokens are chosen; None where every request is greedy."""
    tree_mask: Tensor | None = None
    """[M] bool, device: what each token sees, where tokens are a tree; None where each sees all
    before it. Request after request, as many rows as it brings tokens (T / B), each as long as its
    context (`seq_lens`); entries behind the last request's are padding."""
    half_masks: tuple[Tensor, Tensor] | None = None
    """The tree masks of the batch's halves, each laid out as one of its own, where the batch runs
    in halves; `tree_mask` is None then."""

    @property
    def batch_size(self) -> int:
        """B."""
        return self.req_pool_indices.shape[0]

    @property
    def num_tokens(self) -> int:
        """T."""
        return self.input_ids.shape[0]

    @property
    def tokens_each(self) -> int | None:
        """T / B, where the host knows that every request brings the same number of tokens."""
        if self.extend_seq_lens is None:
            return self.num_tokens // self.batch_size
        lens = self.extend_seq_lens_cpu
        return lens[0] if lens is not None and len(set(lens)) == 1 else None

    def last_of(self, rows: Tensor) -> Tensor:
        """Return the rows of T that logits are made of; all, where the batch names no last tokens.

        Stream: the current one. Sync: none. Allocates: the result, where it is not all of them.
        """
        last = self.last_token_indices
        return rows if last is None else rows.index_select(0, last)

    def part(self, requests: slice, tokens: slice) -> Self:
        """Cut some requests out of the batch, with their tokens; what is None stays None.

        Masks, `mixed_lens_cpu` and `sampling` are left out. The mirror's sum is computed anew.

        Stream: the current one. Sync: none. Allocates: `last_token_indices`, unless the part has
        the first requests; all else are views. Keeps: nothing.
        """
        cut = {name: getattr(self, name)[tokens] for name in _OF_TOKENS}
        for name in _OF_REQUESTS:
            whole = getattr(self, name)
            cut[name] = None if whole is None else whole[requests]
        if tokens.start and cut["last_token_indices"] is not None:
            cut["last_token_indices"] = cut["last_token_indices"] - tokens.start
        bare = replace(self, sampling=None, tree_mask=None, mixed_lens_cpu=None, half_masks=None)
        return replace(bare, **cut, seq_lens_sum=sum_of(cut["seq_lens_cpu"]))

    @classmethod
    def init_new(cls, batch: ScheduleBatch) -> Self:
        """Make a step's tensors, once its tokens are there (`FutureMap.resolve_future`).

        Extend lengths come as host numbers or as device tensors, both of one kind. Host numbers
        are uploaded and kept beside. Device tensors are used as they are; the host fields then
        stay None.

        Stream: the current one, which must be the forward stream.
        Sync: none. Keeps: the batch's tensors.

        Raises:
            RelayError: the tokens are not there.
        """
        input_ids, known = require_input_ids(batch), batch.seq_lens_sum
        assert batch.out_cache_loc is not None, "a prepared batch has slots"
        made = cls(
            mode=batch.mode,
            input_ids=input_ids,
            positions=batch.seq_lens,  # set below
            req_pool_indices=batch.req_pool_indices,
            seq_lens=batch.seq_lens,
            out_cache_loc=batch.out_cache_loc,
            seq_lens_cpu=batch.seq_lens_cpu,
            seq_lens_sum=sum_of(batch.seq_lens_cpu) if known is None else known,
            seq_lens_cpu_upper_bound=batch.upper_bound,
            sampling=sampling_of(batch),
        )
        if batch.extend_seq_lens is None:
            made.positions = batch.seq_lens - 1
        else:
            made._place_extends(batch)
        return made

    def _place_extends(self, batch: ScheduleBatch) -> None:
        lens, prefixes = batch.extend_seq_lens, batch.extend_prefix_lens
        if isinstance(lens, tuple) and isinstance(prefixes, tuple):
            self.extend_seq_lens_cpu, self.extend_prefix_lens_cpu = lens, prefixes
            lens, prefixes = batch.memory.staging.upload((lens, prefixes)).unbind()
        assert isinstance(lens, Tensor), "both are on the device, or both on the host"
        assert isinstance(prefixes, Tensor), "both are on the device, or both on the host"
        self.extend_seq_lens, self.extend_prefix_lens = lens, prefixes
        self.mixed_lens_cpu = batch.mixed_lens_cpu
        _, self.positions = token_positions(prefixes, lens, self.num_tokens)
        self.last_token_indices = lens.cumsum(0) - 1


def sum_of(seq_lens_cpu: Tensor | None) -> int | None:
    """Return the sum of a mirror; None without one."""
    return None if seq_lens_cpu is None else sum(seq_lens_cpu.tolist())


_FIXED_ONE = 2.0**32


def sampling_of(batch: ScheduleBatch) -> SamplingBatch | None:
    """Gather how the requests' tokens are chosen; None where every one is greedy.

    A token's position is its context's length, so the noise is the same whenever it is computed.

    Stream: the current one. Sync: none. Allocates: four numbers a request, on the host and
    on the device, and floats of two of them.
    """
    wanted = [request.sampling for request in batch.requests]
    if all(own.is_greedy for own in wanted):
        return None
    columns = batch.memory.staging.upload(
        (
            [_fixed(0.0 if own.is_greedy else own.temperature) for own in wanted],
            [_fixed(own.top_p) for own in wanted],
            [min(own.top_k or _ALL, _ALL) for own in wanted],
            [own.seed for own in wanted],
        )
    )
    temperature, top_p, top_k, seeds = columns.unbind()
    narrows = any(own.top_k is not None or own.top_p < 1 for own in wanted)
    return SamplingBatch(
        temperature=_float(temperature),
        seeds=seeds,
        positions=batch.seq_lens,
        top_k=top_k if narrows else None,
        top_p=_float(top_p) if narrows else None,
    )


# More than any vocabulary has.
_ALL = 2**31


def _fixed(number: float) -> int:
    """Write a number as a whole one, so that one upload carries everything."""
    return round(number * _FIXED_ONE)


def _float(fixed: Tensor) -> Tensor:
    return (fixed.to(torch.float64) / _FIXED_ONE).to(torch.float32)
