"""Modules that run beside the real SGLang, in the environment that `make upstream` builds."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

from tests.upstream.sglang_wheel import WHEELS

ROOT = WHEELS.parents[1]
ENTRIES = {
    "simulated-platform": (
        "[sglang.srt.platforms]\nsim = tests.upstream.sglang_platform:activate\n"
    ),
    "sliced": "[backend_caps.backends]\nsliced = tests.upstream.sliced_caps:SLICED\n",
}
"""What else is installed for a run on the simulated device, by distribution."""
_SIMULATED = {
    "SGLANG_PLATFORM": "sim",
    "SGLANG_ENABLE_WAR_BARRIER": "1",  # which is always on where SGLang sees CUDA
    "TORCHDYNAMO_DISABLE": "1",  # what is compiled would not be seen by the simulator
    "TRITON_INTERPRET": "1",
}


def python_of(version: str, package: str = "sglang") -> Path:
    """Return the Python that has a release of SGLang, or of another engine.

    Raises:
        FileNotFoundError: the environment is not built.
    """
    python = WHEELS.with_name("engines") / f"{package}-{version}" / "bin" / "python"
    if not python.exists():
        raise FileNotFoundError(f"no environment at {python}. Build it: make upstream")
    return python


def run_beside(
    module: str, *words: str, environment: Mapping[str, str] | None = None
) -> dict[str, object]:
    """Run a module beside SGLang, and read the JSON that it prints.

    Raises:
        FileNotFoundError: the environment is not built.
    """
    done = subprocess.run(
        [str(python_of("0.5.23")), "-m", module, *words],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", **(environment or {})},
    )
    assert done.returncode == 0, done.stderr
    document: dict[str, object] = json.loads(done.stdout)
    return document


def run_simulated(folder: Path, arguments: Mapping[str, object]) -> dict[str, object]:
    """Serve requests by SGLang's scheduler on the simulated device; see `sglang_steps`."""
    installed = folder / "installed"
    for name, entries in ENTRIES.items():
        info = installed / f"{name.replace('-', '_')}-0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0\n")
        (info / "entry_points.txt").write_text(entries)
    return run_beside(
        "tests.upstream.sglang_steps",
        str(folder / "models"),
        json.dumps(arguments),
        environment={**_SIMULATED, "PYTHONPATH": str(installed)},
    )
