"""Asks an installed engine what it makes of command lines, in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

from backend_caps.capability.gpu import Gpu
from backend_caps.engines.reading import EngineError

_PROCESS = Path(__file__).with_name("query_process.py")
_LONGEST_S = 600
"""How long importing an engine may take."""
_LONGEST_LINE_S = 10
"""How long processing a command line may take, on a machine that does other work too."""
CUDA, ROCM = "13.0", "7.0"
"""The versions that a server's torch is built for."""


def folder_of(python: Path, engine: str) -> Path:
    """Return the folder that a Python imports an engine from, without importing it.

    Raises:
        EngineError: it cannot be started, or does not have the engine.
    """
    find = f"import importlib.util as u; print(*u.find_spec({engine!r}).submodule_search_locations)"
    try:
        done = subprocess.run(  # noqa: S603 - the Python that the user names
            [str(python), "-c", find], capture_output=True, text=True, check=True, timeout=60
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise EngineError(
            "engine-not-installed",
            f"{python} finds no {engine} ({error}). Expected the Python of an environment that has "
            "it, such as venv/bin/python.",
        ) from error
    return Path(done.stdout.strip()).parent


def ask(
    python: Path,
    script: Path,
    command_lines: Sequence[Sequence[str]],
    gpu: Gpu,
    num_gpus: int,
    environ: Mapping[str, str] = MappingProxyType({}),
) -> list[dict[str, Any]]:
    """Return the answers of an engine's `query_script.py` to command lines, in order.

    Args:
        python: the environment's Python.
        script: the engine's, which `query_process.py` loads there.
        command_lines: each with its model, a folder.
        gpu: the machine's GPUs.
        num_gpus: how many it has.
        environ: variables beside those of this process.

    Raises:
        EngineError: Python cannot be started, or ends before the last answer.
    """
    request = {
        "machine": _machine(gpu, num_gpus),
        "command_lines": [list(each) for each in command_lines],
    }
    with _answers() as (read, write):
        try:
            done = subprocess.run(  # noqa: S603 - the same, with a script of ours
                [str(python), str(_PROCESS), str(write), str(script)],
                input=json.dumps(request),
                capture_output=True,
                text=True,
                check=False,
                pass_fds=[write],
                env={**os.environ, **environ},
                timeout=_LONGEST_S + _LONGEST_LINE_S * len(command_lines),
            )
        except (OSError, subprocess.SubprocessError) as error:
            words = f"{python} cannot be asked: {error}"
            raise EngineError("engine-does-not-answer", words) from error
        found = [json.loads(line) for line in read()]
    if len(found) < len(command_lines):
        raise EngineError(
            "engine-does-not-answer",
            f"{python} ended with status {done.returncode} and {len(found)} of "
            f"{len(command_lines)} answers: {done.stderr.strip()[-2000:]}",
        )
    return found


@contextmanager
def _answers() -> Iterator[tuple[Any, int]]:
    """Open a file for answers: what reads its lines, and a descriptor to write to."""
    with tempfile.TemporaryFile() as file:

        def read() -> list[bytes]:
            file.seek(0)
            return file.read().splitlines()

        yield read, file.fileno()


def _machine(gpu: Gpu, num_gpus: int) -> dict[str, object]:
    is_rocm = gpu.rocm_arch is not None
    return {
        "device": "cuda",
        "device_name": gpu.name,
        "compute_capability": list(gpu.compute_capability),
        "memory_mib": gpu.memory_mib,
        "num_multiprocessors": gpu.multiprocessors,
        "gcn_arch": gpu.rocm_arch,
        "cuda": None if is_rocm else CUDA,
        "rocm": ROCM if is_rocm else None,
        "num_gpus": num_gpus,
    }
