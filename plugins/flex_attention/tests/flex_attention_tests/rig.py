"""What the tests share: backends in either mode, bounds as an engine sets them, graphs on `sim`."""

from __future__ import annotations

import os
import shutil
from dataclasses import fields, replace
from functools import partial

import pytest
import torch
from backend_caps_flex_attention import FlexAttention, Mode
from torch import Tensor

from backend_caps.conformance.scenes import Pools, Scene, padded
from backend_caps.conformance.simulator.graphs import CUDAGraph, graph
from backend_caps.runtime.forward_batch import ForwardBatch

EAGER = partial(FlexAttention, mode=Mode.EAGER)
needs_compiler = pytest.mark.skipif(
    shutil.which(os.environ.get("CXX", "g++")) is None,
    reason="no C++ compiler: flex_attention is eager on this machine",
)


def bounded(batch: Scene, *, slack: int = 0) -> Scene:
    """Give a batch upper bounds, as a plan with UPPER_BOUND does: no mirror, and these."""
    lengths = batch.batch.seq_lens.cpu()
    relayed = replace(
        batch.batch,
        seq_lens_cpu=None,
        seq_lens_sum=None,
        seq_lens_cpu_upper_bound=lengths + slack,
    )
    return replace(batch, batch=relayed)


def compiled_output(batch: Scene) -> Tensor:
    """Run a batch in a backend that must be compiled, and still is behind it."""
    backend = FlexAttention(batch.pools)
    backend.init_forward_metadata(batch.batch)
    output = batch.forward(backend)
    assert (backend.mode, backend.reason) == (Mode.COMPILED, None)
    return output


def with_padding(real: Scene) -> Scene:
    """Add as many tokens as there are, in as many rows."""
    return padded(real, rows=len(real.counts), tokens=len(real.q))


def filled(batch: Scene, captured: Scene) -> Scene:
    """Pad a batch to a capture's sizes."""
    rows, tokens = len(captured.counts) - len(batch.counts), len(captured.q) - len(batch.q)
    return padded(batch, rows=rows, tokens=tokens)


def roomy(trees: Scene, size: int) -> Scene:
    """Give a batch of trees the mask of a graph's buffer, with room for the longest contexts."""
    assert trees.batch.tree_mask is not None
    used = trees.batch.tree_mask
    mask = torch.ones(size, dtype=torch.bool)
    mask[: len(used)] = used
    return replace(trees, batch=replace(trees.batch, tree_mask=mask))


def capture(batch: Scene, kind: type[FlexAttention] = FlexAttention) -> tuple[CUDAGraph, Tensor]:
    """Capture one layer's forward as the graph runner does: its output is the graph's memory."""
    backend = kind(batch.pools)
    backend.init_cuda_graph_state(len(batch.counts), len(batch.q))
    backend.init_forward_metadata_out_graph(batch.batch)
    with graph(recording := CUDAGraph()):
        backend.init_forward_metadata_in_graph(batch.batch)
        output = batch.forward(backend)
    return recording, output


def load(captured: Scene, batch: Scene) -> None:
    """Copy a batch and its pools into the tensors that a capture reads."""
    for static, fresh in (
        (captured.pools, batch.pools),
        (captured.batch, batch.batch),
        (captured, batch),
    ):
        for name in _device_tensors(static):
            getattr(static, name).copy_(getattr(fresh, name))


def _device_tensors(holder: Pools | ForwardBatch | Scene) -> list[str]:
    names = [field.name for field in fields(holder)]
    return [
        name
        for name in names
        if isinstance(getattr(holder, name), Tensor) and not name.startswith("seq_lens_cpu")
    ]
