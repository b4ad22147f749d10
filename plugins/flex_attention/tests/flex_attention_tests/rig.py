"""What the tests share: backends in either mode, and bounds as an engine sets them."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from functools import partial

import pytest
from backend_caps_flex_attention import FlexAttention, Mode
from torch import Tensor

from backend_caps.kit.scenes import Scene

EAGER = partial(FlexAttention, mode=Mode.EAGER)
needs_compiler = pytest.mark.skipif(
    shutil.which(os.environ.get("CXX", "g++")) is None,
    reason="no C++ compiler: flex_attention is eager on this machine",
)


def bounded(batch: Scene, *, slack: int = 0) -> Scene:
    """Give a batch upper bounds, as a plan with UPPER_BOUND does: no mirror, and these."""
    lengths = batch.batch.seq_lens.cpu()
    relayed = replace(
        batch.batch, seq_lens_cpu=None, seq_lens_sum=None, seq_lens_cpu_upper_bound=lengths + slack
    )
    return replace(batch, batch=relayed)


def compiled_output(batch: Scene) -> Tensor:
    """Run a batch in a backend that must be compiled, and still is behind it."""
    backend = FlexAttention(batch.pools)
    backend.init_forward_metadata(batch.batch)
    output = batch.forward(backend)
    assert (backend.mode, backend.reason) == (Mode.COMPILED, None)
    return output
