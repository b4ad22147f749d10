"""An overlapped speculative loop that drives either FutureMap: ours, or SGLang 0.5.13's own.

The relay is real. Verify and draft-extend are made up from all that it carries, so that two relays
which carry the same give the same tokens. What the loop launches by itself is the same beside any
relay; `NoRelay` shows how much that is.

Shapes: P rows in the request pool, B requests in the batch, K draft candidates, H hidden features.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import Generic, Protocol, TypeVar, cast

import torch
from torch import Tensor

from backend_caps import HostSeqLens
from backend_caps.relay import DeviceStreams, DraftShape, FutureMap, RelayPayload, StepStreams
from backend_caps.relay.streams import EventLike, StreamLike
from backend_caps.simulator import SimTensor
from backend_caps.simulator.operators import blocks_of
from backend_caps.simulator.queues import Op
from backend_caps.simulator.simulation import current
from tests.upstream.sglang_wheel import Extras, Gather, load_overlap_utils, make_future_map

SGLANG = "0.5.13"
TOPK, ACCEPT = 4, 4
_VOCAB = 997


@dataclass(slots=True)
class SpecState:
    """A draft worker's state, with the index that SGLang keeps in it."""

    future_indices: Tensor
    topk_p: Tensor | None = None
    topk_index: Tensor | None = None
    bonus_tokens: Tensor | None = None
    hidden_states: Tensor | None = None


@dataclass(slots=True)
class LoopBatch:
    """One step's batch, with the fields that either map asks for."""

    req_pool_indices: Tensor
    req_pool_indices_cpu: Tensor
    seq_lens: Tensor
    device: torch.device
    spec_info: SpecState
    seq_lens_cpu: Tensor | None = None
    seq_lens_sum: int | None = None
    seq_lens_cpu_upper_bound: Tensor | None = None
    input_ids: Tensor | None = None
    input_ids_pending: bool = False
    prefill_input_ids_cpu: Tensor | None = None
    mix_running_indices: Tensor | None = None
    enable_overlap: bool = True
    is_spec_v2: bool = True


class Relay(Protocol):
    """What a step does with a FutureMap, whoever wrote it."""

    @property
    def copy_stream(self) -> StreamLike | None:
        """The private stream that brings lengths to the host; None where none does."""

    def resolve_lengths(self, batch: LoopBatch) -> None:
        """Give the batch its lengths, on the schedule stream."""

    def resolve_inputs(self, batch: LoopBatch) -> None:
        """Give the batch its draft state, on the forward stream."""

    def publish(self, rows: Tensor, seq_lens: Tensor) -> None:
        """Store lengths between verify and draft-extend."""

    def stash(self, rows: Tensor, payload: RelayPayload) -> None:
        """Store what the next step starts from."""

    def commit(self, rows_cpu: Tensor, lens_cpu: Tensor) -> None:
        """Tell the exact lengths of a processed step."""


class OurRelay:
    """The FutureMap of this project, told one of three things about lengths."""

    def __init__(
        self, streams: DeviceStreams, host_seq_lens: HostSeqLens, pool_size: int, hidden_size: int
    ) -> None:
        draft = DraftShape(
            topk=TOPK, hidden_size=hidden_size, dtype=torch.bfloat16, accept_tokens=ACCEPT
        )
        self._map = FutureMap(
            pool_size=pool_size,
            device=streams.device,
            host_seq_lens=host_seq_lens,
            speculative=True,
            draft=draft,
            streams=streams,
        )
        self.copy_stream = self._map.copy_stream
        self.resolve_lengths = self._map.resolve_seq_lens_cpu
        self.resolve_inputs = self._map.resolve_future
        self.publish = self._map.publish
        self.stash = self._map.stash

    def commit(self, rows_cpu: Tensor, lens_cpu: Tensor) -> None:
        """Tighten the bounds; all requests are the first in their rows."""
        self._map.commit_lengths(rows_cpu, lens_cpu, torch.ones_like(rows_cpu))


