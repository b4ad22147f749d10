"""The orders in which a test of the simulated device runs."""

from __future__ import annotations

import pytest

from backend_caps.simulator import Schedule, systematic_schedules


def in_every_order(num_streams: int) -> pytest.MarkDecorator:
    """Run a test in each order that finds something in a program of so many streams."""
    schedules = [*systematic_schedules(num_streams), Schedule.parse("random:7")]
    return pytest.mark.parametrize("schedule", schedules, ids=str)
