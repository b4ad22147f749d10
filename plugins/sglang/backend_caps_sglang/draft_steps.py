"""The steps of a draft between two verifies: SGLang's multi-step container, and its branches.

SGLang drafts a tree as W branches of each request. In step i each brings one token, and sees its
request's context and the i tokens of its own branch before. A chain is one branch, whose slots
stand behind the context in SGLang's own page table. Where there are more, SGLang's table has one
behind the other, so each branch gets a row in a table of its own: to a backend it is a decode.

Shapes: B requests with W branches in a batch, P rows in SGLang's request pool, L slots in one, K
steps, of which the last takes tokens and runs no model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from backend_caps import HostSeqLens, Plan
from backend_caps_sglang.fit import SGLangRunner
from backend_caps_sglang.views import BatchView, SGLangBatch


class StepBackend(Protocol):
    """What is called of the backend of one step, which is SGLang's `AttentionBackend`."""

    max_context_len: int

    def init_forward_metadata(self, forward_batch: SGLangBatch) -> None:
        """Prepare an eager forward."""

    def init_cuda_graph_state(self, max_bs: int, max_num_tokens: int) -> None:
        """Make the buffers of graphs."""

    def init_forward_metadata_out_graph(
        self, forward_batch: SGLangBatch, in_capture: bool = False
    ) -> None:
        """Do the host's share, before a capture and before each replay."""

    def init_forward_metadata_in_graph(self, forward_batch: SGLangBatch) -> None:
        """Do the device's share, which a capture records."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BranchView(BatchView):
    """One step of a draft as a decode of each branch, which sees all that its row holds."""

    topk: int
    """W."""
    num_steps: int
    """K."""

    @property
    def req_pool_indices(self) -> Tensor:
        """[B * W] int64, device: rows of the branches' table; 0 for a padded request's."""
        rows = self.batch.req_pool_indices[: self.batch.batch_size]
        if self.topk == 1:
            return rows
        own = torch.arange(1, len(rows) * self.topk + 1, device=rows.device)
        return torch.where(self._each(rows) == 0, 0, own)

    @property
    def out_cache_loc(self) -> Tensor:
        """[B * W] int64, device: this step's slots.

        Before the first step SGLang's batch has all steps' slots, in a step its own.
        """
        slots, count = self.batch.out_cache_loc, self.batch.batch_size * self.topk
        if len(slots) == count:
            return slots
        return slots.view(count, self.num_steps)[:, self.num_unwritten - 1]

    def _included(self, lengths: Tensor) -> Tensor:
        """Return the context, and the branch up to this step's token, of each branch [B * W]."""
        return self._each(BatchView._included(self, lengths))  # noqa: SLF001 - slots have no super()

    def _each(self, values: Tensor) -> Tensor:
        """Repeat a request's value [B] for each of its branches."""
        return values if self.topk == 1 else values[:, None].expand(-1, self.topk).flatten()


class BranchTable:
    """Which slots the branches of a batch see; for a chain, SGLang's own page table.

    Args:
        runner: the draft's.
        topk: W.
        num_steps: K.
    """

    req_to_token: Tensor
    """[P, L] or [P * W + 1, L] int32, device; row 0 is the padding row."""

    def __init__(self, runner: SGLangRunner, topk: int, num_steps: int) -> None:
        self._source = runner.req_to_token_pool.req_to_token
        self._topk, self._num_steps = topk, num_steps
        size, longest = self._source.shape
        self.req_to_token = (
            self._source if topk == 1 else self._source.new_zeros(size * topk + 1, longest)
        )

    def fill(self, batch: SGLangBatch) -> None:
        """Bring the branches of a batch to the table; of a chain nothing is to be done.

        Stream: the current one. Sync: none. Allocates: two tables of the batch's branches.
        Keeps: nothing. Capture: no; it is done before a replay.
        """
        if self._topk == 1:
            return
        size, longest = batch.batch_size, self._source.shape[1]
        positions = torch.arange(longest, device=self._source.device)
        shifts = torch.arange(self._topk, device=positions.device)[:, None] * self._num_steps
        is_drafted = positions >= batch.seq_lens[:size, None, None]
        places = (positions + is_drafted * shifts).clamp(max=longest - 1)
        rows = self._source[batch.req_pool_indices[:size]][:, None].expand(-1, self._topk, -1)
        self.req_to_token[1 : size * self._topk + 1] = rows.gather(2, places).flatten(0, 1)

    def view(self, batch: SGLangBatch, level: HostSeqLens, step: int) -> BranchView:
        """Show one step of a batch to a backend: a decode of each branch."""
        return BranchView(
            batch=batch,
            host_seq_lens=level,
            tokens_each=1,
            num_unwritten=step + 1,
            topk=self._topk,
            num_steps=self._num_steps,
        )


class DraftSteps:
    """The backends of a draft's steps, as SGLang's draft worker and its graphs call them.

    Args:
        steps: a backend for each step but the last, which runs no model.
        branches: what they read.
        plan: what each of them needs and supports in this server.
    """

    attn_backends: Sequence[StepBackend]
    """By step."""

    def __init__(self, steps: Sequence[StepBackend], branches: BranchTable, plan: Plan) -> None:
        self.attn_backends, self.plan = steps, plan
        self.max_context_len = steps[0].max_context_len
        self._branches = branches

    def init_forward_metadata(self, forward_batch: SGLangBatch) -> None:
        """Prepare every step of an eager draft."""
        self._branches.fill(forward_batch)
        for backend in self.attn_backends:
            backend.init_forward_metadata(forward_batch)

    def init_cuda_graph_state(self, max_bs: int, max_num_tokens: int) -> None:
        """Make the buffers of graphs: each branch is a request of one token."""
        del max_bs  # of requests, whose branches are the tokens
        for backend in self.attn_backends:
            backend.init_cuda_graph_state(max_num_tokens, max_num_tokens)

    def init_forward_metadata_out_graph(
        self, forward_batch: SGLangBatch, in_capture: bool = False
    ) -> None:
        """Do the host's share of every step, before a capture and before each replay."""
        self._branches.fill(forward_batch)
        for backend in self.attn_backends:
            backend.init_forward_metadata_out_graph(forward_batch, in_capture=in_capture)

    def init_forward_metadata_in_graph(self, forward_batch: SGLangBatch) -> None:
        """Do the device's share of every step, which a capture records."""
        for backend in self.attn_backends:
            backend.init_forward_metadata_in_graph(forward_batch)
