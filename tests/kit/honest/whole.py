"""Odd backends about what they keep."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import MutableMapping
from typing import ClassVar

import torch
from backend_caps_torch_native import TorchNative, TorchPadded
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from backend_caps import GraphMetadata, HostSeqLens, SharedReadsEnd, protocols
from tests.kit.honest.odd import Odd, odd

_MOST = 128
"""Masks that are kept."""


class LatestMasks(TorchNative):
    """Keeps masks by the lengths of a batch, and of them the latest 128."""

    def __init__(self, runner: protocols.ModelRunner) -> None:
        super().__init__(runner)
        self._masks: OrderedDict[tuple[int, ...], Tensor] = OrderedDict()

    def init_forward_metadata_out_graph(self, batch: protocols.ForwardBatch) -> None:
        """Keep the lengths, and let the oldest go."""
        super().init_forward_metadata_out_graph(batch)
        lengths = () if batch.seq_lens_cpu is None else tuple(batch.seq_lens_cpu.tolist())
        self._masks.setdefault(lengths, batch.seq_lens.clone())
        if len(self._masks) > _MOST:
            self._masks.popitem(last=False)


class OneWorkspace(TorchPadded):
    """Shares a workspace with all objects of the same pools, within a forward alone."""

    _workspaces: ClassVar[MutableMapping[Tensor, Tensor]] = WeakTensorKeyDictionary()

    def __init__(self, runner: protocols.ModelRunner) -> None:
        super().__init__(runner)
        table = self._req_to_token
        made = torch.empty(1 << 18, dtype=torch.float32, device=table.device)
        self._workspace = self._workspaces.setdefault(table, made)

    def _attend(self, q: Tensor, keys: Tensor, values: Tensor, scaling: float) -> Tensor:
        output = super()._attend(q, keys, values, scaling)
        space = self._workspace[: output.numel()]
        space.copy_(output.flatten())
        return space.view_as(output).clone()


ODD: tuple[Odd, ...] = (
    odd(
        LatestMasks,
        check="memory",
        host_seq_lens=HostSeqLens.EXACT,
        graph_replay=frozenset(),
        graph_metadata=GraphMetadata.HOST,
        shared_reads_end=SharedReadsEnd.UNKNOWN,
        max_context_len_known=False,
        max_speculative_topk=1,
    ),
    odd(OneWorkspace, check="two-batch"),
)
