"""The shipped backends that are made of torch's operators, and what tests hand to all of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

from backend_caps_flex_attention import FlexAttention, Mode
from backend_caps_torch_native import TorchNative, TorchPadded
from flex_attention_caps import FLEX_ATTENTION
from torch import Tensor
from torch_native_caps import TORCH_PADDED

from backend_caps import Declaration
from backend_caps.kit.scenes import Scene, padded
from backend_caps.runtime.attention import AttentionBackend

BACKENDS: Mapping[str, Callable[..., AttentionBackend]] = {
    "torch_native": TorchNative,
    "torch_padded": TorchPadded,
    "flex_attention": partial(FlexAttention, mode=Mode.EAGER),
}
"""Kernels have tests of their own, for their interpreter and compiler take longer."""
OF_TREES: Mapping[str, Declaration] = {
    "torch_padded": TORCH_PADDED,
    "flex_attention": FLEX_ATTENTION,
}
"""The declarations of those that take a tree mask."""


def with_padding(real: Scene) -> Scene:
    """Add as many tokens as there are, in as many rows."""
    return padded(real, rows=len(real.counts), tokens=len(real.q))


def bounded(batch: Scene) -> Scene:
    """Give the host what the neediest asks for, and upper bounds that are too high."""
    lengths: Tensor | None = batch.batch.seq_lens_cpu
    assert lengths is not None, "scenes bring their lengths"
    bounds = (lengths + 3).clamp(max=batch.pools.req_to_token.shape[1])
    return replace(batch, batch=replace(batch.batch, seq_lens_cpu_upper_bound=bounds))
