"""Disaggregated prefill and decode: prompts that run in one engine go on in another.

An engine of mode `prefill` makes one token a request, and no decode step. What a prompt left is
read on the forward stream: that stream alone writes to slots and rows that are given out again, and
the request's may be as soon as the reads are enqueued. It crosses to the host on a stream of its
own, so that no step's tokens wait for it.

An engine of mode `decode` runs no prompt that comes to it, so that its steps stay short; only what
it has retracted it runs anew. Slots and row of a request that comes in may be those of one that has
just left, which a forward under way still reads and writes. So the copy is behind all that the
forward stream has, and all that it is given next is behind the copy.

Shapes: as in `runtime.request`; B requests in a batch, S tokens that a request has slots for.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import NamedTuple

import torch
from torch import Tensor

from backend_caps.relay import FutureMap, RelayPayload
from backend_caps.relay.streams import EventLike, StepStreams
from backend_caps.runtime.batch import ForwardMode, ScheduleBatch
from backend_caps.runtime.errors import EngineError
from backend_caps.runtime.memory import Layout, RequestMemory, TokenToKVPool
from backend_caps.runtime.model.config import LlamaConfig
from backend_caps.runtime.model.layers import Weighted
from backend_caps.runtime.request import PromptStates, Request, Sampling
from backend_caps.runtime.speculative.drafter import DraftState
from backend_caps.runtime.staging import Staging


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Handover:
    """A request whose prompt has run. All of it is on the host; it can be pickled."""

    prompt: tuple[int, ...]
    """Its tokens."""
    sampling: Sampling
    """How its tokens are chosen, and when they end."""
    token: int
    """The first token of its output, which the prompt's forward made."""
    states: PromptStates
    """What its next step reads."""
    model: str
    """The fingerprint of the model that ran it."""
    draft_model: str | None
    """The fingerprint of the model that drafts; None where none does."""


_SAMPLES = 256
"""Numbers of each weight that are read: 75,000 of a model of 7B, of which others share few."""


