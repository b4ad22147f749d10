"""What a kernel's pointers point to.

A pointer is an address of the host. It may point into the tensors that the launch was given, as far
as their memory goes; one that the kernel read from memory may point into any tensor of the device.
Anything else is a fault, as is an address that no element of its type can have.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from backend_caps.simulator.allocation import FreedMemoryError, Segment
from backend_caps.simulator.errors import Site
from backend_caps.simulator.kernels.arithmetic import together
from backend_caps.simulator.kernels.errors import KernelFaultError

_FAR = 1 << 40
"""Bytes beyond which an address is not one that an index a little too high gives."""


Find = Callable[[int, str], Segment | None]
"""Returns the memory that an address is in, to be read or written; None where it is in none.

Raises:
    FreedMemoryError: no tensor had that memory any more when the kernel was launched.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """One operation of a kernel that touches memory."""

    verb: str
    """`reads` or `writes`."""
    dtype: torch.dtype
    """The type of the elements, as they are held."""
    roots: frozenset[int] | None
    """The arguments that its pointers come from; None where they were read from memory."""
    may_be_odd: bool
    """Whether its pointers may be between two elements: they come from another type's."""
    site: Site
    """The kernel's line."""


@cache
def zero_of(dtype: torch.dtype) -> Tensor:
    """Return what a lane holds that a mask keeps from reading."""
    return torch.zeros((), dtype=dtype)


