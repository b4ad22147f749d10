"""Attention that goes by the host's upper bounds, and by nothing else that the host has."""

from __future__ import annotations

import torch
from backend_caps_torch_native import TorchPadded
from torch_native_caps import TORCH_PADDED

from backend_caps import HostSeqLens
from backend_caps.runtime.forward_batch import ForwardBatch


class Bounded(TorchPadded):
    """`torch_padded`, whose page table ends where the host says that each context does.

    A bound below the truth cuts tokens off, and the output is another one.
    """

    def init_forward_metadata_in_graph(self, batch: ForwardBatch) -> None:  # type: ignore[override]
        """Pad to the largest bound, and leave nothing of a row behind its own."""
        bounds = batch.seq_lens_cpu_upper_bound
        assert bounds is not None, "the plan asks for upper bounds"
        whole = self._req_to_token
        table = whole[:, : int(bounds.max())].clone()
        is_behind = (torch.arange(table.shape[1]) >= bounds[:, None]).to(table.device)
        rows = batch.req_pool_indices
        table[rows] = table[rows].masked_fill(is_behind, 0)
        self._req_to_token = table
        super().init_forward_metadata_in_graph(batch)
        self._req_to_token = whole


BOUNDED = TORCH_PADDED.model_copy(
    update={
        "capabilities": TORCH_PADDED.capabilities.model_copy(
            # A graph would keep the bounds of its capture.
            update={"host_seq_lens": HostSeqLens.UPPER_BOUND, "graph_replay": frozenset()}
        ),
        "implementation": f"{__name__}:{Bounded.__name__}",
    }
)
