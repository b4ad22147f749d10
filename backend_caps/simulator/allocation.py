"""Memory of the device and pinned memory of the host, and captures, whose memory is their own.

A caching allocator hands freed blocks out again at once, poisoned. A block belongs to the stream
that was current when it was allocated. When the last tensor that refers to it dies, it is poisoned
at that point of its stream's work, and the stream's next allocation of that size gets it. Work of
other streams that still wants it finds poison, unless `record_stream` named them: then the block
stays away until they have passed that point, and a block of a graph until its capture has ended.

Poison is NaN in every float dtype, and beyond any index in int16, int32 and int64.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from backend_caps.simulator.queues import Marker, Op

POISON_WORD = 0x7FFF
_GRANULE_BYTES = 512
_serials = itertools.count(1)


class Block:
    """A piece of device memory, in host memory of its own."""

    __slots__ = ("_typed", "num_bytes", "pool", "serial", "stream", "users", "words")

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

    def poison(self) -> None:
        """Write what no program means."""
        self.words.fill_(POISON_WORD)

    def raw(self, dtype: torch.dtype, size: Sequence[int], stride: Sequence[int]) -> Tensor:
        """View the block's memory as a host tensor."""
        typed = self._typed.get(dtype)
        if typed is None:
            with torch.inference_mode(mode=False):
                typed = self._typed[dtype] = self.words.view(dtype)
        return typed.as_strided(size, stride, 0)


class Lease:
    """What tensors of one block share: it dies with the last of them, and frees the block."""

    __slots__ = ("_free", "block")

    def __init__(self, block: Block, free: Callable[[Block], None]) -> None:
        self.block = block
        self._free = free

    def __del__(self) -> None:
        self._free(self.block)


@dataclass(slots=True, eq=False)
class Pool:
    """Memory that is handed out together: the device's, or that of a graph."""

    free_lists: dict[tuple[int, int], list[Block]] = field(
        default_factory=lambda: defaultdict(list)
    )
    """Freed blocks by stream and size, the last one last."""
    num_bytes: int = 0
    """Of all blocks that were made for it: none is given back."""


class Allocator:
    """Hand out blocks of a pool.

    Args:
        poison: put the poisoning of a block at the end of its stream's work.
        mark: put a marker at the end of a stream's work.
        keeps_blocks: never hand a block out twice: a reused one looks like a race to the sanitizer.
    """

    def __init__(
        self, poison: Callable[[Block], None], mark: Callable[[int], Marker], *, keeps_blocks: bool
    ) -> None:
        self.pool = Pool()
        self.num_live = 0
        self.is_closed = False
        self._poison = poison
        self._mark = mark
        self._keeps_blocks = keeps_blocks
        # Freed blocks that streams named by `record_stream` may still use, and where these were.
        self._partings: list[tuple[Block, tuple[Marker, ...]]] = []
        self._after_capture: list[Block] = []
        self._kept: list[Block] = []

    def allocate(self, num_bytes: int, stream: int, pool: Pool) -> Lease:
        """Return a block of at least so many bytes: the one that was freed last, or a new one."""
        if self._partings:
            self._end_partings()
        rounded = max(1, -(-num_bytes // _GRANULE_BYTES)) * _GRANULE_BYTES
        free = pool.free_lists[stream, rounded]
        if not free:
            pool.num_bytes += rounded
            free.append(Block(rounded, stream, pool))
        self.num_live += 1
        return Lease(free.pop(), self.free)

    def free(self, block: Block) -> None:
        """Take a block back; runs when its last tensor dies, in the middle of anything."""
        self.num_live -= 1
        if self.is_closed:
            return
        if block.users and block.pool is not self.pool:
            block.users = set()
            self._after_capture.append(block)
        elif block.users:
            markers = tuple(self._mark(stream) for stream in sorted(block.users))
            block.users = set()
            self._partings.append((block, markers))
        else:
            if self._keeps_blocks:
                self._poison(block)
            self._release(block)

    def end_capture(self) -> None:
        """Hand out again what other streams had of a graph's memory: torch waits as long."""
        parted, self._after_capture = self._after_capture, []
        for block in parted:
            self._release(block)

    def _end_partings(self) -> None:
        # Not filtered into a new list: what dies meanwhile is appended to this one.
        for parting in tuple(self._partings):
            block, markers = parting
            if all(marker.is_done for marker in markers):
                self._partings.remove(parting)
                self._release(block)

    def _release(self, block: Block) -> None:
        if self._keeps_blocks:
            self._kept.append(block)
        else:
            self._poison(block)
            block.pool.free_lists[block.stream, block.num_bytes].append(block)


# Blocks of the device have positive numbers, so that a race says which it is.
_pinned_serials = itertools.count(-1, -1)


class PinnedMemory:
    """Know which host tensors are pinned.

    It keeps all of it until the run ends: an address that comes again would be taken for the same
    memory, and copies that have not run may still want it.
    """

    def __init__(self) -> None:
        self._serials: dict[int, int] = {}
        self._kept: list[Tensor] = []

    def empty(self, size: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Allocate pinned memory, filled with poison.

        Memory of no bytes is not pinned, as it is not on CUDA: its allocator has no address for it.
        """
        pinned = torch.empty(tuple(size), dtype=dtype, device="cpu")
        if pinned.numel():
            pinned.view(-1).view(torch.uint8).fill_(0x7F)
            self._serials[_address(pinned)] = next(_pinned_serials)
            self._kept.append(pinned)
        return pinned

    def copy(self, tensor: Tensor) -> Tensor:
        """Return a host tensor in pinned memory: itself, where it is."""
        if self.has(tensor):
            return tensor
        return self.empty(tensor.shape, tensor.dtype).copy_(tensor)

    def serial(self, tensor: Tensor) -> int | None:
        """Return the number of the pinned memory that a host tensor lies in."""
        return self._serials.get(_address(tensor)) if self._serials else None

    @staticmethod
    def owns(serial: int) -> bool:
        """Return whether a block's number is that of pinned memory, or of the device's."""
        return serial < 0

    def has(self, tensor: Tensor) -> bool:
        """Return whether a host tensor is pinned."""
        return self.serial(tensor) is not None


def _address(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


Step = Op | Callable[[int], None]
"""Device work, or what an event does on the stream of this handle at a replay."""


@dataclass(slots=True, eq=False)
class Capture:
    """A capture in progress, on the stream where it began and on those that joined it."""

    pool: Pool
    """Memory of what is allocated in it."""
    origin: int
    """The handle of the stream where it began."""
    steps: list[tuple[int, Step]] = field(default_factory=list)
    """What was recorded, in the order of the host, each with the handle of its stream."""
    clocks: dict[int, dict[int, int]] = field(default_factory=dict)
    """By stream, how much of each stream's work comes before its next."""

    def __post_init__(self) -> None:
        self.clocks[self.origin] = {self.origin: 0}

    def add(self, handle: int, step: Step) -> None:
        """Record work of a stream."""
        self.clocks[handle][handle] += 1
        self.steps.append((handle, step))

    def join(self, handle: int, clock: Mapping[int, int]) -> None:
        """Order a stream behind the work that a clock counts; a new stream joins the capture."""
        own = self.clocks.setdefault(handle, {handle: 1})
        for other, count in clock.items():
            own[other] = max(own.get(other, 0), count)

    @property
    def unjoined(self) -> list[int]:
        """List the streams with work that the stream where it began does not wait for."""
        waited = self.clocks[self.origin]
        own = {handle: clock[handle] for handle, clock in self.clocks.items()}
        return sorted(handle for handle, count in own.items() if waited.get(handle, 0) < count)
