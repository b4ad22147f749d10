"""Batches, maps and payloads that the relay's tests start from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from backend_caps.capability.vocabulary import HostSeqLens
from backend_caps.relay import DeviceStreams, DraftShape, FutureMap, RelayPayload

POOL_SIZE = 16
DRAFT = DraftShape(topk=2, hidden_size=4, dtype=torch.bfloat16, accept_tokens=3)


@dataclass
class SpecState:
    """A draft worker's state, with nothing in it."""

    topk_p: Tensor | None = None
    topk_index: Tensor | None = None
    bonus_tokens: Tensor | None = None
    hidden_states: Tensor | None = None


@dataclass
class Batch:
    """The fields of `RelayBatch`."""

    req_pool_indices: Tensor
    req_pool_indices_cpu: Tensor
    seq_lens: Tensor
    seq_lens_cpu: Tensor | None = None
    seq_lens_sum: int | None = None
    seq_lens_cpu_upper_bound: Tensor | None = None
    input_ids: Tensor | None = None
    input_ids_pending: bool = False
    prefill_input_ids_cpu: Tensor | None = None
    mix_running_indices: Tensor | None = None
    spec_info: SpecState | None = None


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
    return Batch(rows_device, rows_cpu, seq_lens=torch.zeros_like(rows_device))


def numbers(values: Sequence[int], device: torch.device | str = "cpu") -> Tensor:
    """Make an int64 tensor, also of nothing."""
    return torch.tensor(values, dtype=torch.int64, device=device)


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
