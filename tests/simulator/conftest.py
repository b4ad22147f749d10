import pytest
import torch

from backend_caps.conformance.simulator import Schedule, register, systematic_schedules


@pytest.fixture(scope="session", autouse=True)
def sim() -> torch.device:
    """Make torch know the device."""
    return register()


@pytest.fixture(params=[*systematic_schedules(4), Schedule.parse("random:7")], ids=str)
def schedule(request: pytest.FixtureRequest) -> Schedule:
    """Run a test in each order that finds something."""
    assert isinstance(request.param, Schedule)
    return request.param
