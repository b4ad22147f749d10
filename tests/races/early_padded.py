"""`torch_padded`, with its reads of the page table before a replay instead of within it.

What a replay reads of the batch has been copied by then, so the scheduler may write from the start
of the replay on: the earliest of the points that a backend can declare.

Shapes: L entries in a row of the page table, B requests in the batch.
"""

from __future__ import annotations

import torch
from backend_caps_torch_native.padded import TorchPadded, _Metadata
from torch import Tensor

from backend_caps.protocols import ForwardBatch


class EarlyPadded(TorchPadded):
    """Gather slots and masks into buffers that a capture keeps the addresses of."""

    _slots: Tensor
    _visible: Tensor
    _is_blind: Tensor

    def init_forward_metadata(self, batch: ForwardBatch) -> None:
        """Prepare an eager forward, in memory of its own."""
        super().init_forward_metadata_in_graph(batch)

    def init_cuda_graph_state(self, max_bs: int, max_num_tokens: int) -> None:
        """Make the buffers: what each token sees, and a row of slots for each, at most.

        Allocates: an index and a bool for each entry of so many rows. Keeps: those.
        """
        shape = (max(max_bs, max_num_tokens), self._req_to_token.shape[1])
        device = self._req_to_token.device
        self._slots = self._req_to_token.new_zeros(shape)
        self._visible = torch.zeros(shape, dtype=torch.bool, device=device)
        self._is_blind = torch.ones(shape[0], dtype=torch.bool, device=device)

    def init_forward_metadata_out_graph(self, batch: ForwardBatch) -> None:
        """Read the page table into the buffers.

        Stream: the current one. Sync: none. Allocates: what is copied. Keeps: nothing.
        """
        super().init_forward_metadata_in_graph(batch)
        made = self._metadata
        num_rows, num_tokens = made.slots.shape[0], made.is_blind.shape[0]
        visible = self._visible[:num_tokens].view(made.visible.shape)
        buffers = _Metadata(self._slots[:num_rows], visible, self._is_blind[:num_tokens])
        buffers.slots.copy_(made.slots)
        buffers.visible.copy_(made.visible)
        buffers.is_blind.copy_(made.is_blind)
        self._metadata = buffers

    def init_forward_metadata_in_graph(self, batch: ForwardBatch) -> None:
        """Do nothing: the buffers have it all."""
