import pytest
import torch

from backend_caps.conformance.simulator import register


@pytest.fixture(scope="session", autouse=True)
def sim() -> torch.device:
    """Make torch know the device."""
    return register()
