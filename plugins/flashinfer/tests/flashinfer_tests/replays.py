"""A capture of the backend, and batches that replay it, on whichever device has graphs.

Shapes: T tokens in a batch, Hq query heads, Dv the size of a value.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace

import torch
from backend_caps_flashinfer import FlashInfer
from torch import Tensor

from backend_caps.kit.scenes import FORK, GROVE, Pools, Scene, padded
from backend_caps.relay.streams import GraphLike
from backend_caps.runtime.forward_batch import ForwardBatch

_NO_SLOT = 2**30


def replayed(captured: Scene, batches: Sequence[Scene], device: str) -> list[Tensor]:
    """Capture once, replay every batch, and read what came out when all are enqueued.

    returns  [T, Hq, Dv] for each batch, host
    """
    static = captured.on(device)
    every = {id(batch): batch for batch in batches}
    loaded = {
        key: _like(_filled(batch, captured), captured).on(device) for key, batch in every.items()
    }
    backend = FlashInfer(static.pools)
    backend.init_cuda_graph_state(len(static.counts), len(static.q))
    recording, output = _captured(backend, static, device)
    outputs = []
    for batch in batches:
        fresh = loaded[id(batch)]
        _load(static, fresh)
        backend.init_forward_metadata_out_graph(_on_static(static.batch, fresh.batch))
        # From here on the page table is the scheduler's again, as PRE_REPLAY says.
        static.pools.req_to_token.fill_(_NO_SLOT)
        recording.replay()
        outputs.append(output[: len(batch.q)].clone())
    return [own.cpu() for own in outputs]


def roomy(trees: Scene) -> Scene:
    """Give a batch of trees the mask of a graph's buffer, with room for the longest contexts."""
    assert trees.batch.tree_mask is not None
    used = trees.batch.tree_mask
    size = len(GROVE) * len(FORK) * trees.pools.req_to_token.shape[1]
    mask = torch.ones(size, dtype=torch.bool)
    mask[: len(used)] = used
    return replace(trees, batch=replace(trees.batch, tree_mask=mask))


def _captured(backend: FlashInfer, static: Scene, device: str) -> tuple[GraphLike, Tensor]:
    """Capture as a graph runner does, after a forward that makes what is made once."""
    module = torch.get_device_module(device)
    backend.init_forward_metadata_out_graph(static.batch)
    backend.init_forward_metadata_in_graph(static.batch)
    static.forward(backend)
    backend.init_forward_metadata_out_graph(static.batch)
    recording: GraphLike = module.CUDAGraph()
    with module.graph(recording):
        backend.init_forward_metadata_in_graph(static.batch)
        output = static.forward(backend)
    return recording, output


def _on_static(static: ForwardBatch, batch: ForwardBatch) -> ForwardBatch:
    """Give a capture's tensors the host lengths of the batch that was loaded into them."""
    return replace(static, seq_lens_cpu=batch.seq_lens_cpu, seq_lens_sum=batch.seq_lens_sum)


def _filled(batch: Scene, captured: Scene) -> Scene:
    """Pad a batch to a capture's sizes, with requests of no length as a graph runner does."""
    rows, tokens = len(captured.counts) - len(batch.counts), len(captured.q) - len(batch.q)
    filled = padded(batch, rows=rows, tokens=tokens)
    for lengths in (filled.batch.seq_lens, filled.batch.seq_lens_cpu):
        assert lengths is not None
        lengths[len(batch.counts) :] = 0
    return filled


def _like(batch: Scene, captured: Scene) -> Scene:
    return batch if captured.batch.tree_mask is None else roomy(batch)


def _load(captured: Scene, batch: Scene) -> None:
    """Copy a batch and its pools into the tensors that a capture reads."""
    for static, fresh in (
        (captured.pools, batch.pools),
        (captured.batch, batch.batch),
        (captured, batch),
    ):
        for name in _tensors(static):
            getattr(static, name).copy_(getattr(fresh, name))


def _tensors(holder: Pools | ForwardBatch | Scene) -> list[str]:
    """Name what is on the device; host lengths are handed over beside it."""
    names = [field.name for field in fields(holder) if field.name != "seq_lens_cpu"]
    return [name for name in names if isinstance(getattr(holder, name), Tensor)]
