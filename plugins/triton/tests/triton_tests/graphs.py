"""A captured forward of one batch's size, and other batches that replay it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace

import torch
from backend_caps_triton import TritonAttention
from torch import Tensor

from backend_caps.kit.scenes import (
    Pools,
    Scene,
    Setting,
    dice_of,
    layer_of,
    padded,
    random_tree,
    scene,
    tree_scene,
)
from backend_caps.runtime.forward_batch import ForwardBatch

NUM_REQUESTS = 3
MAX_CONTEXT_LEN = 160
DECODE, VERIFY, TREES = 1, 3, 4
"""Tokens of each request of a batch; four of them are a tree."""


class Captured:
    """A graph of one layer, and the tensors that it reads.

    Args:
        make: the backend.
        batch: what is captured, as large as replays may be, on a device with graphs.
    """

    def __init__(self, make: Callable[[Pools], TritonAttention], batch: Scene) -> None:
        self.static = batch
        self.backend = make(batch.pools)
        self.backend.init_cuda_graph_state(len(batch.counts), len(batch.q))
        self.plan()
        self.backend.init_forward_metadata_in_graph(batch.batch)
        batch.forward(self.backend)
        self.plan()
        module = torch.get_device_module(batch.q.device)
        self._graph = module.CUDAGraph()
        with module.graph(self._graph):
            self.backend.init_forward_metadata_in_graph(batch.batch)
            self.output = batch.forward(self.backend)

    def load(self, batch: Scene) -> None:
        """Copy a batch and its pools to where the graph reads them."""
        for static, fresh in (
            (self.static.pools, batch.pools),
            (self.static.batch, batch.batch),
            (self.static, batch),
        ):
            for name in _tensors(static):
                getattr(static, name).copy_(getattr(fresh, name))

    def plan(self) -> None:
        """Do what comes before a replay."""
        self.backend.init_forward_metadata_out_graph(self.static.batch)

    def replay(self) -> None:
        """Run the graph alone."""
        self._graph.replay()

    def replayed(self, batch: Scene) -> Tensor:
        """Run a batch by the graph: what its real tokens get, [T, Hq, Dv]."""
        self.load(filled(batch).on(self.output.device))
        self.plan()
        self.replay()
        return self.output[: len(batch.q)].clone()


def drawn(num_tokens: int, seed: int, num_requests: int | None = None) -> Scene:
    """Draw a batch of up to `NUM_REQUESTS` requests, of as many tokens each, over any contexts."""
    dice = dice_of(seed)
    count = dice.randint(1, NUM_REQUESTS) if num_requests is None else num_requests
    prefixes = [dice.randint(0, MAX_CONTEXT_LEN - num_tokens) for _ in range(count)]
    setting = Setting(
        layer=layer_of(2, 1), max_context_len=MAX_CONTEXT_LEN, num_slots=512, num_rows=4, seed=seed
    )
    if num_tokens != TREES:
        requests = [(prefix, num_tokens) for prefix in prefixes]
        return scene(requests, uniform=True, setting=setting)
    trees = [(prefix, random_tree(TREES, 3, dice)) for prefix in prefixes]
    return roomy(tree_scene(trees, setting=setting))


def filled(batch: Scene) -> Scene:
    """Pad a batch to the size that is captured."""
    rows = NUM_REQUESTS - len(batch.counts)
    return padded(batch, rows=rows, tokens=rows * batch.counts[0])


def roomy(trees: Scene) -> Scene:
    """Give a batch of trees the mask of a graph's buffer, with room for the longest contexts."""
    assert trees.batch.tree_mask is not None
    used = trees.batch.tree_mask
    mask = torch.ones(NUM_REQUESTS * TREES * MAX_CONTEXT_LEN, dtype=torch.bool)
    mask[: len(used)] = used
    return replace(trees, batch=replace(trees.batch, tree_mask=mask))


def _tensors(holder: Pools | ForwardBatch | Scene) -> list[str]:
    names = [field.name for field in fields(holder)]
    host = {"seq_lens_cpu"}
    return [
        name for name in names if isinstance(getattr(holder, name), Tensor) and name not in host
    ]
