"""Batches for two-batch overlap, trees of drafts among them, and what runs them whole.

Pools and model are those of the graphs' tests: every row has its slots, each half of a batch its
own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import torch
from backend_caps_torch_native import TorchPadded
from torch import Tensor
from torch_native_caps import TORCH_NATIVE, TORCH_PADDED

from backend_caps import Capabilities, Declaration, Phase, Role
from backend_caps.relay import DeviceStreams
from backend_caps.runtime import AttentionLayer, ForwardBatch, ForwardContext
from backend_caps.runtime.attention import PhaseBackends
from backend_caps.runtime.batch import ForwardMode
from backend_caps.runtime.model.llama import LlamaModel
from backend_caps.runtime.two_batch import TwoBatchRunner
from tests.runtime.graphs import rig

RAGGED = frozenset({ForwardMode.EXTEND, ForwardMode.MIXED})
TREE = (0, 0, 0, 1, 1, 3)
"""The parent of each node: two branches, one of them with a fork, and a leaf below it."""


class Seen:
    """Attention of each token to what the tree mask shows it, request after request."""

    def __init__(self, site: rig.Site) -> None:
        self._site = site
        self._slots: Sequence[Tensor] = ()
        self._visible: Sequence[Tensor] = ()

    def init_forward_metadata(self, batch: ForwardBatch) -> None:
        """Cut the page table, and the mask, by the mirror."""
        assert batch.seq_lens_cpu is not None, "this backend reads the mirror"
        assert batch.tree_mask is not None, "this backend reads a tree mask"
        lengths, table = batch.seq_lens_cpu.tolist(), self._site.req_to_token_pool.req_to_token
        rows = zip(table[batch.req_pool_indices], lengths, strict=True)
        self._slots = [row[:length].long() for row, length in rows]
        each = batch.num_tokens // batch.batch_size
        sizes = [each * length for length in lengths]
        blocks = torch.split(batch.tree_mask[: sum(sizes)], sizes)
        self._visible = [block.view(each, -1) for block in blocks]

    def init_cuda_graph_state(self, max_bs: int, max_num_tokens: int) -> None:
        """Do nothing: this backend is never captured."""

    def init_forward_metadata_out_graph(self, batch: ForwardBatch) -> None:
        """Do nothing: this backend is never captured."""

    def init_forward_metadata_in_graph(self, batch: ForwardBatch) -> None:
        """Do nothing: this backend is never captured."""

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        layer: AttentionLayer,
        batch: ForwardBatch,
        *,
        save_kv_cache: bool = True,
    ) -> Tensor:
        """Attend in one layer."""
        assert save_kv_cache, "drafts are not stored yet"
        kv, size = self._site.token_to_kv_pool, layer.qk_head_dim
        new_k, new_v = (own.view(len(own), layer.tp_k_head_num, size) for own in (k, v))
        kv.set_kv_buffer(layer, batch.out_cache_loc, new_k, new_v)
        sharing = layer.tp_q_head_num // layer.tp_k_head_num
        keys, values = (
            buffer.repeat_interleave(sharing, dim=1)
            for buffer in (kv.get_key_buffer(layer.layer_id), kv.get_value_buffer(layer.layer_id))
        )
        queries = q.view(batch.batch_size, -1, layer.tp_q_head_num, size)
        outputs = []
        for own, slots, visible in zip(queries, self._slots, self._visible, strict=True):
            scores = torch.einsum("thd,shd->hts", own, keys[slots]) * layer.scaling
            weights = scores.masked_fill(~visible, -torch.inf).softmax(dim=-1)
            outputs.append(torch.einsum("hts,shd->thd", weights, values[slots]))
        return torch.cat(outputs).flatten(1)


SEEN = Declaration(capabilities=Capabilities(), implementation=f"{__name__}:{Seen.__name__}")


@dataclass(frozen=True)
class Call:
    """A layer of a half's forward."""

    backend: int
    """The object that ran it."""
    rows: Sequence[int]
    """Whose half it was."""
    layer_id: int


class Noted(TorchPadded):
    """`torch_padded`, which notes its calls; -1 is the layer of a preparation."""

    calls: list[Call] = []  # noqa: RUF012 - one list of all objects, as their order is asked for

    def init_forward_metadata(self, batch: ForwardBatch) -> None:  # type: ignore[override]
        """Note that a forward is prepared."""
        super().init_forward_metadata(batch)
        self._note(batch, -1)

    def forward(  # type: ignore[override] # the runtime's own batch, of which it reads the rows
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        layer: AttentionLayer,
        batch: ForwardBatch,
        *,
        save_kv_cache: bool = True,
    ) -> Tensor:
        """Note which layer runs."""
        self._note(batch, layer.layer_id)
        return super().forward(q, k, v, layer, batch, save_kv_cache=save_kv_cache)

    def _note(self, batch: ForwardBatch, layer_id: int) -> None:
        self.calls.append(Call(id(self), batch.req_pool_indices.tolist(), layer_id))


