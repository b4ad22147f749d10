"""Imports torch to name its dtypes."""

from __future__ import annotations

import torch

from backend_caps import Capabilities, Declaration, Role

DECLARATION = Declaration(
    capabilities=Capabilities(
        roles=frozenset(Role), dtypes={str(torch.float32)}, kv_cache_dtypes={str(torch.float32)}
    ),
    implementation="backend_caps_torch_native.padded:TorchPadded",
)
