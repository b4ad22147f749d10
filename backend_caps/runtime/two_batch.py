"""Two-batch overlap (TBO): a batch cut into two halves, whose layers take turns.

While one half of a batch waits for what other ranks compute, the other half can run. This engine
has one rank, so here nothing waits and nothing is won: the halves, the two backend objects and the
order of the layers are what such a server has, and so is what has to be known on the host.

Shapes: B requests and T tokens in the batch, M entries in its tree mask, H features of a token, V
tokens in the vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from backend_caps.capability.kind import Phase
from backend_caps.runtime.attention import ForwardContext, PhaseBackends
from backend_caps.runtime.errors import TwoBatchLengthsError
from backend_caps.runtime.forward_batch import ForwardBatch
from backend_caps.runtime.model import DecoderLayer, LlamaModel


@dataclass(frozen=True, slots=True, kw_only=True)
class _Half:
    """Where one half of a batch stands in the whole."""

    requests: slice
    tokens: slice
    mask: slice
    """Its entries of the tree mask."""
    seq_lens_sum: int

    def of(self, batch: ForwardBatch) -> ForwardBatch:
        """Cut the half out of its batch."""
        lasts, starts_at = _cut(batch.last_token_indices, self.requests), self.tokens.start
        return replace(
            batch,
            input_ids=batch.input_ids[self.tokens],
            positions=batch.positions[self.tokens],
            req_pool_indices=batch.req_pool_indices[self.requests],
            seq_lens=batch.seq_lens[self.requests],
            out_cache_loc=batch.out_cache_loc[self.tokens],
            seq_lens_cpu=_cut(batch.seq_lens_cpu, self.requests),
            seq_lens_sum=self.seq_lens_sum,
            seq_lens_cpu_upper_bound=_cut(batch.seq_lens_cpu_upper_bound, self.requests),
            extend_seq_lens=_cut(batch.extend_seq_lens, self.requests),
            extend_prefix_lens=_cut(batch.extend_prefix_lens, self.requests),
            extend_seq_lens_cpu=_cut_numbers(batch.extend_seq_lens_cpu, self.requests),
            extend_prefix_lens_cpu=_cut_numbers(batch.extend_prefix_lens_cpu, self.requests),
            last_token_indices=lasts if lasts is None or not starts_at else lasts - starts_at,
            sampling=None,
            tree_mask=_cut(batch.tree_mask, self.mask),
        )


def split(batch: ForwardBatch) -> tuple[ForwardBatch, ForwardBatch] | None:
    """Cut a batch in two by the number of its requests; below two there is nothing to cut.

    Of an odd number the second half has one more. Where the tokens, the tree mask and the sums of
    the lengths are cut is known from host lengths alone: asking the device would wait for it.
    Tokens are chosen of the whole batch, so neither half has `sampling`.

    Stream: the current one. Sync: none. Allocates: the second half's `last_token_indices`; all
    else are views. Keeps: nothing.

    Raises:
        TwoBatchLengthsError: the batch lacks host lengths.
    """
    num_first = batch.batch_size // 2
    if not num_first:
        return None
    num_tokens = _tokens_before(batch, num_first)
    lengths = _host_lengths(batch)
    sums = sum(lengths[:num_first]), sum(lengths[num_first:])
    num_masked = _entries_before(batch, sums)
    first = _Half(
        requests=slice(0, num_first),
        tokens=slice(0, num_tokens),
        mask=slice(0, num_masked),
        seq_lens_sum=sums[0],
    )
    second = _Half(
        requests=slice(num_first, None),
        tokens=slice(num_tokens, None),
        mask=slice(num_masked, None),
        seq_lens_sum=sums[1],
    )
    return first.of(batch), second.of(batch)


class TwoBatchRunner:
    """Run a model over both halves of each batch, one layer of either in turn.

    It is for eager forwards: a graph has the halves of its capture.

    Args:
        model: the model.
        backends: its attention, once for each half, of the same uses: what a backend prepares is
            one forward's, so one object cannot serve two halves that are both under way.
    """

    def __init__(self, model: LlamaModel, backends: tuple[PhaseBackends, PhaseBackends]) -> None:
        self._model = model
        self._backends = backends

    def __call__(self, batch: ForwardBatch, phase: Phase) -> Tensor:
        """Score what may come after each request's last token, or after every token.

        returns  [B, V] float32, device  [T, V] where the batch has no `last_token_indices`

        Stream: the current one. Sync: none, where the backends declare `sync_free_prepare`.
        Allocates: the result and what lies between. Keeps: nothing, but keys and values in the KV
        cache.

        Raises:
            TwoBatchLengthsError: the batch lacks host lengths.
            UnservedPhaseError: nobody serves the phase.
        """
        hidden = self.hidden_states(batch, phase)
        if batch.last_token_indices is not None:
            hidden = hidden.index_select(0, batch.last_token_indices)
        return self._model.lm_head(hidden)

    def hidden_states(self, batch: ForwardBatch, phase: Phase) -> Tensor:
        """Compute all but the LM head, tokens in the batch's order.

        returns  [T, H] device

        A batch of one request runs whole, on the first half's backends.

        Stream: the current one. Sync: none, where the backends declare `sync_free_prepare`.
        Allocates: the result and what lies between. Keeps: nothing, but keys and values in the KV
        cache.

        Raises:
            TwoBatchLengthsError: the batch lacks host lengths.
            UnservedPhaseError: nobody serves the phase.
        """
        halves = split(batch) or (batch,)
        lanes = [
            _Lane(self._model, backends, half, phase)
            for backends, half in zip(self._backends, halves, strict=False)
        ]
        for layer in self._model.layers:
            for lane in lanes:
                lane.run(layer)
        return torch.cat([self._model.norm(lane.hidden) for lane in lanes])


class _Lane:
    """One half on its way through the layers."""

    def __init__(
        self, model: LlamaModel, backends: PhaseBackends, half: ForwardBatch, phase: Phase
    ) -> None:
        backend = backends.of(phase)
        backend.init_forward_metadata(half)
        self._context = ForwardContext(backend, half)
        self._rotation = model.rotary.look_up(half.positions)
        self.hidden = model.embedding(half.input_ids)
        """[T, H] device: what the next layer takes."""

    def run(self, layer: DecoderLayer) -> None:
        """Compute the next layer."""
        self.hidden = layer(self.hidden, self._rotation, self._context)


def _tokens_before(batch: ForwardBatch, num_requests: int) -> int:
    """Count the tokens of the batch's first requests."""
    if batch.extend_seq_lens is None:
        return num_requests * (batch.num_tokens // batch.batch_size)
    if batch.extend_seq_lens_cpu is None:
        raise _lacks(batch, "extend_seq_lens_cpu", "where its tokens are cut")
    return sum(batch.extend_seq_lens_cpu[:num_requests])


def _entries_before(batch: ForwardBatch, sums: tuple[int, int]) -> int:
    """Count the entries of the tree mask that are the first half's."""
    if batch.tree_mask is None:
        return 0
    assert batch.extend_seq_lens is None, "with a tree mask all bring the same number of tokens"
    num_tokens, num_entries = batch.num_tokens // batch.batch_size, batch.tree_mask.shape[0]
    assert num_tokens * sum(sums) <= num_entries, (
        f"{num_tokens} tokens a request and contexts of {sum(sums)} in all need a tree mask of "
        f"{num_tokens * sum(sums)} entries; this one has {num_entries}"
    )
    return num_tokens * sums[0]


def _host_lengths(batch: ForwardBatch) -> list[int]:
    if batch.seq_lens_cpu is None:
        wanted = "the sum of each half's lengths"
        if batch.tree_mask is not None:
            wanted = f"where its tree mask is cut, and {wanted}"
        raise _lacks(batch, "seq_lens_cpu", wanted)
    lengths: list[int] = batch.seq_lens_cpu.tolist()
    return lengths


def _lacks(batch: ForwardBatch, field: str, wanted: str) -> TwoBatchLengthsError:
    return TwoBatchLengthsError(
        mode=batch.mode.value, batch_size=batch.batch_size, field=field, wanted=wanted
    )


def _cut(tensor: Tensor | None, part: slice) -> Tensor | None:
    return None if tensor is None else tensor[part]


def _cut_numbers(numbers: tuple[int, ...] | None, part: slice) -> tuple[int, ...] | None:
    return None if numbers is None else numbers[part]
