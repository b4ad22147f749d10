"""Where torch cannot compile: the backend attends eagerly, and says why."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from backend_caps_flex_attention import FlexAttention, Mode

from backend_caps.kit.scenes import PREFIXED, reference_attention, scene
from backend_caps.simulator import simulate

from .rig import EAGER

pytestmark = pytest.mark.slow

_WITHOUT_COMPILER = """
import logging
import torch
from backend_caps.kit.scenes import PREFIXED, reference_attention, scene
from backend_caps_flex_attention import FlexAttention

logging.basicConfig(format="%(message)s")
batch = scene(PREFIXED)
backend = FlexAttention(batch.pools)
backend.init_forward_metadata(batch.batch)
output = [batch.forward(backend) for _ in range(2)][-1]
torch.testing.assert_close(output.double(), reference_attention(batch), atol=1e-5, rtol=1e-5)
print(backend.mode.value)
"""


def test_a_device_without_a_kernel_is_reported_at_the_start() -> None:
    """`flex_attention` refuses devices that it does not know, and so it is not asked."""
    with simulate("eager"):
        backend = FlexAttention(scene(PREFIXED).on("sim").pools)

    said = (backend.mode, backend.reason)

    assert said == (Mode.EAGER, "flex_attention has no kernel for device 'sim'")


def test_a_backend_is_compiled_unless_it_is_said() -> None:
    """Before its first forward a backend means to compile; one that is asked for eager says so."""
    pools = scene(PREFIXED).pools

    said = [(own.mode, own.reason) for own in (FlexAttention(pools), EAGER(pools))]

    assert said == [(Mode.COMPILED, None), (Mode.EAGER, "it was asked for")]


def test_compiling_that_is_switched_off_is_said(caplog: pytest.LogCaptureFixture) -> None:
    """Where torch runs as it stands what it should compile, the eager path is taken, and logged."""
    batch = scene(PREFIXED)
    backend = FlexAttention(batch.pools)
    backend.init_forward_metadata(batch.batch)

    with torch.compiler.set_stance("force_eager"):
        output = batch.forward(backend)

    assert torch.equal(output, batch.run(EAGER))
    assert caplog.messages == [
        "flex_attention attends eagerly, and costs more: torch.compile is switched off"
    ]
    assert (backend.mode, backend.reason) == (Mode.EAGER, "torch.compile is switched off")


@pytest.mark.timeout(400)
def test_a_missing_compiler_is_said_once(tmp_path: Path) -> None:
    """Without a C++ compiler the first forward says so, and every one is right."""
    nowhere = {"CXX": "no-such-compiler", "TORCHINDUCTOR_CACHE_DIR": str(tmp_path)}

    run = subprocess.run(  # noqa: S603 - our own interpreter
        [sys.executable, "-c", _WITHOUT_COMPILER],
        capture_output=True,
        check=True,
        env={**os.environ, **nowhere},
        text=True,
    )

    lines = [line for line in run.stderr.splitlines() if line.startswith("flex_attention")]
    assert run.stdout == "eager\n"
    assert len(lines) == 1
    assert "no-such-compiler" in lines[0] or "InvalidCxxCompiler" in lines[0]


def test_the_eager_path_equals_the_definition_after_a_kernel_failed() -> None:
    """The forward that could not be compiled is not lost: its output is the eager one's."""
    batch = scene(PREFIXED)

    with torch.compiler.set_stance("force_eager"):
        output = batch.run(FlexAttention)

    torch.testing.assert_close(output.double(), reference_attention(batch), atol=1e-5, rtol=1e-5)
