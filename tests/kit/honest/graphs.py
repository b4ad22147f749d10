"""Odd backends about what their graphs may be replayed with."""

from __future__ import annotations

from dataclasses import replace

import torch

from backend_caps import GraphMetadata, HostSeqLens, SharedReadsEnd
from backend_caps.protocols import ModelRunner
from backend_caps.runtime.forward_batch import ForwardBatch
from tests.kit.honest.odd import Odd, odd
from tests.kit.liars.graphed import Graphed


class TableCopiedFirst(Graphed):
    """Claims PRE_REPLAY, and copies the page table in front of each replay."""

    def __init__(self, site: ModelRunner) -> None:
        super().__init__(site)
        self.table = torch.zeros_like(self.shared)

    def init_forward_metadata_out_graph(self, batch: ForwardBatch) -> None:
        """Copy the rows of the batch."""
        rows = batch.req_pool_indices
        self.table[rows] = self.shared[rows]


class LengthsUploaded(Graphed):
    """Claims HOST, and uploads the mirror in front of each replay, to memory that stays."""

    def init_cuda_graph_state(self, max_bs: int, max_num_tokens: int) -> None:
        """Make the memory."""
        super().init_cuda_graph_state(max_bs, max_num_tokens)
        self._lengths = self.shared.new_zeros(max_bs, dtype=torch.int64)

    def init_forward_metadata_out_graph(self, batch: ForwardBatch) -> None:
        """Upload it."""
        assert batch.seq_lens_cpu is not None
        self._lengths[: batch.batch_size].copy_(batch.seq_lens_cpu, non_blocking=True)

    def captured(self, batch: ForwardBatch) -> ForwardBatch:
        """Take the lengths from there."""
        return replace(batch, seq_lens=self._lengths[: batch.batch_size])


class EagerRoomGrows(Graphed):
    """Claims graphs, and has room for eager plans that grows, and other room for theirs."""

    def __init__(self, site: ModelRunner) -> None:
        super().__init__(site)
        self._room = self.shared.new_empty(0)

    def init_forward_metadata(self, batch: ForwardBatch) -> None:
        """Make room for the largest batch so far."""
        size = batch.batch_size
        if size > len(self._room):
            self._room = torch.empty_like(batch.seq_lens)
        self._room[:size].copy_(batch.seq_lens)
        super().init_forward_metadata(replace(batch, seq_lens=self._room[:size]))


ODD: tuple[Odd, ...] = (
    odd(
        TableCopiedFirst,
        check="reads-end",
        graph_metadata=GraphMetadata.DEVICE,
        shared_reads_end=SharedReadsEnd.PRE_REPLAY,
    ),
    odd(
        LengthsUploaded,
        check="replay",
        graph_metadata=GraphMetadata.HOST,
        host_seq_lens=HostSeqLens.EXACT,
    ),
    odd(EagerRoomGrows, check="addresses"),
)
