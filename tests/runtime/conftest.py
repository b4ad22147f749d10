import pytest
import torch

from tests.runtime.oracle import Oracle, ask_transformers


@pytest.fixture(params=["cpu", "cuda"])
def device(request: pytest.FixtureRequest) -> torch.device:
    """Run a test on the CPU, and on a CUDA device where there is one."""
    device = torch.device(request.param)
    if device.type == "cuda" and not torch.cuda.is_available():
        pytest.skip("no CUDA device: streams, pinned memory and graphs are real only on one")
    return device


@pytest.fixture(scope="session")
def oracle(tmp_path_factory: pytest.TempPathFactory) -> Oracle:
    """Ask transformers once for the tokens that every way of running has to give."""
    return ask_transformers(tmp_path_factory.mktemp("llama"))
