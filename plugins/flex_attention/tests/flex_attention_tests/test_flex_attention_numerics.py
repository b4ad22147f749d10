"""Sizes that the kit does not draw, on the eager path; it holds the others."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from backend_caps.kit.scenes import Setting, reference_attention, scene

from .rig import EAGER, bounded

pytestmark = pytest.mark.slow


@settings(deadline=None, max_examples=40, database=None)
@given(
    prefixes=st.lists(st.integers(0, 500), min_size=1, max_size=6),
    count=st.one_of(st.integers(1, 8), st.integers(120, 140)),
    seed=st.integers(0, 2**16),
)
def test_attention_equals_its_definition_for_any_uniform_batch(
    prefixes: list[int], count: int, seed: int
) -> None:
    """However many tokens all requests bring, more than a block too, the definition holds."""
    setting = Setting(seed=seed, max_context_len=640, num_slots=4096)
    batch = scene([(prefix, count) for prefix in prefixes], uniform=True, setting=setting)

    output = bounded(batch).run(EAGER)

    torch.testing.assert_close(output.double(), reference_attention(batch), atol=1e-5, rtol=1e-5)
