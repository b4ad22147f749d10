"""The way out: what a prompt left on the device is copied to the host, behind its forward.

It is read on the forward stream: that stream alone writes to slots and rows that are given out
again, and the request's may be as soon as the reads are enqueued. It crosses on a stream of its
own, so that no step's tokens wait for it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

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


@dataclass(slots=True, kw_only=True)
class _Crossing:
    """States on their way to the host."""

    on_device: PromptStates | None
    """Read by the copy until `copied`; None from then on."""
    slots: Tensor | None
    """Read by the forward stream until then."""
    on_host: PromptStates
    """Nothing until `copied`."""
    copied: EventLike

    def let_go(self) -> None:
        """Free the device's side."""
        self.on_device = self.slots = None


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
        Sync: none. Allocates: the states, on both sides.
        """
        self._let_go()
        num_tokens = len(request.prefill)
        row = self._staging.upload(((request.row,),))[0]
        slots = self._caches.slots(row, num_tokens)
        self._on.forward.wait_stream(self._on.schedule)
        with self._streams.using(self._on.forward):
            states = self._with_draft_state(self._caches.load(slots, num_tokens), row)
        copied = self._streams.event()
        self._transfer.wait_stream(self._on.forward)
        with self._streams.using(self._transfer):
            on_host = states.mapped(self._staging.to_host)
            copied.record(self._transfer)
        self._crossings[request] = _Crossing(
            on_device=states, slots=slots, on_host=on_host, copied=copied
        )

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
            states=crossing.on_host,
            model=self._caches.model,
            draft_model=self._caches.draft_model,
        )

    def drop(self, request: Request) -> None:
        """Forget what nobody asks for any more. Sync: the copy, where there is one."""
        crossing = self._crossings.pop(request, None)
        if crossing is not None:
            crossing.copied.synchronize()

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

    def _let_go(self) -> None:
        """Free the device's side of what has crossed."""
        for crossing in self._crossings.values():
            if crossing.on_device is not None and crossing.copied.query():
                crossing.let_go()


def _only(values: Tensor | None) -> Tensor | None:
    """Return the one row of [1, ...]."""
    return None if values is None else values.squeeze(0)
