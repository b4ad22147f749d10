"""Whether two engines have the same model: a digest of it, to compare."""

from __future__ import annotations

from hashlib import sha256

import torch
from torch import Tensor

from backend_caps.runtime.model import LlamaConfig
from backend_caps.runtime.model.linear import Weighted

_SAMPLES = 256
"""Numbers of each weight that are read: 75,000 of a model of 7B, of which others share few."""


def fingerprint(config: LlamaConfig, model: Weighted) -> str:
    """Digest what a model computes: its shape, and some numbers of each of its weights.

    Two models that differ in fewer numbers than lie between two samples may have the same.

    Sync: the device.
    """
    digest = sha256(config.model_dump_json().encode())
    samples: list[Tensor] = []
    for name, weight in model.named_weights():
        digest.update(f"{name} {tuple(weight.shape)} {weight.dtype}".encode())
        samples.append(_sampled(weight))
    numbers = torch.cat(samples).to("cpu").contiguous()
    digest.update(bytes(numbers.view(torch.uint8).tolist()))
    return digest.hexdigest()


def _sampled(weight: Tensor) -> Tensor:
    """Pick numbers from all of a weight: [at most about twice `_SAMPLES`] float32, device."""
    flat = weight.reshape(weight.numel())
    return flat[:: max(1, weight.numel() // _SAMPLES)].to(torch.float32)
