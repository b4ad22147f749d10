"""A third party's backend that reads lengths on the host: it slices each request's context.

The class is `torch_native`'s, under a name that SGLang has not. Importing this loads no torch.
"""

from __future__ import annotations

from torch_native_caps import TORCH_NATIVE

SLICED = TORCH_NATIVE.model_copy(update={"adapters": {"sglang": "tests.upstream.sliced:sliced"}})