class SglangRelay:
    """SGLang's FutureMap, which takes its device for CUDA."""

    def __init__(
        self, streams: DeviceStreams, *, needs_cpu_seq_lens: bool, pool_size: int, gather: Gather
    ) -> None:
        self._module: ModuleType = load_overlap_utils(SGLANG, gather=gather, is_cuda=True)
        self._map = make_future_map(
            self._module,
            pool_size=pool_size,
            speculative=True,
            needs_cpu_seq_lens=needs_cpu_seq_lens,
            device=streams.device,
        )
        private_stream: StreamLike = self._map.fwd_prepare_d2h_stream
        self.copy_stream = private_stream if needs_cpu_seq_lens else None

    def resolve_lengths(self, batch: LoopBatch) -> None:
        """Give the batch its lengths, and its mirror where backends need one."""
        self._map.resolve_seq_lens_cpu(batch)

    def resolve_inputs(self, batch: LoopBatch) -> None:
        """Give the batch its draft state."""
        self._module.resolve_forward_inputs(batch, self._map)

    def publish(self, rows: Tensor, seq_lens: Tensor) -> None:
        """Store lengths, and record the event behind them."""
        self._map.publish(rows, seq_lens)

    def stash(self, rows: Tensor, payload: RelayPayload) -> None:
        """Store what the next step starts from; on the first call this makes the buffers."""
        self._map.stash(rows, payload)

    def commit(self, rows_cpu: Tensor, lens_cpu: Tensor) -> None:
        """Need nothing of it: SGLang has no bounds."""


class NoRelay:
    """Hand a step's tensors to the next as they are, which costs nothing: the loop by itself."""

    copy_stream: StreamLike | None = None

    def __init__(self) -> None:
        self._seq_lens: Tensor | None = None
        self._payload: RelayPayload | None = None

    def resolve_lengths(self, batch: LoopBatch) -> None:
        """Give the batch the last step's tensor."""
        assert self._seq_lens is not None, "published before"
        batch.seq_lens = self._seq_lens

    def resolve_inputs(self, batch: LoopBatch) -> None:
        """Give the batch the last step's tensors."""
        payload, state = self._payload, batch.spec_info
        assert payload is not None, "stashed before"
        state.bonus_tokens, state.hidden_states = payload.bonus_tokens, payload.hidden_states
        state.topk_p, state.topk_index = payload.topk_p, payload.topk_index

    def publish(self, rows: Tensor, seq_lens: Tensor) -> None:  # noqa: ARG002
        """Keep the tensor."""
        self._seq_lens = seq_lens

    def stash(self, rows: Tensor, payload: RelayPayload) -> None:  # noqa: ARG002
        """Keep the tensors."""
        self._payload = payload

    def commit(self, rows_cpu: Tensor, lens_cpu: Tensor) -> None:
        """Need nothing of it."""


@dataclass(slots=True)
class _Step:
    """A step under way; it keeps what other streams read."""

    batch: LoopBatch
    results: Tensor
    results_cpu: Tensor
    copied: EventLike


R = TypeVar("R", bound=Relay)
MakeRelay = Callable[[DeviceStreams], Relay]
Heavy = Callable[[], object]


@dataclass(slots=True)
class _Lines:
    """The streams of a loop."""

    streams: DeviceStreams
    on: StepStreams


