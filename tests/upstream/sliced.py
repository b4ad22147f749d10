"""What SGLang builds `sliced` by."""

from __future__ import annotations

from backend_caps_sglang.bridge import bridge

from tests.upstream.sliced_caps import SLICED

sliced = bridge("sliced", SLICED)
