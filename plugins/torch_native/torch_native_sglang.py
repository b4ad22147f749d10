# ruff: noqa: INP001 - a module of its own: what is in the package is what evidence is of
"""What SGLang builds `torch_padded` by, where backend-caps-sglang is installed beside it.

`torch_native` has no such adapter: SGLang has a backend of that name, which stays.
"""

from __future__ import annotations

from backend_caps_sglang.bridge import bridge
from torch_native_caps import TORCH_PADDED

torch_padded = bridge("torch_padded", TORCH_PADDED)
