"""Host lengths of drawn command lines, beside what SGLang's own code decides."""

from __future__ import annotations

import pytest

from tests.upstream.host_lengths import Verdict, trials


@pytest.mark.slow
@pytest.mark.upstream
@pytest.mark.parametrize("release", ["0.5.13", "0.5.23"])
def test_host_lengths_are_what_the_release_decides(release: str) -> None:
    """A plan copies lengths where the release does; a rule of our own may add to it."""
    found = list(trials(1, 8, release))

    wrong = [each for each in found if each.verdict in {Verdict.PESSIMISTIC, Verdict.OPTIMISTIC}]

    assert len(found) >= 8
    assert [str(each) for each in wrong] == []
