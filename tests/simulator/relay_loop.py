"""An overlapped speculative loop over a FutureMap, and the waits that can be taken out of it.

The forward is a stand-in that depends on every value that is relayed, so that a value of another
step changes all that follow.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

import torch
from torch import Tensor

from backend_caps.capability.vocabulary import HostSeqLens
from backend_caps.relay import DeviceStreams, FutureMap, RelayPayload
from backend_caps.relay.streams import EventLike, StreamLike, StreamModule
from backend_caps.simulator import Schedule, SimDeviceError, register, simulate
from backend_caps.simulator.streams import Event, Stream
from tests.relay.batches import DRAFT, POOL_SIZE, Batch, SpecState, numbers

ROWS = (3, 1, 7)
NUM_STEPS = 4


class Removed(Enum):
    """What is taken out of the loop."""

    NOTHING = "nothing"
    COPY_WAIT = "copy stream's wait on publish"
    HOST_WAIT = "host's wait for the copy stream"
    SCHEDULE_WAIT = "schedule stream's wait on publish"
    RECORD = "publish record"
    LATE_WRITE = "record before the write"
    FORWARD_WAIT = "forward.wait_stream(schedule)"


class CopyStream(Stream):
    """The private copy stream, of which a wait is left out."""

    def __init__(self, device: torch.device, removed: Removed) -> None:
        super().__init__(device)
        self.removed = removed

    def wait_event(self, event: Event) -> None:
        """Wait for publish, or not."""
        if self.removed is not Removed.COPY_WAIT:
            super().wait_event(event)

    def synchronize(self) -> None:
        """Make the host wait, or not."""
        if self.removed is not Removed.HOST_WAIT:
            super().synchronize()


class PublishEvent(Event):
    """The event of a publish, of which the record or a wait is left out."""

    def __init__(self, removed: Removed) -> None:
        super().__init__()
        self.removed = removed

    def record(self, stream: Stream | None = None) -> None:
        """Record it, or not."""
        if self.removed is not Removed.RECORD:
            super().record(stream)

    def wait(self, stream: Stream | None = None) -> None:
        """Wait for it, or not: the copy stream does in its own way."""
        if self.removed is not Removed.SCHEDULE_WAIT or isinstance(stream, CopyStream):
            super().wait(stream)


class MutedStreams(DeviceStreams):
    """The simulated device's streams, of which something is left out."""

    def __init__(self, removed: Removed) -> None:
        super().__init__("sim")
        self.removed = removed

    def event(self) -> EventLike:
        """Create the event of a publish."""
        return PublishEvent(self.removed)  # type: ignore[return-value]

    def private_stream(self) -> StreamLike:
        """Create the copy stream."""
        return CopyStream(self.device, self.removed)  # type: ignore[return-value]


class EarlyMap(FutureMap):
    """A map that records a publish before it writes it."""

    def publish(self, req_pool_indices: Tensor, seq_lens: Tensor) -> None:
        """Record, then write."""
        self._published.record(self.streams.current_stream())
        self._seq_lens.store(req_pool_indices, seq_lens)


@dataclass
class Loop:
    """The loop, on a device whose streams order its work."""

    relay: FutureMap
    module: StreamModule
    removed: Removed
    schedule: StreamLike
    forward: StreamLike
    seen: list[list[int]] = field(default_factory=list)
    """Lengths that the host saw."""
    tokens: list[Tensor] = field(default_factory=list)
    """[B] int64, device: the tokens of each step."""
    in_flight: list[Batch] = field(default_factory=list)
    """Batches whose forward may not be done."""

    def run(self) -> list[list[int]]:
        """Run the steps; return what the host saw, and then the tokens of each step."""
        with self.module.stream(self.forward):
            rows = self._upload(ROWS)
            self._relay(rows, rows + 10, rows * 5)
        for _ in range(NUM_STEPS):
            self._step()
        self.module.synchronize(self.relay.device)
        return [*self.seen, *(tokens.tolist() for tokens in self.tokens)]

    def _step(self) -> None:
        with self.module.stream(self.schedule):
            batch = self._build()
        if self.removed is not Removed.FORWARD_WAIT:
            self.forward.wait_stream(self.schedule)
        with self.module.stream(self.forward):
            self._run_forward(batch)
        self.in_flight.append(batch)

    def _build(self) -> Batch:
        rows = self._upload(ROWS)
        batch = Batch(rows, numbers(ROWS), seq_lens=rows, spec_info=SpecState())
        self.relay.resolve_seq_lens_cpu(batch)
        if batch.seq_lens_cpu is not None:
            self.seen.append(batch.seq_lens_cpu.tolist())
        return batch

    def _run_forward(self, batch: Batch) -> None:
        self.relay.resolve_future(batch)
        spec_info = batch.spec_info
        assert spec_info is not None
        assert spec_info.bonus_tokens is not None
        assert spec_info.topk_index is not None
        tokens = (spec_info.bonus_tokens * 31 + spec_info.topk_index[:, 0] + batch.seq_lens) % 97
        self._relay(batch.req_pool_indices, batch.seq_lens + tokens % 3 + 1, tokens)

    def _relay(self, rows: Tensor, seq_lens: Tensor, tokens: Tensor) -> None:
        self.relay.publish(rows, seq_lens)
        topk_index = torch.stack((tokens + 1, tokens + 2), dim=1)
        hidden_states = tokens[:, None].to(torch.bfloat16).expand(-1, 4)
        payload = RelayPayload(tokens, topk_index / 128, topk_index, hidden_states)
        self.relay.stash(rows, payload)
        self.tokens.append(tokens)

    def _upload(self, values: tuple[int, ...]) -> Tensor:
        values_cpu = numbers(values)
        if self.relay.streams.traits.has_pinned_memory:
            values_cpu = values_cpu.pin_memory()
        return values_cpu.to(self.relay.device, non_blocking=True)


def run_loop(
    device: str, host_seq_lens: HostSeqLens, removed: Removed = Removed.NOTHING
) -> list[list[int]]:
    """Run the loop without what is removed."""
    streams = DeviceStreams(device) if removed is Removed.NOTHING else MutedStreams(removed)
    kind = EarlyMap if removed is Removed.LATE_WRITE else FutureMap
    relay = kind(
        pool_size=POOL_SIZE,
        device=device,
        host_seq_lens=host_seq_lens,
        speculative=True,
        draft=DRAFT,
        streams=streams,
    )
    module = streams.find_module()
    schedule, forward = streams.private_stream(), streams.private_stream()
    return Loop(relay, module, removed, schedule, forward).run()


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What one run of the loop came to."""

    is_right: bool
    """Whether all values are those of a CPU without streams."""
    races: tuple[str, ...]
    """Races that were reported."""


def run_simulated(
    schedule: Schedule,
    host_seq_lens: HostSeqLens,
    removed: Removed = Removed.NOTHING,
    *,
    check_races: bool = False,
) -> Outcome:
    """Run the loop on the simulated device, and compare it with the CPU."""
    register()
    right = run_loop("cpu", host_seq_lens)
    try:
        with simulate(schedule, check_races=check_races) as simulation:
            found = run_loop("sim", host_seq_lens, removed)
    except SimDeviceError:
        return Outcome(is_right=False, races=())
    races = tuple(str(race) for race in simulation.races)
    return Outcome(is_right=found == right, races=races)