NOTED = Declaration(capabilities=Capabilities(), implementation=f"{__name__}:{Noted.__name__}")
DECLARATIONS = {
    "torch_native": TORCH_NATIVE,
    "torch_padded": TORCH_PADDED,
    "seen": SEEN,
    "noted": NOTED,
}


class World:
    """A model and its pools, the same each time; contexts are random numbers."""

    def __init__(self, device: torch.device | str, backend: str = "torch_padded") -> None:
        self.device = torch.device(device)
        self.model: LlamaModel = rig.make_model(self.device)
        self.site = rig.make_site(self.device)
        self._uses = rig.uses_of(backend, DECLARATIONS[backend], list(Phase))
        generator = torch.Generator().manual_seed(2)
        for buffer in self.site.keys_and_values():
            buffer[1:].copy_(torch.randn(buffer[1:].shape, generator=generator))

    def backends(self) -> PhaseBackends:
        """Build the backends once more."""
        return PhaseBackends(self._uses, Role.TARGET, self.site)

    def runner(self) -> TwoBatchRunner:
        """Make what runs halves in turn."""
        backends, streams = (self.backends(), self.backends()), DeviceStreams(self.device)
        return TwoBatchRunner(self.model, backends, streams, frozenset(Phase))

    def whole(self, batch: ForwardBatch) -> Tensor:
        """Run a batch as one: [T, H]; its trees are those of its halves."""
        if batch.half_masks is not None:
            batch = replace(batch, tree_mask=torch.cat(self._entries(batch)), half_masks=None)
        backend = self.backends().of(batch.mode.phase)
        backend.init_forward_metadata(batch)
        context = ForwardContext(backend, batch)
        return self.model.hidden_states(batch.input_ids, batch.positions, context)

    def cache(self) -> Tensor:
        """Return what requests own of the KV cache: [layers * 2, S - 1, ...]."""
        return torch.stack([buffer[1:] for buffer in self.site.keys_and_values()])

    def batch(self, mode: ForwardMode, requests: rig.Requests, seed: int = 0) -> ForwardBatch:
        """Make a batch of cached and new tokens of each request, in rows by the seed."""
        batch = replace(rig.draw_batch(self.site, requests, seed), mode=mode)
        return replace(rig.extended(batch, requests), mode=mode) if mode in RAGGED else batch

    @staticmethod
    def _entries(batch: ForwardBatch) -> list[Tensor]:
        """List the entries of each half's mask that are its requests'."""
        assert batch.half_masks is not None
        assert batch.seq_lens_cpu is not None
        lengths, num_first = batch.seq_lens_cpu.tolist(), batch.batch_size // 2
        sums = (sum(lengths[:num_first]), sum(lengths[num_first:]))
        masks = zip(batch.half_masks, sums, strict=True)
        return [mask[: len(TREE) * own] for mask, own in masks]

    def tree_batch(self, prefixes: Sequence[int], *, unused: int = 0) -> ForwardBatch:
        """Make a verify batch of a tree a request, each with its branches in another order.

        Each half has a mask of its own; unused entries stand at the end of both.
        """
        batch = self.batch(ForwardMode.VERIFY, [(cached, len(TREE)) for cached in prefixes])
        trees = [_mixed_up(number) for number in range(len(prefixes))]
        depths = [depth for parents in trees for depth in _depths(parents)]
        bases = torch.tensor(prefixes).repeat_interleave(len(TREE))
        middle = len(prefixes) // 2
        first, second = (
            tree_mask(trees[part], prefixes[part], unused=unused).to(self.device)
            for part in (slice(0, middle), slice(middle, None))
        )
        return replace(
            batch,
            positions=(bases + torch.tensor(depths)).to(self.device),
            half_masks=(first, second),
        )


def tree_mask(
    trees: Iterable[Sequence[int]], prefixes: Sequence[int], *, unused: int = 0
) -> Tensor:
    """Write a tree mask down, entry by entry; unused entries at its end show what is nobody's."""
    entries = [
        position < cached or position - cached in _ancestors(parents, node)
        for parents, cached in zip(trees, prefixes, strict=True)
        for node in range(len(parents))
        for position in range(cached + len(parents))
    ]
    return torch.tensor(entries + [True] * unused)


def _ancestors(parents: Sequence[int], node: int) -> set[int]:
    """List a node and all above it."""
    return {node} if node == 0 else {node, *_ancestors(parents, parents[node])}


def _depths(parents: Sequence[int]) -> list[int]:
    return [len(_ancestors(parents, node)) - 1 for node in range(len(parents))]


def _mixed_up(number: int) -> Sequence[int]:
    """Return a tree of the size of `TREE`: node i continues one of those before it."""
    if not number:
        return TREE
    return [(number * 7 + node * 5) % max(node, 1) for node in range(len(TREE))]