def fingerprint(config: LlamaConfig, model: Weighted) -> str:
    """Digest what a model computes: its shape, and some numbers of each of its weights.

    Two models that differ in fewer numbers than lie between two samples may have the same.

    Sync: the device.
    """
    digest = sha256(config.model_dump_json().encode())
    samples: list[Tensor] = []
    for name, weight in model.named_weights():
        digest.update(f"{name} {tuple(weight.shape)} {weight.dtype}".encode())
        samples.append(weight.flatten()[:: max(1, weight.numel() // _SAMPLES)].to(torch.float32))
    numbers = torch.cat(samples).to("cpu").contiguous()
    digest.update(bytes(numbers.view(torch.uint8).tolist()))
    return digest.hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptCaches:
    """Where keys and values of prompts stand, and of which models they are."""

    memory: RequestMemory
    target: TokenToKVPool
    draft: TokenToKVPool | None
    """The cache of the model that drafts, in the same slots; None where none does."""
    num_slots_behind: int
    """Tokens behind a prompt that the draft has read."""
    model: str
    """The target's fingerprint."""
    draft_model: str | None
    """The fingerprint of the model that drafts."""

    def layouts(self, num_tokens: int) -> Mapping[str, Layout]:
        """Return the layouts of keys and values of a prompt of so many tokens, by name."""
        found = dict(zip(("keys", "values"), self.target.layouts(num_tokens), strict=True))
        if self.draft is not None:
            drafted = self.draft.layouts(num_tokens + self.num_slots_behind)
            found |= zip(("draft_keys", "draft_values"), drafted, strict=True)
        return found

    def slots(self, row: Tensor, num_tokens: int) -> Tensor:
        """Look up the slots of a prompt, and of what a draft has read behind it.

        row         [1] int64, device  the request's
        num_tokens  T
        returns     [S] int64, device

        Stream: the current one, which must be the schedule stream. Sync: none.
        """
        size = num_tokens + self.num_slots_behind
        positions = torch.arange(size, device=row.device)
        return self.memory.slots_of(row.expand(size), positions)

    def load(self, slots: Tensor, num_tokens: int) -> PromptStates:
        """Read the keys and values of a prompt into memory of their own.

        slots       [S] int64, device
        num_tokens  T

        Stream: the current one, which must be the forward stream. Sync: none.
        """
        keys, values = self.target.load(slots[:num_tokens])
        draft_keys, draft_values = (None, None) if self.draft is None else self.draft.load(slots)
        return PromptStates(
            keys=keys, values=values, draft_keys=draft_keys, draft_values=draft_values
        )

    def store(self, slots: Tensor, states: PromptStates) -> None:
        """Write the keys and values of a prompt to its slots.

        slots   [S] int64, device
        states  device

        Stream: the current one, behind all that was given to the forward stream. Sync: none.
        Keeps: nothing; all is copied from.
        """
        self.target.store(slots[: states.keys.shape[1]], states.keys, states.values)
        if self.draft is not None:
            assert states.draft_keys is not None, "a handover that fits has them"
            assert states.draft_values is not None, "a handover that fits has them"
            self.draft.store(slots, states.draft_keys, states.draft_values)

    def misfits(self, handover: Handover, layouts: Mapping[str, Layout]) -> Iterator[str]:
        """List what a handover has otherwise than `layouts` and the models here.

        What is not read may be there: states of a draft, where the engine does not speculate.
        """
        if handover.model != self.model:
            yield f"it is of model {handover.model[:12]}, and the engine has {self.model[:12]}"
        if self.draft_model is not None and handover.draft_model != self.draft_model:
            of = "none" if handover.draft_model is None else handover.draft_model[:12]
            yield f"its draft model is {of}, and the engine has {self.draft_model[:12]}"
        for name, (shape, dtype) in layouts.items():
            own = handover.states.tensors.get(name)
            if own is None:
                yield f"it has no {name}"
                continue
            if own.device.type != "cpu":
                yield f"its {name} are on {own.device}, and not on the host"
            if tuple(own.shape) != shape:
                yield f"its {name} have shape {tuple(own.shape)} instead of {shape}"
            if own.dtype is not dtype:
                yield f"its {name} are {own.dtype} instead of {dtype}"


class _Crossing(NamedTuple):
    """States on their way to the host."""

    states: PromptStates
    """On the host; nothing until `copied`."""
    copied: EventLike


class PromptTransfer:
    """Copy what prompts left to the host, or from the host into rows and slots of requests.

    Args:
        mode: the flags' `--disaggregation-mode`: `prefill` sends, `decode` receives.
        caches: where prompts stand.
        relay: has the draft's state, and takes what the next step starts from.
        staging: carries host numbers to the device.
        step_streams: the streams of steps.
    """

    def __init__(
        self,
        *,
        mode: str,
        caches: PromptCaches,
        relay: FutureMap,
        staging: Staging,
        step_streams: StepStreams,
    ) -> None:
        self.sends = mode == "prefill"
        """Whether prompts leave; else they come in."""
        self._caches = caches
        self._relay = relay
        self._staging = staging
        self._streams = staging.streams
        self._on = step_streams
        self._transfer = self._streams.private_stream()
        self._crossings: dict[Request, _Crossing] = {}

    def send(self, request: Request) -> None:
        """Enqueue the copy of what a prompt left; then its row and pages may be given back.

        Stream: the current one must be the schedule stream; the copy is on one of its own.
        Sync: none. Allocates: the states, on both sides, pinned on the host: memory that torch has
        to pin for it takes this thread the time to lock its pages, some GiB a second.
        Keeps: what it reads, until the copy is done.
        """
        row = self._staging.upload(((request.row,),))[0]
        slots = self._caches.slots(row, len(request.prefill))
        self._on.forward.wait_stream(self._on.schedule)
        with self._streams.using(self._on.forward):
            states = self._with_draft_state(self._caches.load(slots, len(request.prefill)), row)
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

    def fitting(self, handover: Handover) -> PromptStates:
        """Return what this engine reads of a handover.

        Raises:
            EngineError: `handover`: it cannot go on with it, for all the reasons that are named.
        """
        layouts = dict(self._caches.layouts(len(handover.prompt)))
        for field in self._relay.layout.draft:
            layouts[field.name] = field.row_shape, field.dtype
        if problems := "; ".join(self._caches.misfits(handover, layouts)):
            raise EngineError(
                "handover",
                f"the handover does not fit this engine: {problems}. The states of the same "
                f"models were expected, in the same dtypes. Make both engines from the same "
                f"folders, with the same --kv-cache-dtype and speculative flags.",
            )
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
            arrived = [
                own.states.mapped(self._staging.carry) for own in requests if own.states is not None
            ]
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
        numbers = self._staging.upload((rows, lengths, [own.output[-1] for own in requests]))
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
        fields = self._relay.layout.draft
        return replace(states, **{own.name: getattr(left, own.name)[0] for own in fields})


def _payload(tokens: Tensor, arrived: Sequence[PromptStates]) -> RelayPayload:
    """Make what the relay takes: tokens [B], and what there is of a draft's states.

    A field is in none of the requests' states, or in each.
    """
    payload = RelayPayload(tokens)
    for name in ("topk_p", "topk_index", "hidden_states"):
        if name in arrived[0].tensors:
            setattr(payload, name, torch.stack([own.tensors[name] for own in arrived]))
    return payload
