"""The streams of a story: one brings batches to the device, the other runs forwards."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager

from torch import Tensor

from backend_caps.kit.rig import Rig
from backend_caps.kit.states.recurrences import Tokens
from backend_caps.kit.states.stories import StateTurn
from backend_caps.runtime.staging import Staging


class TurnStreams:
    """A schedule and a forward stream, within `Rig.running`.

    Args:
        rig: whose device they are of.
        overlapped: whether they are two, without host waits between turns; else both are the
            current one.
    """

    def __init__(self, rig: Rig, *, overlapped: bool) -> None:
        self._overlapped = overlapped
        self._streams = rig.streams()
        self._staging = Staging(self._streams)
        stream = self._streams.private_stream if overlapped else self._streams.current_stream
        self._schedule, self._forward = stream(), stream()
        self.device = str(self._streams.device)
        """Where tensors are."""

    def scheduling(self) -> AbstractContextManager[object]:
        """Make the schedule stream the current one, within a `with` block."""
        return self._streams.using(self._schedule)

    def forwarding(self) -> AbstractContextManager[object]:
        """Make the forward stream the current one, within a `with` block."""
        return self._streams.using(self._forward)

    def upload(self, columns: Sequence[Sequence[int]]) -> Tensor:
        """Copy columns of N numbers to the device: [columns, N] int64. Sync: none."""
        return self._staging.upload(columns)

    def carry(self, turn: StateTurn) -> Sequence[Tokens]:
        """Copy what a turn's tokens bring to each layer to the device. Sync: none."""
        return [
            {name: self._staging.carry(own.clone()) for name, own in each.items()}
            for each in turn.tokens
        ]

    def hand_over(self) -> None:
        """Let forwards run behind what the schedule stream has launched. Sync: none."""
        self._forward.wait_stream(self._schedule)

    def keep_alive(self, *tensors: Tensor) -> None:
        """Keep the memory of tensors for the current stream's work. Sync: none."""
        for own in tensors:
            self._streams.keep_alive(own)

    def settle(self) -> None:
        """Let the schedule of the next turn begin behind this one."""
        if self._overlapped:
            self._schedule.wait_stream(self._forward)
        else:
            self._streams.synchronize()

    def synchronize(self) -> None:
        """Wait until the device has done everything."""
        self._streams.synchronize()
