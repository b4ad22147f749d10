"""Liars about what comes out."""

from __future__ import annotations

import torch
from backend_caps_torch_native import TorchPadded
from torch import Tensor

from tests.conformance.liars.liar import Liar, liar


class LargePages(TorchPadded):
    """Takes every page size, and is wrong by a token where pages are larger than one."""

    def _attend(self, q: Tensor, keys: Tensor, values: Tensor, scaling: float) -> Tensor:
        keys = keys if len(keys) % 16 else torch.roll(keys, 1, 0)
        return super()._attend(q, keys, values, scaling)


LIARS: tuple[Liar, ...] = (liar(LargePages, seen="sglang#20201", check="numerics"),)
