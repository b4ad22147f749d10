"""Turns of a story as vLLM's model runner describes them to its builders of states.

A request has as many blocks of states as it may verify tokens: behind a verify, each holds the
state behind one token, and the next forward begins with that of the last accepted one.

Shapes: B requests and T tokens in the batch, N blocks of a request.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import SimpleNamespace

import torch
from torch import Tensor

from backend_caps.kit.states.stories import StateTurn
from backend_caps_vllm.kit.batches import NULL_BLOCK
from backend_caps_vllm.kit.engine_modules import VLLM


@dataclass(frozen=True, slots=True)
class OrderedTurn:
    """A turn whose decodes are before its prompts, as builders ask for it."""

    turn: StateTurn
    """Its requests, and what their tokens bring; what it has to give keeps its order."""
    returns: Sequence[int]
    """[T] where each token of the story's order is in this one."""

    @classmethod
    def of(cls, turn: StateTurn, num_each: int) -> OrderedTurn:
        """Put verifies and decodes first, and others behind by their tokens."""
        counts = turn.counts
        keys = [
            (not is_verified, count != num_each, count)
            for is_verified, count in zip(turn.verifies, counts, strict=True)
        ]
        order = sorted(range(len(counts)), key=keys.__getitem__)
        starts = [sum(counts[:place]) for place in range(len(counts))]
        places = [starts[own] + token for own in order for token in range(counts[own])]

        def ordered(numbers: Sequence[int]) -> Sequence[int]:
            return [numbers[own] for own in order]

        tokens = [{name: own[places] for name, own in each.items()} for each in turn.tokens]
        own = replace(
            turn,
            rows=ordered(turn.rows),
            slots=ordered(turn.slots),
            prefixes=ordered(turn.prefixes),
            counts=ordered(counts),
            verifies=[turn.verifies[own] for own in order],
            tokens=tokens,
        )
        return cls(own, sorted(range(len(places)), key=places.__getitem__))


def blocks_of(slot: int, num_each: int) -> Sequence[int]:
    """Return the blocks of a slot's states; the first block of all is of no slot."""
    first = 1 + (slot - 1) * num_each
    return range(first, first + num_each)


@dataclass(frozen=True, slots=True)
class TurnTensors:
    """The tensors of a batch on the device."""

    query_start_loc: Tensor
    """[B + 1] int32: where each request's tokens begin."""
    seq_lens: Tensor
    """[B] int32: tokens of each request, this forward's included."""
    block_table: Tensor
    """[B, N] int32."""
    num_accepted: Tensor
    """[B] int32: tokens of the last verify that each kept; 1 behind other forwards."""
    positions: Tensor
    """[T] int64."""

    def part(self, batch_size: int, num_tokens: int) -> TurnTensors:
        """Return the part that batches of one size fill."""
        return TurnTensors(
            self.query_start_loc[: batch_size + 1],
            self.seq_lens[:batch_size],
            self.block_table[:batch_size],
            self.num_accepted[:batch_size],
            self.positions[:num_tokens],
        )

    def load(self, own: TurnTensors) -> None:
        """Copy a batch of at most this size, and pad it: padding has no tokens. Sync: none."""
        count, num_tokens = len(own.seq_lens), len(own.positions)
        self.query_start_loc[: count + 1].copy_(own.query_start_loc)
        self.query_start_loc[count + 1 :].fill_(num_tokens)
        self.seq_lens.zero_()[:count].copy_(own.seq_lens)
        self.block_table.fill_(NULL_BLOCK)[:count].copy_(own.block_table)
        self.num_accepted.fill_(1)[:count].copy_(own.num_accepted)
        self.positions.zero_()[:num_tokens].copy_(own.positions)


def columns_of(turn: StateTurn, num_each: int, accepted: Sequence[int]) -> Sequence[Sequence[int]]:
    """Return the numbers of a turn that are copied to the device, as columns of one length.

    Args:
        turn: in vLLM's order.
        num_each: blocks of a request.
        accepted: [B] tokens that each request kept of its last verify.
    """
    ends = [sum(turn.counts[: place + 1]) for place in range(len(turn.counts))]
    lengths = [sum(both) for both in zip(turn.prefixes, turn.counts, strict=True)]
    blocks = [blocks_of(slot, num_each) for slot in turn.slots]
    return [ends, lengths, accepted, *([own[place] for own in blocks] for place in range(num_each))]


def positions_of(turn: StateTurn) -> Sequence[int]:
    """Return the place of each token in its request: [T]."""
    pairs = zip(turn.prefixes, turn.counts, strict=True)
    return [prefix + token for prefix, count in pairs for token in range(count)]


def tensors_of(columns: Tensor, positions: Tensor) -> TurnTensors:
    """Take apart the columns of a turn, [3 + N, B] int64, device. Sync: none."""
    ends, lengths, accepted = columns[:3].int().unbind()
    return TurnTensors(
        torch.cat([torch.zeros_like(ends[:1]), ends]),
        lengths,
        columns[3:].T.int().contiguous(),
        accepted,
        positions,
    )


def buffers_of(batch_size: int, num_tokens: int, num_each: int, device: str) -> TurnTensors:
    """Make the tensors at whose addresses a graph reads."""
    numbers = partial(torch.zeros, dtype=torch.int32, device=device)
    edges = torch.arange(batch_size + 1, dtype=torch.int32) * (num_tokens // batch_size)
    positions = torch.zeros(num_tokens, dtype=torch.int64, device=device)
    made = TurnTensors(
        numbers(batch_size + 1),
        numbers(batch_size),
        numbers(batch_size, num_each),
        numbers(batch_size),
        positions,
    )
    made.query_start_loc.copy_(edges)  # as vLLM does for a capture: requests of new tokens alone
    made.seq_lens.copy_(edges.diff())
    return made


def common_of(
    vllm: VLLM,
    own: TurnTensors,
    counts: Sequence[int],
    prefixes: Sequence[int],
    is_prefilling: Sequence[bool],
) -> SimpleNamespace:
    """Make the description of a batch that builders are called with.

    Args:
        vllm: its modules.
        own: the batch's tensors.
        counts: [B] tokens that each request brings, by the host.
        prefixes: [B] tokens before them.
        is_prefilling: [B] whether each is within its prompt.
    """
    edges = torch.tensor([0, *counts], dtype=torch.int32).cumsum(0, dtype=torch.int32)
    bounds = torch.tensor([sum(both) for both in zip(prefixes, counts, strict=True)])
    made: SimpleNamespace = vllm.attention.CommonAttentionMetadata(
        query_start_loc=own.query_start_loc,
        query_start_loc_cpu=edges,
        seq_lens=own.seq_lens,
        num_reqs=len(own.seq_lens),
        num_actual_tokens=len(own.positions),
        max_query_len=max(counts),
        max_seq_len=int(bounds.max()),
        block_table_tensor=own.block_table,
        slot_mapping=torch.zeros_like(own.positions),
        positions=own.positions,
        seq_lens_cpu_upper_bound=bounds.int(),
        is_prefilling=torch.tensor(is_prefilling),
    )
    return made


def prefills_of(turn: StateTurn) -> Sequence[bool]:
    """Return which requests are within their prompts: [B]."""
    if turn.is_uniform:
        return [False] * len(turn.counts)
    together = zip(turn.counts, turn.prefixes, turn.verifies, strict=True)
    return [not own and (count > 1 or not prefix) for count, prefix, own in together]