class Memory:
    """The memory of one launch.

    Args:
        segments: what the arguments point to.
        names: what a finding calls the arguments.
        find: looks up an address that comes from no argument.
    """

    def __init__(
        self, segments: Mapping[int, Segment], names: Mapping[int, str], find: Find
    ) -> None:
        self._segments = segments
        self._names = names
        self._find = find

    def load(
        self, addresses: Tensor, mask: Tensor | None, other: Tensor | None, access: Access
    ) -> Tensor:
        """Read elements; where the mask is false, `other` or 0.

        addresses  [...] int64, host  of elements
        mask       as `addresses` or broadcast with it, bool, host, or None
        other      as `addresses` or broadcast with it, access.dtype, host, or None
        returns    the three broadcast, access.dtype, host

        Raises:
            KernelFaultError: an address is of no such element.
        """
        zero = zero_of(access.dtype)
        if mask is not None and mask.all():
            mask = None
        values = self._read_at_once(addresses, mask, access)
        if values is None:
            values = zero
            for segment, lanes, index in self._located(addresses, mask, access):
                values = torch.where(lanes, segment.view(access.dtype)[index], values)
        if mask is None:
            return values
        return torch.where(mask, values, zero if other is None else other)

    def _read_at_once(
        self, addresses: Tensor, mask: Tensor | None, access: Access
    ) -> Tensor | None:
        """Read elements that all lie in one argument's memory; None where they do not."""
        for segment in self._likely(access):
            index = self._index(segment, addresses, mask, access)
            try:  # torch checks the bounds of an index faster than its extremes are found
                found = segment.view(access.dtype).index_select(0, index.reshape(-1))
            except IndexError:
                continue
            return found.reshape(index.shape)
        return None

    def store(self, addresses: Tensor, values: Tensor, mask: Tensor | None, access: Access) -> None:
        """Write elements where the mask is true.

        addresses  [...] int64, host  of elements
        values     as `addresses` or broadcast with it, access.dtype, host
        mask       as `addresses` or broadcast with it, bool, host, or None

        Raises:
            KernelFaultError: an address is of no such element.
        """
        if mask is None:
            addresses, values = together(addresses, values)
        else:
            addresses, values, mask = together(addresses, values, mask)
            if not mask.all():
                addresses, values = addresses[mask], values[mask]
        if self._write_at_once(addresses, values, access):
            return
        for segment, lanes, index in self._located(addresses, None, access):
            segment.view(access.dtype)[index[lanes]] = values[lanes]

    def _write_at_once(self, addresses: Tensor, values: Tensor, access: Access) -> bool:
        """Write elements that all lie in one argument's memory, or some; tell whether all do."""
        for segment in self._likely(access):
            view = segment.view(access.dtype)
            if len(view):
                index = self._index(segment, addresses, None, access)
                try:  # as for reads
                    view.index_copy_(0, index.reshape(-1), values.reshape(-1))
                except IndexError:
                    continue
                return True
        return False

    def exchange(
        self,
        addresses: Tensor,
        combine: Callable[[Tensor, Tensor], Tensor],
        values: Tensor,
        access: Access,
    ) -> Tensor:
        """Replace elements by what is made of each and a value; return what was there before.

        Elements are replaced one after the other where an address occurs more than once.

        addresses  [N] int64, host
        values     [N, ...] host  what `combine` gets behind the element before
        returns    [N] access.dtype, host
        """
        before = torch.zeros(len(addresses), dtype=access.dtype)
        for segment, lanes, index in self._located(addresses, None, access):
            view = segment.view(access.dtype)
            places = lanes.nonzero()[:, 0]
            for turn in _turns(index[places]):
                now = places[turn]
                before[now] = view[index[now]]
                view[index[now]] = combine(before[now], values[now])
        return before

    def _located(
        self, addresses: Tensor, mask: Tensor | None, access: Access
    ) -> Iterator[tuple[Segment, Tensor, Tensor]]:
        """Yield each memory that is accessed, by which elements, and their indices in it.

        The index of an element that is not accessed is 0.
        """
        size = access.dtype.itemsize
        wanted = torch.ones_like(addresses, dtype=torch.bool) if mask is None else mask
        addresses, wanted = together(addresses, wanted)
        while wanted.any():
            first = int(addresses[wanted][0])
            owner = self._segment_at(first, access)
            if owner is None or first - owner.start > owner.num_bytes - size:
                raise self._fault(first, access)
            offset = addresses - owner.start
            inside = wanted & (offset >= 0) & (offset <= owner.num_bytes - size)
            yield owner, inside, self._index(owner, addresses, inside, access)
            wanted = wanted & ~inside

    def _likely(self, access: Access) -> Iterable[Segment]:
        return () if access.roots is None else map(self._segments.__getitem__, sorted(access.roots))

    def _segment_at(self, address: int, access: Access) -> Segment | None:
        """Return the memory that an address may be in."""
        if access.roots is not None:
            own = self._likely(access)
            return next((each for each in own if 0 <= address - each.start < each.num_bytes), None)
        try:
            return self._find(address, access.verb)
        except FreedMemoryError as error:
            text = f"{access.verb} memory at {address:#x}, which no tensor has any more"
            raise KernelFaultError(access.site, text) from error

    @staticmethod
    def _index(segment: Segment, addresses: Tensor, mask: Tensor | None, access: Access) -> Tensor:
        """Return elements' indices in a memory, where they may be; 0 where the mask is false."""
        size = access.dtype.itemsize
        offset = addresses - segment.start
        if mask is not None:
            offset = torch.where(mask, offset, zero_of(torch.int64))
        if size == 1:
            return offset
        if access.may_be_odd and bool((offset % size).any()):
            odd = int(addresses.flatten()[0])
            text = f"{access.verb} {size} bytes at {odd:#x} or behind it, where no element begins"
            raise KernelFaultError(access.site, text)
        return offset.bitwise_right_shift_(size.bit_length() - 1)

    def _fault(self, first: int, access: Access) -> KernelFaultError:
        """Say which element of what is out of bounds, and by how much."""
        size = access.dtype.itemsize
        roots = sorted(access.roots or ())
        if not roots:
            return KernelFaultError(access.site, f"{access.verb} at {first:#x}, where no tensor is")
        root = min(roots, key=lambda each: abs(first - self._segments[each].start))
        segment, name = self._segments[root], self._names[root]
        element, count = (first - segment.start) // size, segment.num_bytes // size
        text = f"{access.verb} element {element:,} of {name!r}, whose memory has {count:,}"
        if abs(first - segment.start) > _FAR:
            text += "; an index from memory that nothing has written gives such an address"
        return KernelFaultError(access.site, text)


def _turns(index: Tensor) -> list[Tensor]:
    """Split elements so that none of a part has the index of another one of it, in their order."""
    owned = index.tolist()
    if len(set(owned)) == len(owned):
        return [torch.arange(len(index))]
    counts: dict[int, int] = {}
    turns: list[list[int]] = []
    for place, own in enumerate(owned):
        turn = counts[own] = counts.get(own, -1) + 1
        if turn == len(turns):
            turns.append([])
        turns[turn].append(place)
    return [torch.tensor(turn) for turn in turns]