class SpeculativeLoop(Generic[R]):
    """Launch step n + 1, then process step n.

    Args:
        device: where it runs; it has streams.
        make_relay: makes the relay, which draws its stream after the loop's.
        batch_size: B; the rows are 1 to B.
        hidden: H.
        verify: what runs for the target model; no result of it is used.
        extend: what runs for the draft model, behind the publish.
    """

    def __init__(
        self,
        device: torch.device | str,
        make_relay: Callable[[DeviceStreams], R],
        batch_size: int,
        *,
        hidden: int,
        verify: Heavy = lambda: None,
        extend: Heavy = lambda: None,
    ) -> None:
        streams = DeviceStreams(device)
        self.lines = _Lines(streams, StepStreams.drawn_from(streams))
        self.relay = make_relay(streams)
        self.results: list[list[list[int]]] = []
        self._heavy = (verify, extend)
        self._hidden = hidden
        self._in_flight: _Step | None = None
        self._rows_cpu = torch.arange(1, batch_size + 1)
        self._rows = self._rows_cpu.to(streams.device)
        self._candidates = torch.arange(TOPK, device=streams.device)
        lens = self._rows_cpu % 16 + 1
        self._enter(lens.to(streams.device))
        self.relay.commit(self._rows_cpu, lens)
        streams.synchronize()

    def step(self) -> None:
        """Launch a step, and process the one before."""
        with self.lines.streams.using(self.lines.on.schedule):
            before, self._in_flight = self._in_flight, self._launch()
            if before is not None:
                self._process(before)

    def _enter(self, lens: Tensor) -> None:
        """Relay what a prefill would have left."""
        self.relay.publish(self._rows, lens)
        self.relay.stash(self._rows, self._drafted(lens, lens * 7 % _VOCAB))

    def _launch(self) -> _Step:
        streams, on = self.lines.streams, self.lines.on
        state = SpecState(self._rows)
        batch = LoopBatch(self._rows, self._rows_cpu, self._rows, streams.device, state)
        self.relay.resolve_lengths(batch)
        on.forward.wait_stream(on.schedule)
        reads_done = streams.event()
        with streams.using(on.forward):
            self.relay.resolve_inputs(batch)
            reads_done.record(on.forward)
            results = self._forward(batch)
        on.host_copy.wait_stream(on.forward)
        on.schedule.wait_event(reads_done)
        return self._copied(batch, results)

    def _forward(self, batch: LoopBatch) -> Tensor:
        verify, extend = self._heavy
        verify()
        seq_lens, tokens = _accepted(batch)
        self.relay.publish(batch.req_pool_indices, seq_lens)
        extend()
        self.relay.stash(batch.req_pool_indices, self._drafted(seq_lens, tokens))
        return torch.stack((seq_lens, tokens))

    def _copied(self, batch: LoopBatch, results: Tensor) -> _Step:
        """Send a step's results to the host, behind its forward."""
        streams, on = self.lines.streams, self.lines.on
        results_cpu = streams.empty_pinned(results.numel()).view(results.shape)
        copied = streams.event()
        with streams.using(on.host_copy):
            results_cpu.copy_(results, non_blocking=True)
            copied.record(on.host_copy)
        return _Step(batch, results, results_cpu, copied)

    def _drafted(self, seq_lens: Tensor, tokens: Tensor) -> RelayPayload:
        """Make up a draft worker's state.

        seq_lens  [B] int64, device
        tokens    [B] int64, device
        """
        shape = (tokens.shape[0], self._hidden)
        return RelayPayload(
            tokens,
            topk_p=(tokens % 8).float()[:, None].expand(-1, TOPK).contiguous(),
            topk_index=tokens[:, None] + self._candidates,
            hidden_states=(seq_lens % 16).bfloat16()[:, None].expand(shape).contiguous(),
        )

    def _process(self, step: _Step) -> None:
        step.copied.synchronize()
        self.results.append(cast("list[list[int]]", step.results_cpu.tolist()))
        self.relay.commit(self._rows_cpu, step.results_cpu[0])


def _accepted(batch: LoopBatch) -> tuple[Tensor, Tensor]:
    """Make up how much of each draft is accepted, from all that the relay carries.

    returns  [B] int64, device  lengths
             [B] int64, device  tokens
    """
    state = batch.spec_info
    assert state.topk_index is not None, "resolved"
    assert state.topk_p is not None, "resolved"
    assert state.hidden_states is not None, "resolved"
    assert state.bonus_tokens is not None, "resolved"
    drafted = 7 * state.topk_index.sum(1) + 3 * state.topk_p.sum(1).long()
    mixed = 31 * state.bonus_tokens + drafted + state.hidden_states[:, 0].long() + batch.seq_lens
    return batch.seq_lens + 1 + mixed % ACCEPT, (17 * mixed + 5) % _VOCAB


def gather_in_one_launch(
    indices: Tensor, topk_p: Tensor, topk_index: Tensor, tokens: Tensor, hidden: Tensor | None
) -> Extras:
    """Stand in for SGLang's Triton kernel on the simulated device, which has no Triton.

    The kernel reads every buffer in one launch, and so does this: what is counted is what CUDA
    would be given.
    """
    tables = [topk_p, topk_index, tokens, *([] if hidden is None else [hidden])]
    found = [table.new_empty((indices.shape[0], *table.shape[1:])) for table in tables]
    rows = cast("SimTensor", indices)
    pairs = [(cast("SimTensor", table).raw, out) for table, out in zip(tables, found, strict=True)]
    work = partial(_gather, rows.raw, [(raw, cast("SimTensor", out).raw) for raw, out in pairs])
    reads, writes = blocks_of([indices, *tables]), blocks_of(found)
    current().launch(Op("gather_spec_extras", work, reads, writes))
    states = None if hidden is None else found[3]
    return found[0], found[1], found[2], states


def _gather(rows: Tensor, pairs: list[tuple[Tensor, Tensor]]) -> None:
    for table, out in pairs:
        torch.index_select(table, 0, rows, out=out)
