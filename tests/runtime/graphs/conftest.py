from collections.abc import Iterator

import pytest
import torch

from backend_caps.relay import DeviceStreams
from backend_caps.simulator import simulate
from tests.runtime.graphs.rig import SIMULATED


@pytest.fixture(params=["sim", "cuda"])
def streams(request: pytest.FixtureRequest) -> Iterator[DeviceStreams]:
    """Run a test on the simulated device, and on a CUDA device where there is one."""
    if request.param == "sim":
        with simulate("lazy"):
            yield DeviceStreams("sim", SIMULATED)
    elif torch.cuda.is_available():
        yield DeviceStreams("cuda")
    else:
        pytest.skip("no CUDA device: its graphs are real only on one")
