"""Pinned host memory: what the device reads and writes beside the host."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor

# Blocks of the device have positive numbers, so that a race says which it is.
_serials = itertools.count(-1, -1)


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
            self._serials[_address(pinned)] = next(_serials)
            self._kept.append(pinned)
        return pinned

    def copy(self, tensor: Tensor) -> Tensor:
        """Copy a host tensor into pinned memory."""
        return self.empty(tensor.shape, tensor.dtype).copy_(tensor)

    def serial(self, tensor: Tensor) -> int | None:
        """Return the number of the pinned memory that a host tensor lies in."""
        return self._serials.get(_address(tensor)) if self._serials else None

    def has(self, tensor: Tensor) -> bool:
        """Tell whether a host tensor is pinned."""
        return self.serial(tensor) is not None


def is_pinned(serial: int) -> bool:
    """Tell by its number whether a block is pinned memory, or the device's."""
    return serial < 0


def _address(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
