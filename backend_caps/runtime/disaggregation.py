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
from dataclasses import dataclass, field
from hashlib import sha256

import torch
from torch import Tensor

from backend_caps.relay import RelayPayload
from backend_caps.relay.streams import EventLike, StreamLike
from backend_caps.runtime.batch import ScheduleBatch
from backend_caps.runtime.errors import EngineError
from backend_caps.runtime.memory import Layout, Resources, TokenToKVPool
from backend_caps.runtime.model.config import LlamaConfig
from backend_caps.runtime.model.layers import Weighted
from backend_caps.runtime.request import PromptStates, Request, Sampling
from backend_caps.runtime.speculative.drafter import DraftState


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


@dataclass(slots=True, kw_only=True, eq=False)
class PromptTransfer:
    """Copy what prompts left to the host, or from the host into rows and slots of requests."""

    sends: bool
    """Whether prompts leave (`--disaggregation-mode prefill`); else they come in."""
    resources: Resources
    """The engine's, with the KV cache of prompts."""
    draft: TokenToKVPool | None
    """The cache of the model that drafts, in the same slots; None where none does."""
    num_slots_behind: int
    """Tokens behind a prompt that the draft has read."""
    model: str
    """The target's fingerprint."""
    draft_model: str | None
    """The fingerprint of the model that drafts."""
    _transfer: StreamLike = field(init=False)
    _crossings: dict[Request, tuple[PromptStates, EventLike]] = field(default_factory=dict)
    """States on their way to the host: nothing until the event."""

    def __post_init__(self) -> None:
        self._transfer = self.resources.streams.private_stream()

    def send(self, request: Request) -> None:
        """Enqueue the copy of what a prompt left; then its row and pages may be given back.

        Stream: the current one must be the schedule stream; the copy is on one of its own.
        Sync: none. Allocates: the states, on both sides, pinned on the host: memory that torch has
        to pin for it takes this thread the time to lock its pages, some GiB a second.
        Keeps: what it reads, until the copy is done.
        """
        streams, step_streams = self.resources.streams, self.resources.step_streams
        row = self.resources.staging.upload(((request.row,),))[0]
        slots = self._slots(row, len(request.prefill))
        step_streams.forward.wait_stream(step_streams.schedule)
        with streams.using(step_streams.forward):
            states = self._load(slots, len(request.prefill), row)
            for read in (row, slots):
                streams.keep_alive(read)
        copied = streams.event()
        self._transfer.wait_stream(step_streams.forward)
        with streams.using(self._transfer):
            on_host = states.mapped(self.resources.staging.to_host)
            for own in states.tensors.values():
                streams.keep_alive(own)
            copied.record(self._transfer)
        self._crossings[request] = on_host, copied

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
        states, copied = self._crossings.pop(request)
        copied.synchronize()
        return Handover(
            prompt=request.prompt,
            sampling=sampling,
            token=request.output[0],
            states=states,
            model=self.model,
            draft_model=self.draft_model,
        )

    def fitting(self, handover: Handover) -> PromptStates:
        """Return what this engine reads of a handover.

        Raises:
            EngineError: `handover`: it cannot go on with it, for all the reasons that are named.
        """
        layouts: dict[str, Layout] = {}
        for names, cache, size in self._caches(len(handover.prompt)):
            layouts |= zip(names, cache.layouts(size), strict=True)
        draft_state = self.resources.relay.layout.draft
        layouts |= {own.name: (own.row_shape, own.dtype) for own in draft_state}
        if problems := "; ".join(self._misfits(handover, layouts)):
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
        streams, step_streams = self.resources.streams, self.resources.step_streams
        batch, numbers = self._batch_of(requests)
        slots = [
            self._slots(numbers[0, place : place + 1], len(own.prefill))
            for place, own in enumerate(requests)
        ]
        self._transfer.wait_stream(step_streams.schedule)
        with streams.using(self._transfer):
            carry = self.resources.staging.carry
            taken = [own.states.mapped(carry).tensors for own in requests if own.states is not None]
            self._transfer.wait_stream(step_streams.forward)
            for request, own, states in zip(requests, slots, taken, strict=True):
                for (keys, values), cache, size in self._caches(len(request.prefill)):
                    cache.store(own[:size], states[keys], states[values])
            self._pass_on(batch, numbers[2], taken)
            for read in (numbers, *slots):
                streams.keep_alive(read)
        for request in requests:
            request.states = None
        return batch

    def _pass_on(
        self, batch: ScheduleBatch, tokens: Tensor, arrived: Sequence[Mapping[str, Tensor]]
    ) -> None:
        """Give the relay what the next step starts from, and put the forward stream behind it.

        tokens  [B] int64, device

        Outside speculation lengths stay with the batch: the relay carries tokens alone. A field of
        a draft's state is in none of the requests' states, or in each.
        """
        relay, forward = self.resources.relay, self.resources.step_streams.forward
        draft_state = {
            name: torch.stack([own[name] for own in arrived])
            for name in ("topk_p", "topk_index", "hidden_states")
            if name in arrived[0]
        }
        rows, payload = batch.req_pool_indices, RelayPayload(tokens, **draft_state)
        if relay.speculative:
            relay.bootstrap(rows, batch.seq_lens, payload, forward_stream=forward)
            return
        relay.stash(rows, payload)
        forward.wait_stream(self._transfer)

    def _batch_of(self, requests: Sequence[Request]) -> tuple[ScheduleBatch, Tensor]:
        """Give requests their pages, and make a batch of them.

        returns  the batch
                 [3, B] int64, device  rows, lengths and tokens
        """
        memory, rows = self.resources.memory, [request.row for request in requests]
        lengths = [len(request.prefill) for request in requests]
        memory.grow(rows, [length + self.num_slots_behind for length in lengths])
        numbers = memory.staging.upload((rows, lengths, [own.output[-1] for own in requests]))
        batch = ScheduleBatch.of_requests(memory, requests, lengths, numbers[0], numbers[1])
        return batch, numbers

    def _caches(self, num_tokens: int) -> Iterator[tuple[tuple[str, str], TokenToKVPool, int]]:
        """List the KV caches of a prompt of so many tokens.

        Yields:
            The names of a cache's keys and values in `PromptStates`, the cache, and its tokens.
        """
        yield ("keys", "values"), self.resources.pools.token_to_kv_pool, num_tokens
        if self.draft is not None:
            yield ("draft_keys", "draft_values"), self.draft, num_tokens + self.num_slots_behind

    def _slots(self, row: Tensor, num_tokens: int) -> Tensor:
        """Look up the slots of a prompt, and of what a draft has read behind it.

        row         [1] int64, device  the request's
        num_tokens  T
        returns     [S] int64, device

        Stream: the current one, which must be the schedule stream. Sync: none.
        """
        size = num_tokens + self.num_slots_behind
        positions = torch.arange(size, device=row.device)
        return self.resources.memory.slots_of(row.expand(size), positions)

    def _load(self, slots: Tensor, num_tokens: int, row: Tensor) -> PromptStates:
        """Read what a prompt left into memory of its own, as the next step would find it.

        slots       [S] int64, device
        num_tokens  T
        row         [1] int64, device

        Stream: the current one, which must be the forward stream. Sync: none.
        """
        states: dict[str, Tensor] = {}
        for names, cache, size in self._caches(num_tokens):
            states |= zip(names, cache.load(slots[:size]), strict=True)
        if self.draft is not None:
            batch, left = ScheduleBatch.empty(self.resources.memory), DraftState()
            batch.req_pool_indices, batch.spec_info = row, left
            self.resources.relay.resolve_future(batch)
            fields = self.resources.relay.layout.draft
            states |= {own.name: getattr(left, own.name)[0] for own in fields}
        return PromptStates(**states)

    def _misfits(self, handover: Handover, layouts: Mapping[str, Layout]) -> Iterator[str]:
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
