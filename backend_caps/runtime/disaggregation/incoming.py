"""The way in: a prompt that ran elsewhere is put into the slots and the row of a request.

The slots and the row may be those of a request that has just left, which a forward under way still
reads and writes. So the copy is behind all that the forward stream has, and all that it is given
next is behind the copy. Only the crossing from the host, into memory that is nobody's, is before.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from backend_caps.relay import FutureMap, RelayPayload
from backend_caps.relay.streams import StepStreams, StreamLike
from backend_caps.runtime.batch import ForwardMode, ScheduleBatch
from backend_caps.runtime.disaggregation.caches import PromptCaches
from backend_caps.runtime.disaggregation.errors import HandoverMisfitError
from backend_caps.runtime.disaggregation.handover import Handover, misfits
from backend_caps.runtime.disaggregation.states import PromptStates
from backend_caps.runtime.request import Request
from backend_caps.runtime.staging import Staging


class Incoming:
    """Let requests run whose prompts ran in another engine.

    Args:
        caches: where the prompts go.
        relay: takes what the next step starts from.
        staging: carries host numbers to the device.
        step_streams: the streams of steps.
        transfer: a stream of its own.
    """

    def __init__(
        self,
        *,
        caches: PromptCaches,
        relay: FutureMap,
        staging: Staging,
        step_streams: StepStreams,
        transfer: StreamLike,
    ) -> None:
        self._caches = caches
        self._relay = relay
        self._staging = staging
        self._streams = staging.streams
        self._on = step_streams
        self._transfer = transfer

    def fitting(self, handover: Handover) -> PromptStates:
        """Return what this engine reads of a handover.

        Raises:
            HandoverMisfitError: it cannot go on with it, for all the reasons that are named.
        """
        caches = self._caches
        layouts = dict(caches.layouts(len(handover.prompt)))
        for field in self._relay.layout.draft:
            layouts[field.name] = field.row_shape, field.dtype
        if problems := tuple(misfits(handover, layouts, caches.model, caches.draft_model)):
            raise HandoverMisfitError(problems=problems)
        return handover.states.only(layouts)

    def enter(self, requests: Sequence[Request]) -> ScheduleBatch:
        """Give requests their prompts, and return a batch of them, to be merged.

        Each has a row. Steps that are launched from now on find all of it.

        Stream: the current one must be the schedule stream; the copy is on one of its own, which
        waits for schedule and forward stream, and for which the forward stream waits.
        Sync: none. Allocates: the states, on the device, and on the host where they are not pinned:
        memory that torch has to pin for it takes this thread the time to lock its pages.

        Raises:
            OutOfPagesError: the KV cache is too full; nothing has changed.
        """
        batch, numbers = self._batch_of(requests)
        slots = [
            self._caches.slots(numbers[0, place : place + 1], len(own.prefill))
            for place, own in enumerate(requests)
        ]
        self._transfer.wait_stream(self._on.schedule)
        with self._streams.using(self._transfer):
            arrived = [_states_of(own).mapped(self._staging.carry) for own in requests]
            self._transfer.wait_stream(self._on.forward)
            for own, states in zip(slots, arrived, strict=True):
                self._caches.store(own, states)
            self._tell_relay(batch, _payload(numbers[2], arrived))
            for lent in (numbers, *slots):
                self._streams.keep_alive(lent)
        for request in requests:
            request.states = None
        return batch

    def _tell_relay(self, batch: ScheduleBatch, payload: RelayPayload) -> None:
        """Give the relay what the next step starts from, and put the forward stream behind it.

        Outside speculation lengths stay with the batch: the relay carries tokens alone.
        """
        rows, forward = batch.req_pool_indices, self._on.forward
        if self._relay.speculative:
            self._relay.bootstrap(rows, batch.seq_lens, payload, forward_stream=forward)
            return
        self._relay.stash(rows, payload)
        forward.wait_stream(self._transfer)

    def _batch_of(self, requests: Sequence[Request]) -> tuple[ScheduleBatch, Tensor]:
        """Give requests their pages, and make a batch of them.

        returns  the batch
                 [3, B] int64, device  rows, lengths and tokens
        """
        memory = self._caches.memory
        rows = [request.row for request in requests]
        lengths = [len(request.prefill) for request in requests]
        memory.grow(rows, [length + self._caches.num_slots_behind for length in lengths])
        tokens = [request.output[-1] for request in requests]
        numbers = self._staging.upload((rows, lengths, tokens))
        batch = ScheduleBatch(
            memory=memory,
            staging=self._staging,
            mode=ForwardMode.EXTEND,
            requests=tuple(requests),
            generations=tuple(request.generation for request in requests),
            req_pool_indices=numbers[0],
            req_pool_indices_cpu=torch.tensor(rows),
            seq_lens=numbers[1],
            seq_lens_cpu=torch.tensor(lengths),
            seq_lens_sum=sum(lengths),
            samples=(True,) * len(requests),
        )
        return batch, numbers


def _states_of(request: Request) -> PromptStates:
    assert request.states is not None, "only requests whose prompt ran elsewhere come in here"
    return request.states


def _payload(tokens: Tensor, arrived: Sequence[PromptStates]) -> RelayPayload:
    """Make what the relay takes: tokens [B], and what there is of a draft's states."""
    return RelayPayload(
        tokens,
        topk_p=_stacked([own.topk_p for own in arrived]),
        topk_index=_stacked([own.topk_index for own in arrived]),
        hidden_states=_stacked([own.hidden_states for own in arrived]),
    )


def _stacked(of_each: Sequence[Tensor | None]) -> Tensor | None:
    """Put what each request has below each other; none has it, or each."""
    there = [own for own in of_each if own is not None]
    return torch.stack(there) if there else None
