"""Expressions that are drawn, against numpy."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.simulator.kernels.expressions import computed

INTEGERS = torch.tensor([0, 1, -1, 7, -100, 2**31 - 1, -(2**31), 12345], dtype=torch.int32)
OTHERS = torch.tensor([3, -3, 5, 1, 2**20, -7, 11, -1], dtype=torch.int32)
FLOATS = torch.tensor([0.5, -1.25, 3.0, 0.0, 100.5, -7.75, 1e-3, -2.0])
MORE = torch.tensor([2.0, 0.25, -3.0, 1.0, -0.5, 4.0, 8.0, -1.0])


def _grown(leaves: st.SearchStrategy[str], pairs: list[str]) -> st.SearchStrategy[str]:
    """Draw expressions of leaves, by texts with two places."""

    def grow(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
        return st.builds(lambda text, a, b: text.format(a, b), st.sampled_from(pairs), inner, inner)

    return st.recursive(leaves, grow, max_leaves=6)


INTEGER_EXPRESSIONS = _grown(
    st.sampled_from(["a", "b", "(a + 3)", "(b * 5)", "(-a)"]),
    [
        "({} + {})",
        "({} - {})",
        "({} * {})",
        "({} & {})",
        "({} | {})",
        "({} ^ {})",
        "max({}, {})",
        "min({}, {})",
        "where({0} < {1}, {0}, {1} - 1)",
        "where({0} == {1}, 2, {0})",
        "({} >> ({} & 15))",
        "({} << ({} & 7))",
    ],
)
FLOAT_EXPRESSIONS = _grown(
    st.sampled_from(["a", "b", "(a + 1.5)", "(b * 0.5)", "(-a)"]),
    [
        "({} + {})",
        "({} - {})",
        "({} * {})",
        "max({}, {})",
        "min({}, {})",
        "where({0} < {1}, {0}, {1} * 2.0)",
        "where({0} >= {1}, {1}, {0} - 0.25)",
        "abs({} - {})",
    ],
)
IN_NUMPY: Mapping[str, object] = {
    "max": np.maximum,
    "min": np.minimum,
    "where": np.where,
    "abs": np.abs,
}
IN_TRITON = {"max(": "tl.maximum(", "min(": "tl.minimum(", "where(": "tl.where(", "abs(": "tl.abs("}


def _in_triton(expression: str) -> str:
    for name, own in IN_TRITON.items():
        expression = expression.replace(name, own)
    return expression


@pytest.mark.filterwarnings("ignore:overflow encountered")
@settings(max_examples=40, deadline=None)
@given(INTEGER_EXPRESSIONS)
def test_integers_compute_what_numpy_does(expression: str) -> None:
    """Expressions of integers are exact, and wrap."""
    found = computed(f"{_in_triton(expression)}", INTEGERS, OTHERS)

    names = {**IN_NUMPY, "a": INTEGERS.numpy(), "b": OTHERS.numpy()}
    expected = eval(expression, names)  # noqa: S307 - drawn above
    np.testing.assert_array_equal(found.numpy(), expected)


@settings(max_examples=40, deadline=None)
@given(FLOAT_EXPRESSIONS)
def test_numbers_compute_what_numpy_does(expression: str) -> None:
    """Expressions of float32 are rounded at each step, and nothing is fused."""
    found = computed(_in_triton(expression), FLOATS, MORE)

    names = {**IN_NUMPY, "a": FLOATS.numpy(), "b": MORE.numpy()}
    expected = eval(expression, names)  # noqa: S307 - drawn above
    np.testing.assert_array_equal(found.numpy(), expected)
