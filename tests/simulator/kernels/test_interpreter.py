import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from backend_caps.simulator import simulate
from tests.simulator.kernels import interpreted

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def on_the_host(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Sequence[Tensor]]:
    """Return what Triton's own interpreter computes, in a process that it is chosen in."""
    file = tmp_path_factory.mktemp("interpreted") / "found.pt"
    subprocess.run(
        [sys.executable, "-m", interpreted.__name__, str(file)],
        cwd=ROOT,
        env={**os.environ, "TRITON_INTERPRET": "1"},
        check=True,
    )
    found: Mapping[str, Sequence[Tensor]] = torch.load(file)
    return found


@pytest.mark.parametrize("name", interpreted.CASES)
def test_kernel_computes_what_the_interpreter_does(
    name: str, on_the_host: Mapping[str, Sequence[Tensor]]
) -> None:
    """All programs in lock step compute what each of them does by itself."""
    kernel, grid, arguments = interpreted.CASES[name]

    with simulate("lazy"):
        given = [each.to("sim") if isinstance(each, Tensor) else each for each in arguments]
        kernel[grid](*given)
        found = [each.cpu() for each in given if isinstance(each, Tensor)]

    for own, expected in zip(found, on_the_host[name], strict=True):
        torch.testing.assert_close(own, expected, rtol=1e-5, atol=1e-6)
