"""A line of text names a run."""

from __future__ import annotations

import pytest

from backend_caps.simulator.queues import OrderPolicy
from tests.races.cases import Case

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("seed", range(20))
def test_case_is_what_its_line_says(seed: int) -> None:
    """The line that a case prints as is read as the same case."""
    case = Case.drawn(seed)

    assert Case.parse(str(case)) == case


def test_case_line_with_another_end_is_refused() -> None:
    """A word that no case ends in is named, with what was expected."""
    with pytest.raises(ValueError, match=r"'engine 1 lazy twice' ends in 'twice'; check_races or"):
        Case.parse("engine 1 lazy twice")


@pytest.mark.parametrize("policy", OrderPolicy)
def test_drawn_case_has_the_policy_that_is_asked_for(policy: OrderPolicy) -> None:
    """A policy that is given is the drawn schedule's."""
    case = Case.drawn(5, policy)

    assert case.schedule.policy is policy


def test_replay_line_is_the_command() -> None:
    """A failing run prints the command that repeats it."""
    case = Case.parse("engine 7 starve:2")

    assert case.replay_line == "python -m tests.races.replay engine 7 starve:2"
