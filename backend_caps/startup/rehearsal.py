"""A rehearsal: a few steps of a small batch through a real FutureMap, without a model.

Shapes: B requests in the batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from backend_caps.relay import DraftShape, FutureMap, RelayPayload
from backend_caps.report.plans import StepDocument

_ROWS = (3, 1, 2)
_PROMPTS = ((11, 12, 13, 14, 15), (21, 22, 23), (31, 32, 33, 34, 35, 36, 37))


@dataclass(slots=True)
class RehearsalSpecInfo:
    """The draft worker's state, as the relay fills it."""

    topk_p: Tensor | None = None
    topk_index: Tensor | None = None
    bonus_tokens: Tensor | None = None
    hidden_states: Tensor | None = None


@dataclass(slots=True)
class RehearsalBatch:
    """A batch with the fields of `relay.layout.RelayBatch` alone."""

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
    spec_info: RehearsalSpecInfo | None = None


def rehearse(
    future_map: FutureMap, *, num_steps: int, draft: DraftShape | None, seed: int = 0
) -> Iterator[StepDocument]:
    """Run a prefill and `num_steps` steps of three requests, and yield what each step starts from.

    The relay is real, and there is no model: tokens and accepted lengths come from a seeded
    generator. Sync: each step, to read the values on the device.
    """
    generator = torch.Generator().manual_seed(seed)
    most_accepted = (draft.accept_tokens if draft else None) or 1
    device = future_map.device
    batch = _prefilled(future_map)

    def forward(new_lens: Tensor) -> None:
        """Publish lengths and stash tokens as a forward does at its end."""
        future_map.publish(batch.req_pool_indices, new_lens)
        tokens = torch.randint(100, 1000, (len(_ROWS),), generator=generator)
        payload = RelayPayload(tokens.to(device))
        if draft is not None:
            shape = (len(_ROWS), draft.topk)
            payload.topk_p = torch.rand(shape, generator=generator).to(device)
            payload.topk_index = torch.zeros(shape, dtype=torch.int64, device=device)
        future_map.stash(batch.req_pool_indices, payload)
        batch.input_ids = None

    forward(batch.seq_lens)
    batch.spec_info = RehearsalSpecInfo() if future_map.speculative else None
    generations = torch.zeros(len(_ROWS), dtype=torch.int64)
    future_map.commit_lengths(batch.req_pool_indices_cpu, batch.seq_lens.cpu(), generations)
    processed: Tensor | None = None
    for number in range(1, num_steps + 1):
        yield _step(number, future_map, batch)
        accepted = torch.ones(len(_ROWS), dtype=torch.int64)
        if future_map.speculative:
            accepted = torch.randint(1, most_accepted + 1, (len(_ROWS),), generator=generator)
        new_lens = batch.seq_lens + accepted.to(device)
        forward(new_lens)
        if batch.spec_info is None:
            _advance(batch)
        if processed is not None:
            future_map.commit_lengths(batch.req_pool_indices_cpu, processed.cpu(), generations)
        # An overlapped scheduler processes a result one step late.
        processed = new_lens


def _prefilled(future_map: FutureMap) -> RehearsalBatch:
    lens = torch.tensor([len(prompt) for prompt in _PROMPTS])
    rows = torch.tensor(_ROWS)
    staged = torch.tensor([token for prompt in _PROMPTS for token in prompt])
    if future_map.streams.traits.has_pinned_memory:
        staged = staged.pin_memory()  # its copy to the device does not block the host
    batch = RehearsalBatch(
        req_pool_indices=rows.to(future_map.device),
        req_pool_indices_cpu=rows,
        seq_lens=lens.to(future_map.device),
        seq_lens_cpu=lens,
        seq_lens_sum=int(lens.sum()),
        prefill_input_ids_cpu=staged,
    )
    future_map.resolve_future(batch)
    return batch


def _step(number: int, future_map: FutureMap, batch: RehearsalBatch) -> StepDocument:
    future_map.resolve_seq_lens_cpu(batch)
    future_map.set_input_ids_sentinel(batch)
    future_map.resolve_future(batch)
    tokens = batch.input_ids if batch.spec_info is None else batch.spec_info.bonus_tokens
    assert tokens is not None, "resolve_future gives every step its tokens"
    crossed = future_map.bytes_to_host(len(_ROWS)) if batch.spec_info is not None else 0
    return StepDocument(
        number=number,
        seq_lens=batch.seq_lens.tolist(),
        seq_lens_cpu=_numbers(batch.seq_lens_cpu),
        seq_lens_cpu_upper_bound=_numbers(batch.seq_lens_cpu_upper_bound),
        input_ids=tokens.tolist(),
        bytes_to_host=crossed,
    )


def _advance(batch: RehearsalBatch) -> None:
    """Add one token to each length, out of place: a forward may still read the old tensors."""
    assert batch.seq_lens_cpu is not None, "without speculation the scheduler keeps the mirror"
    batch.seq_lens = batch.seq_lens + 1
    batch.seq_lens_cpu = batch.seq_lens_cpu + 1
    batch.seq_lens_sum = int(batch.seq_lens_cpu.sum())


def _numbers(tensor: Tensor | None) -> list[int] | None:
    return None if tensor is None else tensor.tolist()
