from __future__ import annotations

import pytest
import torch


@pytest.fixture(params=["cpu", "cuda"])
def device(request: pytest.FixtureRequest) -> torch.device:
    """Run a test on the CPU, and on a CUDA device where there is one."""
    device = torch.device(request.param)
    if device.type == "cuda" and not torch.cuda.is_available():
        pytest.skip("no CUDA device: kernels are compiled and run on one alone")
    return device
