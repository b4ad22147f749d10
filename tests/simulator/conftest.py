import pytest
import torch

from backend_caps.simulator import register


@pytest.fixture(scope="session", autouse=True)
def sim() -> torch.device:
    """Make torch know the device."""
    return register()
