"""Batches, maps and payloads that the relay's tests start from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from backend_caps.capability.vocabulary import HostSeqLens
from backend_caps.relay import DeviceStreams, DraftShape, FutureMap, RelayPayload
from backend_caps.startup.rehearsal import RehearsalBatch as Batch
from backend_caps.startup.rehearsal import RehearsalSpecInfo as SpecState

__all__ = ["Batch", "SpecState"]

POOL_SIZE = 16
DRAFT = DraftShape(topk=2, hidden_size=4, dtype=torch.bfloat16, accept_tokens=3)


def make_map(
    device: torch.device | str = "cpu",
    host_seq_lens: HostSeqLens = HostSeqLens.EXACT,
    *,
    pool_size: int = POOL_SIZE,
    speculative: bool = True,
    max_context_len: int | None = None,
    debug: bool = False,
    streams: DeviceStreams | None = None,
) -> FutureMap:
    """Make a map of the tests' pool and draft."""
    return FutureMap(
        pool_size=pool_size,
        device=device,
        host_seq_lens=host_seq_lens,
        speculative=speculative,
        draft=DRAFT if speculative else None,
        max_context_len=max_context_len,
        debug=debug,
        streams=streams,
    )


def spec_batch(rows: Sequence[int], device: torch.device | str = "cpu") -> Batch:
    """Make a speculative batch of these rows, its host fields stale."""
    batch = decode_batch(rows, device)
    batch.spec_info = SpecState()
    batch.seq_lens_cpu, batch.seq_lens_sum = torch.tensor([-1]), -1
    batch.seq_lens_cpu_upper_bound = torch.tensor([-1])
    return batch


def decode_batch(rows: Sequence[int], device: torch.device | str = "cpu") -> Batch:
    """Make a plain decode batch of these rows."""
    rows_cpu = numbers(rows)
    rows_device = rows_cpu.to(device)
    return Batch(
        req_pool_indices=rows_device,
        req_pool_indices_cpu=rows_cpu,
        seq_lens=torch.zeros_like(rows_device),
    )


def pending_batch(rows: Sequence[int]) -> Batch:
    """Make a decode batch of these rows whose ids are pending."""
    batch = decode_batch(rows)
    batch.input_ids_pending = True
    return batch


def prefill_batch(
    rows: Sequence[int],
    tokens: Sequence[int],
    running: Sequence[int] | None = None,
    device: torch.device | str = "cpu",
) -> Batch:
    """Make a batch of staged prompt tokens, with decode rows mixed in where some are running."""
    batch = decode_batch(rows, device)
    batch.prefill_input_ids_cpu = numbers(tokens)
    batch.mix_running_indices = None if running is None else numbers(running, device)
    return batch


def numbers(values: Sequence[int], device: torch.device | str = "cpu") -> Tensor:
    """Make an int64 tensor, also of nothing."""
    return torch.tensor(values, dtype=torch.int64, device=device)


def listed(tensor: Tensor | None) -> list[Any]:
    """List the values of a tensor that has to be there."""
    assert tensor is not None
    return list(tensor.tolist())


def payload(tokens: Sequence[int], device: torch.device | str = "cpu") -> RelayPayload:
    """Make what a speculative step stashes: every field tells the token that it came with."""
    bonus_tokens = numbers(tokens, device)
    column = bonus_tokens[:, None]
    return RelayPayload(
        bonus_tokens,
        topk_p=column.float().expand(-1, 2) / 128,
        topk_index=column + numbers([1, 2], device),
        hidden_states=column.to(torch.bfloat16).expand(-1, 4),
    )
