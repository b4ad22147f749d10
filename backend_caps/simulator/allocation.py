"""Device memory, pinned host memory, and captures, each with a private memory pool.

A caching allocator reuses freed blocks at once, poisoned. A block belongs to the stream that was
current when it was allocated. When the last tensor that refers to it dies, it is poisoned at that
point of its stream's work, and the stream's next allocation of that size gets it. Later reads of
other streams find poison, unless `record_stream` named these streams: then the block is not reused
until they have passed that point, or, for a block of a graph, until its capture has ended.

Poison is NaN in every float dtype, and beyond any index in int16, int32 and int64.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from backend_caps.simulator.queues import Marker, Op

POISON_WORD = 0x7FFF
_GRANULE_BYTES = 512
_serials = itertools.count(1)


class Segment:
    """Memory that a kernel's pointer may point into: a tensor's, with all that its views share.

    Args:
        memory: a flat host tensor, from the first byte on.
        num_bytes: the size, at most that of `memory`.
        serial: the serial number of the memory in races; None where it is not looked for.
    """

    __slots__ = ("_memory", "_typed", "num_bytes", "serial", "start")

    def __init__(self, memory: Tensor, num_bytes: int, serial: int | None) -> None:
        self._memory = memory
        self._typed: dict[torch.dtype, Tensor] = {}
        self.start = memory.data_ptr()
        self.num_bytes = num_bytes
        self.serial = serial

    def view(self, dtype: torch.dtype) -> Tensor:
        """Return the memory as elements of a dtype."""
        typed = self._typed.get(dtype)
        if typed is None:
            num_bytes = self.num_bytes // dtype.itemsize * dtype.itemsize
            with torch.inference_mode(mode=False):
                typed = self._typed[dtype] = self._memory.view(torch.uint8)[:num_bytes].view(dtype)
        return typed


class FreedMemoryError(Exception):
    """An address is in memory that no tensor had any more."""


class Block:
    """A block of device memory, backed by a host tensor."""

    __slots__ = (
        "__weakref__",
        "_typed",
        "freed_at",
        "num_bytes",
        "pool",
        "segment",
        "serial",
        "stream",
        "users",
        "words",
    )

    def __init__(self, num_bytes: int, stream: int, pool: Pool) -> None:
        self.serial = next(_serials)
        self.num_bytes = num_bytes
        self.stream = stream
        self.pool = pool
        self.users: set[int] = set()
        # Work in inference mode and outside of it writes to the same blocks.
        with torch.inference_mode(mode=False):
            self.words = torch.empty(num_bytes // 2, dtype=torch.int16, device="cpu")
        self.poison()
        self._typed: dict[torch.dtype, Tensor] = {}
        self.segment: Segment | None = None
        self.freed_at: int | None = None
        _blocks[self.words.data_ptr()] = self

    def lend(self, num_bytes: int) -> None:
        """Give the memory to a tensor."""
        self.freed_at = None
        if self.segment is None or self.segment.num_bytes != num_bytes:
            self.segment = Segment(self.words, num_bytes, self.serial)

    def poison(self) -> None:
        """Overwrite the memory with poison."""
        self.words.fill_(POISON_WORD)

    def raw(self, dtype: torch.dtype, size: Sequence[int], stride: Sequence[int]) -> Tensor:
        """View the block's memory as a host tensor."""
        typed = self._typed.get(dtype)
        if typed is None:
            with torch.inference_mode(mode=False):
                typed = self._typed[dtype] = self.words.view(dtype)
        return typed.as_strided(size, stride, 0)


_blocks: WeakValueDictionary[int, Block] = WeakValueDictionary()
_moments = itertools.count(1)


def moment() -> int:
    """Return a number that is higher at each launch of a kernel, and at each free of a block."""
    return next(_moments)


