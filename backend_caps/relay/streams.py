"""Streams, events and pinned memory of one device of any type.

`DEVICE_TRAITS` declares what each device type has; no other code compares type names. A device
without streams is served by `torch.cpu`, torch's own module of streams that do nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Protocol, Self, TypedDict, cast

import torch
from torch import Tensor

from backend_caps.relay.errors import RelayError


class EventLike(Protocol):
    """A point in a stream's work."""

    def record(self, stream: StreamLike, /) -> None:
        """Move the point to the end of a stream."""

    def wait(self, stream: StreamLike, /) -> None:
        """Make a stream wait for the point."""

    def synchronize(self) -> None:
        """Make the host wait for the point."""

    def query(self) -> bool:
        """Return, without waiting, whether the point has been reached."""


class StreamLike(Protocol):
    """A queue of device work."""

    def wait_event(self, event: EventLike, /) -> None:
        """Make this stream wait for an event."""

    def wait_stream(self, stream: StreamLike, /) -> None:
        """Make this stream wait for all work that another stream has now."""

    def synchronize(self) -> None:
        """Make the host wait for this stream."""


class GraphLike(Protocol):
    """Captured device work, which a replay repeats without its host code."""

    def replay(self) -> None:
        """Enqueue the captured work on the current stream."""


class MemorySegment(TypedDict):
    """A segment of torch's `memory_snapshot`; only the key that is used here."""

    total_size: int
    """Bytes of the segment."""


class StreamModule(Protocol):
    """The part of `torch.get_device_module(device)` that relay and runtime use."""

    def Event(self, *, external: bool = ...) -> EventLike:  # noqa: N802 - torch's name
        """Create an event."""

    def CUDAGraph(self) -> GraphLike:  # noqa: N802 - torch's name
        """Create a graph; only on a device with `has_graphs`."""

    def graph(
        self, graph: GraphLike, /, *, pool: tuple[int, int] | None, stream: StreamLike
    ) -> AbstractContextManager[object]:
        """Capture the work of a `with` block into a graph, on a stream."""

    def graph_pool_handle(self) -> tuple[int, int]:
        """Return the handle of a memory pool that several graphs share."""

    def memory_snapshot(self, pool: tuple[int, int], /) -> Sequence[MemorySegment]:
        """List the segments of a memory pool."""

    def Stream(self, device: torch.device, /) -> StreamLike:  # noqa: N802 - torch's name
        """Create a stream, or hand one out of a pool."""

    def current_stream(self, device: torch.device, /) -> StreamLike:
        """Return the stream that work goes to."""

    def stream(self, stream: StreamLike, /) -> AbstractContextManager[object]:
        """Send work to a stream within a `with` block."""

    def synchronize(self, device: torch.device, /) -> None:
        """Make the host wait for the device."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceTraits:
    """Declare what a device has that the relay can use."""

    has_streams: bool
    """Work runs beside the host, in streams that events order."""
    has_pinned_memory: bool
    """Copies from and to pinned host memory do not block the host."""
    has_graphs: bool = False
    """Work can be captured once and replayed without its host code."""
    has_external_events: bool = False
    """An event that is recorded within a capture is recorded by every replay."""
    is_stand_in: bool = False
    """It simulates a real device: backends for other device types may run on it."""
    copy_word: torch.dtype | None = None
    """The unit that rows are copied in, whatever their dtype; None copies in their own."""


# Sixteen-byte words copy 1,024 rows of 256 bfloat16 in 26 us instead of 60 on a CPU (torch 2.13,
# two cores). On other devices rows keep their dtype until a measurement shows a gain.
DEVICE_TRAITS: Mapping[str, DeviceTraits] = {
    "cpu": DeviceTraits(has_streams=False, has_pinned_memory=False, copy_word=torch.complex128),
    "cuda": DeviceTraits(
        has_streams=True, has_pinned_memory=True, has_graphs=True, has_external_events=True
    ),
    "mps": DeviceTraits(has_streams=False, has_pinned_memory=False),
    "mtia": DeviceTraits(has_streams=True, has_pinned_memory=True),
    "npu": DeviceTraits(has_streams=True, has_pinned_memory=True),
    "sim": DeviceTraits(
        has_streams=True,
        has_pinned_memory=True,
        has_graphs=True,
        has_external_events=True,
        is_stand_in=True,
    ),
    "xpu": DeviceTraits(has_streams=True, has_pinned_memory=True),
}
"""What each torch device type has that the relay can use."""

# Above the size of any pool that torch keeps (32 streams for CUDA and XPU).
_DRAWS = 64


class DeviceStreams:
    """Streams, events and pinned memory of one device.

    Args:
        device: the device of the relay's buffers; its streams are used, also while another device
            is the current one. Without an index it is the current device of its type.
        traits: what the device has; by default what `DEVICE_TRAITS` declares for its type.
        taken: streams in use elsewhere. torch's pool reuses handles round-robin, and a private
            stream with the forward stream's handle would wait for the forward.

    Raises:
        RelayError: no traits are given or declared.
    """

    def __init__(
        self,
        device: torch.device | str,
        traits: DeviceTraits | None = None,
        *,
        taken: Iterable[StreamLike] = (),
    ) -> None:
        self.device = torch.device(device)
        self.traits = declared_traits(self.device) if traits is None else traits
        if self.traits.has_streams:
            self.device = with_index(self.device)
        self._taken = tuple(taken)
        self._module = self.find_module()

    def find_module(self) -> StreamModule:
        """Find the module whose streams and events are used."""
        module = torch.get_device_module(self.device) if self.traits.has_streams else torch.cpu
        return cast("StreamModule", module)

    def event(self) -> EventLike:
        """Create an event; a wait for it before it is recorded returns at once."""
        return self._module.Event()

    def external_event(self) -> EventLike:
        """Create an event that each replay of a graph records; needs `has_external_events`."""
        return self._module.Event(external=True)

    def graph(self) -> GraphLike:
        """Create a graph; needs `has_graphs`."""
        return self._module.CUDAGraph()

    def graph_pool(self) -> tuple[int, int]:
        """Return the handle of a new memory pool for graphs to share."""
        return self._module.graph_pool_handle()

    def pool_bytes(self, pool: tuple[int, int]) -> int:
        """Return the device memory of a pool of graphs, in bytes."""
        return sum(segment["total_size"] for segment in self._module.memory_snapshot(pool))

    @contextmanager
    def capturing(
        self, graph: GraphLike, pool: tuple[int, int], stream: StreamLike
    ) -> Iterator[None]:
        """Capture into `graph` the work that a `with` block sends to `stream`.

        An operation that cannot be captured makes the end of the capture fail as well, and torch
        would raise that second error and leave `stream` the current one. Here the block's error is
        raised, and the current stream is restored. Torch's allocator still has the capture open.

        Stream: `stream`. Sync: the device of `stream`, before the capture.
        """
        capture = self._module.graph(graph, pool=pool, stream=stream)
        with self.using(stream):
            capture.__enter__()
            try:
                yield
            except BaseException as error:
                with suppress(RuntimeError):
                    capture.__exit__(type(error), error, error.__traceback__)
                raise
            capture.__exit__(None, None, None)

    def current_stream(self) -> StreamLike:
        """Return the stream that work goes to now."""
        return self._module.current_stream(self.device)

    def using(self, stream: StreamLike) -> AbstractContextManager[object]:
        """Send work to `stream` within a `with` block."""
        return self._module.stream(stream)

    def private_stream(self) -> StreamLike:
        """Create a stream whose handle differs from the taken ones and the current stream's.

        From then on its handle is taken too.

        Raises:
            RelayError: every stream that the pool hands out is taken.
        """
        taken = (self.current_stream(), *self._taken)
        for _ in range(_DRAWS):
            stream = self._module.Stream(self.device)
            if stream not in taken:
                self._taken = (*self._taken, stream)
                return stream
        raise RelayError(
            "stream-pool",
            f"{_DRAWS} streams drawn from {str(self.device)!r} were all handles already in use; "
            "a stream of its own was expected. Name fewer streams in DeviceStreams(taken=...).",
        )

    def device_wait(self) -> Callable[[], None]:
        """Return a callable that makes the host wait for the device, for use in a finalizer.

        It keeps no reference to this object. On the simulated device it waits for the simulation
        that runs now, even if another one runs at the time of the call.
        """
        return partial(self._module.synchronize, self.device)

    def synchronize(self) -> None:
        """Make the host wait for the whole device."""
        self._module.synchronize(self.device)

    def keep_alive(self, tensor: Tensor) -> None:
        """Keep the tensor's memory from reuse until the current stream has finished its work."""
        if self.traits.has_streams:
            tensor.record_stream(cast("torch.Stream", self.current_stream()))

    def empty_pinned(self, num_rows: int) -> Tensor:
        """Allocate pinned int64 host memory, for copies that do not block the host.

        Memory of no bytes is not pinned: CUDA has no address to register for it.

        Raises:
            RelayError: the memory does not count as pinned.
        """
        if not num_rows:
            return torch.empty(0, dtype=torch.int64)
        pinned = torch.empty(num_rows, dtype=torch.int64, pin_memory=True)
        if not self.is_pinned(pinned):
            accelerator = torch.accelerator.current_accelerator()
            raise RelayError(
                "not-pinned",
                f"torch pins memory for {str(accelerator)!r} in this process, and not for "
                f"{str(self.device)!r}; memory pinned for the relay's device was expected. A "
                "process that has registered the simulated device, or another device in Python, "
                "cannot relay on a second one: run that in a process of its own.",
            )
        return pinned

    def is_pinned(self, tensor: Tensor) -> bool:
        """Return whether a host tensor is in pinned memory."""
        return tensor.is_pinned()


