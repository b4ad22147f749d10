"""A relay with clocks at its publish and at its lengths, and what a step of it launches.

Shapes: B requests in the batch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter
from typing import Protocol, cast

import torch
from torch import Tensor
from torch._C._autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from backend_caps.relay import DEVICE_TRAITS, DeviceStreams
from backend_caps.relay.streams import StreamLike
from backend_caps.simulator.simulation import current
from benchmarks.speculation import LoopBatch, MakeRelay, Relay, SpeculativeLoop

_SETTLING, _COUNTED = 3, 10
_COPIES = ("Memcpy DtoH", "Memcpy HtoD")


class TimingEvent(Protocol):
    """A point in a stream's work that knows its time."""

    def record(self, stream: StreamLike | None = None, /) -> None:
        """Move the point to the end of a stream."""

    def elapsed_time(self, end: TimingEvent, /) -> float:
        """Return the milliseconds to another point."""


class Watched:
    """A relay, watched.

    `lengths_us` is from the publish, as the device passes it, to the first thing that the device
    can be told by a host that holds the lengths. Both ends are the device's own clock.

    Args:
        relay: the relay.
        streams: its device's streams.
    """

    def __init__(self, relay: Relay, streams: DeviceStreams) -> None:
        self.copy_stream = relay.copy_stream
        self.resolve_inputs = relay.resolve_inputs
        self.stash = relay.stash
        self.commit = relay.commit
        self.wait_us: list[float] = []
        self._relay = relay
        self._module = torch.get_device_module(streams.device)
        self._spans: list[tuple[TimingEvent, TimingEvent]] = []

    def publish(self, rows: Tensor, seq_lens: Tensor) -> None:
        """Publish, and take the device's time behind it."""
        self._relay.publish(rows, seq_lens)
        self._published = self._event()
        self._published.record()

    def resolve_lengths(self, batch: LoopBatch) -> None:
        """Resolve, and take the host's time for it, and the device's behind it."""
        began_s = perf_counter()
        self._relay.resolve_lengths(batch)
        self.wait_us.append((perf_counter() - began_s) * 1e6)
        if self.copy_stream is not None:
            arrived = self._event()
            arrived.record(self.copy_stream)
            self._spans.append((self._published, arrived))

    def lengths_us(self) -> list[float]:
        """Return how long lengths took to the host, step by step; the device is done by then."""
        return [published.elapsed_time(arrived) * 1e3 for published, arrived in self._spans]

    def _event(self) -> TimingEvent:
        return cast("TimingEvent", self._module.Event(enable_timing=True))


@dataclass(frozen=True, kw_only=True)
class Launches:
    """What a step puts on the device."""

    kernels: float
    """Kernels, and whatever else is no copy between host and device."""
    copies: float
    """Copies between host and device."""

    def beside(self, loop: Launches) -> Launches:
        """Take off what the loop does by itself."""
        return Launches(kernels=self.kernels - loop.kernels, copies=self.copies - loop.copies)


def launches(device: torch.device, make_relay: MakeRelay, batch_size: int, hidden: int) -> Launches:
    """Count what a step in steady state launches, without the forwards' stand-ins."""
    loop = SpeculativeLoop(device, make_relay, batch_size, hidden=hidden)
    for _ in range(_SETTLING):
        loop.step()
    loop.lines.streams.synchronize()
    with _counting(device) as found:
        for _ in range(_COUNTED):
            loop.step()
        loop.lines.streams.synchronize()
    return Launches(kernels=found["kernels"] / _COUNTED, copies=found["copies"] / _COUNTED)


@contextmanager
def _counting(device: torch.device) -> Iterator[Counter[str]]:
    """Count within a `with` block; the counts are there behind it."""
    found: Counter[str] = Counter()
    if DEVICE_TRAITS[device.type].is_stand_in:
        before = current().counts
        yield found
        counts = current().counts - before
        found["copies"] = counts.num_copies_to_host + counts.num_copies_to_device
        found["kernels"] = counts.num_ops - found["copies"]
    else:
        with profile(activities=[ProfilerActivity.CUDA]) as profiler:
            yield found
        names = [own.name for own in profiler.events() if own.device_type == DeviceType.CUDA]
        found["copies"] = sum(name.startswith(_COPIES) for name in names)
        found["kernels"] = len(names) - found["copies"]
