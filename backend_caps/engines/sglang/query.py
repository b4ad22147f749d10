"""Asks an installed SGLang what it makes of a command line, in a process of its own."""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from backend_caps.capability.gpu import Gpu
from backend_caps.engines.model import in_folders
from backend_caps.engines.reading import EngineError, LaunchQuery
from backend_caps.resolution.flags import ServerFlags
from backend_caps.resolution.launch import Launch, Refusal, Rewrite, Unchecked

_SCRIPT = Path(__file__).with_name("query_script.py")
_LONGEST_S = 600
"""How long importing SGLang and processing may take."""
CUDA, ROCM = "13.0", "7.0"
"""The versions that a server's torch is built for."""
_FIND = "import importlib.util as u; print(*u.find_spec('sglang').submodule_search_locations)"


def folder_of(python: Path) -> Path:
    """Return the folder that a Python imports SGLang from, without importing it.

    Raises:
        EngineError: it cannot be started, or has no SGLang.
    """
    try:
        done = subprocess.run(  # noqa: S603 - the Python that the user names
            [str(python), "-c", _FIND], capture_output=True, text=True, check=True, timeout=60
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise EngineError(
            "engine-not-installed",
            f"{python} finds no sglang ({error}). Expected the Python of an environment that has "
            "it, such as venv/bin/python.",
        ) from error
    return Path(done.stdout.strip()).parent


def ask_launches(python: Path, query: LaunchQuery) -> list[Launch]:
    """Let the SGLang of an environment process command lines; it needs no GPU and no weights.

    Args:
        python: the environment's Python.
        query: the command lines, and the machine, which torch is made to describe.

    Raises:
        EngineError: Python cannot be started, or gives no answer.
    """
    gpu, model = query.gpu, query.model
    with in_folders(query.lines, model) as (around, named, path):
        command_lines = [[*words, "--model-path", path] for words in named]
        answers = ask(python, command_lines, gpu, query.num_gpus)
    texts = (json.dumps(answer).replace(f"{around}/", "") for answer in answers)
    return [launch_of(json.loads(text), gpu, model.name) for text in texts]


def ask(
    python: Path, command_lines: Sequence[Sequence[str]], gpu: Gpu, num_gpus: int
) -> list[dict[str, Any]]:
    """Return the answers of `query_script.py` to command lines, in order.

    Args:
        python: the environment's Python.
        command_lines: each with its `--model-path`, a folder.
        gpu: the machine's GPUs.
        num_gpus: how many it has.

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
                [str(python), str(_SCRIPT), str(write)],
                input=json.dumps(request),
                capture_output=True,
                text=True,
                check=False,
                pass_fds=[write],
                timeout=_LONGEST_S + len(command_lines),
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


def launch_of(answer: Mapping[str, Any], gpu: Gpu, model: str) -> Launch:
    """Make the launch of an answer."""
    refusal = answer.get("refusal")
    undecided = answer.get("undecided")
    values = answer.get("values", {})
    return Launch(
        engine=f"sglang-{answer.get('version', 'unknown')}",
        machine=gpu.key,
        model=model,
        refusal=None
        if refusal is None
        else Refusal(message=refusal["message"], at=refusal["at"] or "sglang"),
        unchecked=()
        if undecided is None
        else (
            Unchecked(
                message=undecided, at=answer.get("stage", "import sglang"), unless="its environment"
            ),
        ),
        rewrites=tuple(Rewrite(**each) for each in answer.get("rewrites", ())),
        values=values,
        flags=flags_of(values),
        facts=answer.get("facts", {}),
        classes={slot: tuple(paths) for slot, paths in answer.get("classes", {}).items()},
        wrappers=frozenset(answer.get("wrappers", ())),
        joined=frozenset(answer.get("joined", ())),
    )


def flags_of(values: Mapping[str, object]) -> dict[str, object]:
    """List the flags of `ServerFlags` by SGLang's final arguments, where these are known."""
    known = {name: value for name, value in values.items() if not _is_unknown(value)}
    flags = {
        name: value
        for name, value in known.items()
        if name in ServerFlags.model_fields and name != "unrelated" and value is not None
    }
    graphs = known.get("cuda_graph_config")
    if isinstance(graphs, dict):
        phases = [each for each in graphs.values() if isinstance(each, dict)]
        flags["disable_cuda_graph"] = all(each.get("backend") == "disabled" for each in phases)
    width = known.get("attn_dp_size")
    if isinstance(width, int) and width > 1:
        flags["enable_dp_attention"] = True
    return flags


def _is_unknown(value: object) -> bool:
    """Return whether a value, or one in it, is written as not known."""
    if isinstance(value, Mapping):
        return "unknown" in value or any(map(_is_unknown, value.values()))
    return isinstance(value, list) and any(map(_is_unknown, value))