@dataclass(frozen=True, slots=True, kw_only=True)
class StepStreams:
    """The streams of an overlapped step; the three handles must differ."""

    schedule: StreamLike
    """Builds batches, after the running forward's last read of the buffers that hold them."""
    forward: StreamLike
    """Runs the models, one step after the other."""
    host_copy: StreamLike
    """Copies results to the host, so that the host waits for these copies and not for a forward."""

    @classmethod
    def drawn_from(cls, streams: DeviceStreams) -> Self:
        """Draw three different streams from a device's pool."""
        return cls(
            schedule=streams.private_stream(),
            forward=streams.private_stream(),
            host_copy=streams.private_stream(),
        )


def with_index(device: torch.device) -> torch.device:
    """Return the device with its index: by default the current device of its type."""
    # torch fills in the index where it makes a tensor; no device module has a common call for it.
    return torch.empty(0, device=device).device


def declared_traits(device: torch.device) -> DeviceTraits:
    """Return the declared traits of a device's type.

    Raises:
        RelayError: no traits are declared for it.
    """
    traits = DEVICE_TRAITS.get(device.type)
    if traits is None:
        raise undeclared_device(device.type, sorted(DEVICE_TRAITS))
    return traits


def undeclared_device(device: str, declared: Iterable[str]) -> RelayError:
    """Return the error of a device without declared traits, or with another's streams."""
    return RelayError(
        "undeclared-device",
        f"the relay has no traits for device {device!r}; declared: {', '.join(declared)}. "
        f"Pass streams=DeviceStreams({device!r}, DeviceTraits(...)).",
    )