def segment_at(address: int, launched_at: int) -> Segment | None:
    """Return the memory of a tensor at an address; None where there is none.

    Args:
        address: the address.
        launched_at: the moment when the work was launched that accesses it.

    Raises:
        FreedMemoryError: it was freed before that moment.
    """
    for start, block in list(_blocks.items()):
        if start <= address < start + block.num_bytes:
            if block.freed_at is not None and block.freed_at < launched_at:
                raise FreedMemoryError
            return block.segment
    return None


class Lease:
    """Shared by the tensors of one block; its destructor frees the block."""

    __slots__ = ("_free", "block")

    def __init__(self, block: Block, free: Callable[[Block], None]) -> None:
        self.block = block
        self._free = free

    def __del__(self) -> None:
        self._free(self.block)


@dataclass(slots=True, eq=False)
class Pool:
    """A memory pool: the device's, or a graph's."""

    free: dict[tuple[int, int], list[Block]] = field(default_factory=lambda: defaultdict(list))
    """Freed blocks by stream and size, the most recently freed last."""
    num_bytes: int = 0
    """Bytes of all blocks of the pool; blocks are never given back."""


class Allocator:
    """A caching allocator, which allocates blocks from pools.

    Args:
        poison: enqueues the poisoning of a block on its stream.
        mark: enqueues a marker on a stream.
        keeps_blocks: never reuse a block: the sanitizer would report reuse as a race.
    """

    def __init__(
        self, poison: Callable[[Block], None], mark: Callable[[int], Marker], *, keeps_blocks: bool
    ) -> None:
        self.pool = Pool()
        self.num_live = 0
        self.num_live_bytes = 0
        self.is_closed = False
        self._poison = poison
        self._mark = mark
        self._keeps_blocks = keeps_blocks
        # Freed blocks that streams of `record_stream` may still use, with markers in these streams.
        self._deferred: list[tuple[Block, tuple[Marker, ...]]] = []
        self._after_capture: list[Block] = []
        self._kept: list[Block] = []

    def allocate(self, num_bytes: int, stream: int, pool: Pool) -> Lease:
        """Return a block of at least `num_bytes`: the most recently freed one, or a new one."""
        if self._deferred:
            self._release_deferred()
        rounded = max(1, -(-num_bytes // _GRANULE_BYTES)) * _GRANULE_BYTES
        free = pool.free[stream, rounded]
        if not free:
            pool.num_bytes += rounded
            free.append(Block(rounded, stream, pool))
        block = free.pop()
        self.num_live += 1
        self.num_live_bytes += block.num_bytes
        block.lend(num_bytes)
        return Lease(block, self.free)

    def free(self, block: Block) -> None:
        """Free a block; called by a destructor, so at any point of other code."""
        self.num_live -= 1
        self.num_live_bytes -= block.num_bytes
        block.freed_at = moment()
        if self.is_closed:
            return
        if block.users and block.pool is not self.pool:
            block.users = set()
            self._after_capture.append(block)
        elif block.users:
            markers = tuple(self._mark(stream) for stream in sorted(block.users))
            block.users = set()
            self._deferred.append((block, markers))
        else:
            if self._keeps_blocks:
                self._poison(block)
            self._release(block)

    def end_capture(self) -> None:
        """Release a graph's blocks that other streams used; torch too waits for the end."""
        blocks, self._after_capture = self._after_capture, []
        for block in blocks:
            self._release(block)

    def _release_deferred(self) -> None:
        # The list is changed in place: a tensor that dies meanwhile appends its block to it.
        for entry in tuple(self._deferred):
            block, markers = entry
            if all(marker.is_done for marker in markers):
                self._deferred.remove(entry)
                self._release(block)

    def _release(self, block: Block) -> None:
        if self._keeps_blocks:
            self._kept.append(block)
        else:
            self._poison(block)
            block.pool.free[block.stream, block.num_bytes].append(block)


# Negative, because blocks of the device have positive numbers: a race names one or the other.
_pinned_serials = itertools.count(-1, -1)


class PinnedMemory:
    """Allocates pinned host memory, and finds out which host tensors are pinned.

    All of it is kept until the run ends: a reused address would count as the same memory, and
    copies that have not run may still read or write it.
    """

    def __init__(self) -> None:
        self._serials: dict[int, int] = {}
        self._kept: list[Tensor] = []
        self._segments: dict[int, Segment] = {}

    def empty(self, size: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Allocate pinned memory, filled with poison.

        Memory of no bytes is not pinned, as on CUDA, whose allocator has no address for it.
        """
        pinned = torch.empty(tuple(size), dtype=dtype, device="cpu")
        if pinned.numel():
            pinned.view(-1).view(torch.uint8).fill_(0x7F)
            self._serials[_address(pinned)] = next(_pinned_serials)
            self._kept.append(pinned)
        return pinned

    def copy(self, tensor: Tensor) -> Tensor:
        """Return a pinned copy of a host tensor, or the tensor itself where it is pinned."""
        if self.has(tensor):
            return tensor
        return self.empty(tensor.shape, tensor.dtype).copy_(tensor)

    def serial(self, tensor: Tensor) -> int | None:
        """Return the serial number of a host tensor's pinned memory; None where it is pageable."""
        return self._serials.get(_address(tensor)) if self._serials else None

    def segment(self, tensor: Tensor) -> Segment | None:
        """Return the pinned memory that a host tensor lies in; None where it is pageable."""
        serial = self.serial(tensor)
        return None if serial is None else self._segment(tensor, serial)

    def segment_at(self, address: int) -> Segment | None:
        """Return the pinned memory at an address; None where there is none."""
        for tensor in self._kept:
            if 0 <= address - _address(tensor) < tensor.untyped_storage().nbytes():
                return self.segment(tensor)
        return None

    def _segment(self, tensor: Tensor, serial: int) -> Segment:
        segment = self._segments.get(serial)
        if segment is None:
            storage = tensor.untyped_storage()
            memory = torch.empty(0, dtype=torch.uint8).set_(storage)
            segment = self._segments[serial] = Segment(memory, storage.nbytes(), serial)
        return segment

    @staticmethod
    def owns(serial: int) -> bool:
        """Return whether a serial number is of pinned memory, not of a device block."""
        return serial < 0

    def has(self, tensor: Tensor) -> bool:
        """Return whether a host tensor is pinned."""
        return self.serial(tensor) is not None


def _address(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


Step = Op | Callable[[int], None]
"""Device work, or an event's record or wait, called at a replay with its stream's handle."""


@dataclass(slots=True, eq=False)
class Capture:
    """A capture in progress, on the stream where it began and on streams that joined it."""

    pool: Pool
    """The pool that its allocations use."""
    origin: int
    """The handle of the stream where it began."""
    steps: list[tuple[int, Step]] = field(default_factory=list)
    """The recorded steps in the order of the host, each with the handle of its stream."""
    clocks: dict[int, dict[int, int]] = field(default_factory=dict)
    """Vector clocks: by stream, how many steps of each stream come before its next step."""

    def __post_init__(self) -> None:
        self.clocks[self.origin] = {self.origin: 0}

    def add(self, handle: int, step: Step) -> None:
        """Record work of a stream."""
        self.clocks[handle][handle] += 1
        self.steps.append((handle, step))

    def join(self, handle: int, clock: Mapping[int, int]) -> None:
        """Order a stream after the work that a clock counts; a new stream joins the capture."""
        joined = self.clocks.setdefault(handle, {handle: 1})
        for other, count in clock.items():
            joined[other] = max(joined.get(other, 0), count)

    @property
    def unjoined(self) -> list[int]:
        """List the streams with work that the stream where it began does not wait for."""
        waited = self.clocks[self.origin]
        return sorted(
            handle for handle, clock in self.clocks.items() if waited.get(handle, 0) < clock[handle]
        )
