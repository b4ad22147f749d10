"""Host numbers on their way to the device, without making the host wait.

Shapes: N numbers.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from backend_caps.relay.streams import DeviceStreams


class Staging:
    """Carry host numbers to the device, and count them.

    Pinned memory is given back by its tensor's end: torch keeps it from others until the copies
    from it are done.
    """

    def __init__(self, streams: DeviceStreams) -> None:
        self.streams = streams
        self.num_bytes = 0
        """What was staged so far."""

    def stage(self, numbers: Sequence[int]) -> Tensor:
        """Put numbers where a copy to the device does not block the host.

        returns  [N] int64, host  pinned where the device has pinned memory

        Sync: none. Allocates: the numbers.
        """
        self.num_bytes += len(numbers) * torch.int64.itemsize
        pageable = torch.tensor(numbers, dtype=torch.int64)
        if not self.streams.traits.has_pinned_memory:
            return pageable
        return self.streams.empty_pinned(len(numbers)).copy_(pageable)

    def upload(self, columns: Sequence[Sequence[int]]) -> Tensor:
        """Copy columns of N numbers to the device at once.

        returns  [columns, N] int64, device

        Stream: the current one. Sync: none. Allocates: the numbers, on both sides.
        """
        staged = self.stage([number for column in columns for number in column])
        on_device = staged.to(self.streams.device, non_blocking=True)
        return on_device.view(len(columns), len(columns[0]))

    def carry(self, tensor: Tensor) -> Tensor:
        """Copy a tensor of the host to the device, through pinned memory where it is in none.

        Where the device is the host, it is the tensor itself.

        Stream: the current one. Sync: none. Allocates: it, on the device; pinned, where it is not.
        """
        self.num_bytes += tensor.nbytes
        if self.streams.traits.has_pinned_memory and not self.streams.is_pinned(tensor):
            tensor = self._pinned_like(tensor).copy_(tensor)
        return tensor.to(self.streams.device, non_blocking=True)

    def to_host(self, tensor: Tensor) -> Tensor:
        """Copy a tensor of the device to the host; where the device is the host, it is that tensor.

        Stream: the current one. Sync: none where there is pinned memory: the copy is not there
        before an event behind it is. Allocates: it, pinned.
        """
        if not self.streams.traits.has_pinned_memory:
            return tensor.to("cpu")
        return self._pinned_like(tensor).copy_(tensor, non_blocking=True)

    def _pinned_like(self, tensor: Tensor) -> Tensor:
        """Allocate pinned memory of a tensor's shape and dtype."""
        words = self.streams.empty_pinned(-(-tensor.nbytes // torch.int64.itemsize))
        return words.view(tensor.dtype)[: tensor.numel()].view(tensor.shape)
