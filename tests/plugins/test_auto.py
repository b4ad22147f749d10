"""What auto is among the shipped plugins."""

from __future__ import annotations

import pytest

from backend_caps import Facts, ServerFlags, discover, select
from backend_caps.resolution.rules import RuleSet

PLAIN = ("--attention-backend", "auto")
TREES = (*PLAIN, "--speculative-algorithm", "NGRAM", "--speculative-eagle-topk", "4")


@pytest.mark.parametrize(
    ("facts", "arguments", "expected"),
    [
        pytest.param(Facts(device="cpu"), PLAIN, "torch_native", id="a CPU"),
        pytest.param(Facts(device="cpu"), TREES, "flex_attention", id="trees on a CPU"),
        pytest.param(Facts(device="xpu"), PLAIN, "flex_attention", id="another device"),
        pytest.param(Facts(device="sim"), PLAIN, "flex_attention", id="the simulated device"),
        pytest.param(
            Facts(device="cuda", compute_capability=(9, 0)), PLAIN, "triton", id="a new GPU"
        ),
        pytest.param(
            Facts(device="cuda", compute_capability=(7, 0)),
            PLAIN,
            "flex_attention",
            id="an old GPU",
        ),
    ],
)
def test_auto_goes_by_the_device(facts: Facts, arguments: tuple[str, ...], expected: str) -> None:
    """Each device gets what was made for it; a CPU what starts without compiling."""
    flags = ServerFlags.from_argv(arguments)

    selection = select(discover(), flags, facts=facts, rules=RuleSet.builtin("sglang-0.5.13"))

    assert selection.flags.attention_backend == expected
