"""The batch that a FutureMap serves: SGLang's names, and two fields of its own.

`input_ids_pending` and `seq_lens_cpu_upper_bound` are what a `ScheduleBatch` does not have.

Shapes: B requests in the batch, T prompt tokens staged, R decode rows mixed in after them.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from backend_caps.relay.errors import PendingInputIdsError


class SpecInfo(Protocol):
    """The draft worker's state of a batch in speculative decode; `resolve_future` fills it."""

    topk_p: Tensor | None
    """[B, K] float32, device."""
    topk_index: Tensor | None
    """[B, K] int64, device."""
    bonus_tokens: Tensor | None
    """[B] int64, device: the token that each request's step starts from."""
    hidden_states: Tensor | None
    """[B, H], device; left as it is where the layout carries none."""


class RelayBatch(Protocol):
    """One step's batch, as the scheduler built it."""

    req_pool_indices: Tensor
    """[B] int64 or int32, device: the pool row of each request."""
    req_pool_indices_cpu: Tensor
    """[B] int64 or int32, host: the same rows in the same order."""
    seq_lens: Tensor
    """[B] int64, device: tokens committed before this step."""
    seq_lens_cpu: Tensor | None
    """[B] int64, host: the mirror of `seq_lens`, or None where nobody needs it."""
    seq_lens_sum: int | None
    """The mirror's sum."""
    seq_lens_cpu_upper_bound: Tensor | None
    """[B] int64, host: never below `seq_lens`, row 0 aside, or None where nobody needs it."""
    input_ids: Tensor | None
    """[B] or [T + R] int64, device: tokens, or sentinels while `input_ids_pending`."""
    input_ids_pending: bool
    """Whether `input_ids` are sentinels: known on the host, so nobody has to look at them."""
    prefill_input_ids_cpu: Tensor | None
    """[T] int64, pinned host: prompt tokens that cross at forward entry."""
    mix_running_indices: Tensor | None
    """[R] int64 or int32, device: pool rows of the decode rows after the prompt tokens."""

    @property
    def spec_info(self) -> SpecInfo | None:
        """The draft worker's state; None outside speculative decode."""


def require_input_ids(batch: RelayBatch) -> Tensor:
    """Return the tokens that a forward reads, or say that they are not there yet.

    Sync: none; which ids are pending is known on the host.

    Raises:
        PendingInputIdsError: `resolve_future` has not run for this batch.
    """
    if batch.prefill_input_ids_cpu is not None:
        num_staged = batch.prefill_input_ids_cpu.numel()
        raise PendingInputIdsError(pending=f"{num_staged} prompt tokens are staged on the host")
    if batch.input_ids_pending:
        num_rows = batch.req_pool_indices.numel()
        raise PendingInputIdsError(pending=f"{num_rows} decode rows hold sentinels")
    if batch.input_ids is None:
        raise PendingInputIdsError(pending="input_ids is None and nothing is staged")
    return batch.input_ids
