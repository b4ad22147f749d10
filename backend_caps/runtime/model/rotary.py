"""Rotary position embeddings, from a table that is built when the model is loaded.

Shapes: N positions in the table, T tokens in this batch, H heads, D their size.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from backend_caps.runtime.model.config import DefaultRope, Llama3Rope


@dataclass(frozen=True, slots=True, kw_only=True)
class Rotation:
    """The angles of one batch's tokens, looked up once for all layers."""

    cos: Tensor
    """[T, 1, D] device: cosines, the half of them repeated."""
    sin: Tensor
    """[T, 1, D] device: sines, the first half negative."""

    def rotate(self, heads: Tensor) -> Tensor:
        """Turn each pair of features (d, d + D / 2) by its token's angle.

        heads    [T, H, D] device  queries or keys
        returns  [T, H, D] device

        Stream: the current one. Sync: none. Allocates: the result, and as much beside it.
        Keeps: nothing. Capture: yes.
        """
        swapped = heads.roll(heads.shape[-1] // 2, dims=-1)
        return torch.addcmul(heads * self.cos, swapped, self.sin)


class RotaryTable:
    """Hold the cosines and sines of every position, on the device.

    Args:
        rope: how positions turn into angles.
        head_dim: D, even.
        num_positions: N; a position at or above it cannot be looked up.
        device: where the table is looked up.
        dtype: the dtype of queries and keys.
    """

    def __init__(
        self,
        rope: DefaultRope | Llama3Rope,
        head_dim: int,
        num_positions: int,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        # Built on the host, so that every device looks up the same numbers.
        positions = torch.arange(num_positions, dtype=torch.float32, device="cpu")
        angles = torch.outer(positions, frequencies(rope, head_dim))
        sines = angles.sin()
        self._cos = angles.cos().repeat(1, 2).to(device=device, dtype=dtype)
        self._sin = torch.cat([-sines, sines], dim=-1).to(device=device, dtype=dtype)

    def look_up(self, positions: Tensor) -> Rotation:
        """Gather the angles of a batch's tokens.

        positions  [T] int64, device  0 <= position < N

        Stream: the current one. Sync: none. Allocates: 2 * T * D. Keeps: nothing. Capture: yes.
        """
        return Rotation(
            cos=self._cos.index_select(0, positions).unsqueeze(1),
            sin=self._sin.index_select(0, positions).unsqueeze(1),
        )


def frequencies(rope: DefaultRope | Llama3Rope, head_dim: int) -> Tensor:
    """Return the angle, in radians, by which each pair of features turns a position: [D / 2]."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32, device="cpu") / head_dim
    plain = 1.0 / (rope.rope_theta**exponents)
    if isinstance(rope, DefaultRope):
        return plain
    # Low frequencies are divided by the factor, high ones kept, and those in between blended.
    turns = plain * (rope.original_max_position_embeddings / (2 * math.pi))
    width = rope.high_freq_factor - rope.low_freq_factor
    kept = ((turns - rope.low_freq_factor) / width).clamp(0.0, 1.0)
    return plain * kept + (plain / rope.factor) * (1.0 - kept)
