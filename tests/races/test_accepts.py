"""A wrong draft is seen by how much of it the target keeps."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from tests.races.accepts import Accepts

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("made", "told"),
    [
        pytest.param({1: {1: 2, 3: 1}}, [], id="the same"),
        pytest.param({1: {2: 1}}, [], id="a step that starts elsewhere"),
        pytest.param({2: {0: 1}}, [], id="another request"),
        pytest.param(
            {1: {1: 1, 2: 1, 3: 1}},
            ["wrong draft: request 1 got 1 tokens behind 1, not 2"],
            id="less of the same draft",
        ),
    ],
)
def test_accepts_are_those_of_the_plain_loop(
    made: Mapping[int, Mapping[int, int]], told: list[str]
) -> None:
    """Where two runs start a step at the same token, both keep as much of its draft."""
    right = Accepts(accepted={1: {1: 2, 3: 1}})
    own = Accepts(accepted={number: dict(counts) for number, counts in made.items()})

    findings = own.findings(right)

    assert list(map(str, findings)) == told
