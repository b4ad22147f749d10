"""`TorchPadded`, with metadata made of what a backend makes of it, eager and in graphs.

Shapes: R rows of N tokens, L the longest context.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from backend_caps_torch_native import TorchPadded
from torch import Tensor

from backend_caps import protocols
from backend_caps.runtime.forward_batch import ForwardBatch


class Shown(TorchPadded):
    """Take a batch for what `taken` gives, and let its tokens see what `visible` gives."""

    def taken(self, batch: ForwardBatch) -> ForwardBatch:
        """Make another batch of one."""
        return batch

    def visible(self, batch: ForwardBatch, seen: Tensor) -> Tensor:
        """Make another mask of one, [R, N, L] bool."""
        del batch
        return seen

    def init_forward_metadata_in_graph(self, batch: protocols.ForwardBatch) -> None:
        """Prepare what is made of it."""
        assert isinstance(batch, ForwardBatch)
        super().init_forward_metadata_in_graph(self.taken(batch))
        seen = self.visible(batch, self._metadata.visible)
        self._metadata = replace(self._metadata, visible=seen)


class Turned(Shown):
    """Add the contexts of some rows up from their other end."""

    def is_turned(self, batch: ForwardBatch, rows: Tensor) -> Tensor:
        """Say which of some rows are, [R]: bool."""
        del batch
        return torch.ones_like(rows, dtype=torch.bool)

    def init_forward_metadata_in_graph(self, batch: protocols.ForwardBatch) -> None:
        """Prepare it, and turn rows."""
        super().init_forward_metadata_in_graph(batch)
        assert isinstance(batch, ForwardBatch)
        slots, seen = self._metadata.slots, self._metadata.visible
        turned = self.is_turned(batch, torch.arange(len(slots), device=slots.device))
        self._metadata = replace(
            self._metadata,
            slots=torch.where(turned[:, None], slots.flip(1), slots),
            visible=torch.where(turned[:, None, None], seen.flip(2), seen),
        )
