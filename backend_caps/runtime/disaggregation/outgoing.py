"""The way out: what a prompt left on the device is copied to the host, behind its forward.

It is read on the forward stream: that stream alone writes to slots and rows that are given out
again, and the request's may be as soon as the reads are enqueued. It crosses on a stream of its
own, so that no step's tokens wait for it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from typing import NamedTuple

from torch import Tensor

from backend_caps.relay import FutureMap
from backend_caps.relay.streams import EventLike, StepStreams, StreamLike
from backend_caps.runtime.batch import ScheduleBatch
from backend_caps.runtime.disaggregation.caches import PromptCaches
from backend_caps.runtime.disaggregation.handover import Handover
from backend_caps.runtime.disaggregation.states import PromptStates
from backend_caps.runtime.request import Request, Sampling
from backend_caps.runtime.speculative.state import DraftState
from backend_caps.runtime.staging import Staging


class _Crossing(NamedTuple):
    """States on their way to the host."""

    states: PromptStates
    """On the host; nothing until `copied`."""
    copied: EventLike


class Outgoing:
    """Bring what prompts left to the host.

    Args:
        caches: where it is.
        relay: has the draft's state.
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
        self._crossings: dict[Request, _Crossing] = {}

    def send(self, request: Request) -> None:
        """Enqueue the copy of what a prompt left; then its row and pages may be given back.

        Stream: the current one must be the schedule stream; the copy is on one of its own.
        Sync: none. Allocates: the states, on both sides, pinned on the host: memory that torch has
        to pin for it takes this thread the time to lock its pages, some GiB a second.
        Keeps: what it reads, until the copy is done.
        """
        num_tokens = len(request.prefill)
        row = self._staging.upload(((request.row,),))[0]
        slots = self._caches.slots(row, num_tokens)
        self._on.forward.wait_stream(self._on.schedule)
        with self._streams.using(self._on.forward):
            states = self._with_draft_state(self._caches.load(slots, num_tokens), row)
            for lent in (row, slots):
                self._streams.keep_alive(lent)
        copied = self._streams.event()
        self._transfer.wait_stream(self._on.forward)
        with self._streams.using(self._transfer):
            on_host = states.mapped(self._staging.to_host)
            for own in states.tensors.values():
                self._streams.keep_alive(own)
            copied.record(self._transfer)
        self._crossings[request] = _Crossing(on_host, copied)

    def handovers(
        self,
        requests: Sequence[Request],
        sampling: Sampling,
        *,
        step: Callable[[], object],
        abort: Callable[[Request], None],
    ) -> Generator[Handover]:
        """Return what each prompt left, as soon as it has run.

        Args:
            requests: of one token each; those that have not run at the end are given up.
            sampling: of their whole outputs.
            step: runs the engine's next step.
            abort: gives a request up.
        """
        try:
            for request in requests:
                while not request.is_finished:
                    step()
                yield self.received(request, sampling)
        finally:
            for request in requests:
                abort(request)
                self._crossings.pop(request, None)

    def received(self, request: Request, sampling: Sampling) -> Handover:
        """Return what another engine goes on from.

        Sync: the copy of what the prompt left, and so the forwards before it.

        Args:
            request: its prompt has run, and its first token is made.
            sampling: of the whole output.
        """
        crossing = self._crossings.pop(request)
        crossing.copied.synchronize()
        return Handover(
            prompt=request.prompt,
            sampling=sampling,
            token=request.output[0],
            states=crossing.states,
            model=self._caches.model,
            draft_model=self._caches.draft_model,
        )

    def _with_draft_state(self, states: PromptStates, row: Tensor) -> PromptStates:
        """Add what a draft model left in the relay, as the next step would find it.

        row  [1] int64, device
        """
        if self._caches.draft is None:
            return states
        batch = ScheduleBatch.empty(self._caches.memory, self._staging)
        left = DraftState()
        batch.req_pool_indices, batch.spec_info = row, left
        self._relay.resolve_future(batch)
        return replace(
            states,
            topk_p=_only(left.topk_p),
            topk_index=_only(left.topk_index),
            hidden_states=_only(left.hidden_states),
        )


def _only(values: Tensor | None) -> Tensor | None:
    """Return the one row of [1, ...]."""
    return None if values is None else values.squeeze(0)
