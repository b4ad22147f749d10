"""A small engine that is made like vLLM, in our own words."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from textwrap import dedent, indent

from backend_caps.capability.backend import Backend, EngineClass, Reading
from backend_caps.capability.declaration import Declaration
from backend_caps.engines.model import IS_COMPLETE
from backend_caps.engines.reading import EngineReading
from backend_caps.engines.source.files import open_tree
from backend_caps.engines.vllm.read import read_vllm
from tests.unit.engines.source.trees import write_folder
from tests.unit.engines.tables import data

_TEXTS = data("vllm_engine")
MODELS: Mapping[str, Mapping[str, object]] = {
    "plain": {"layers": [[64, None]] * 3},
    "windows": {"layers": [[64, None], [64, 128], [1, None]]},
    "uniform": {"layers": [[64, None], [64, 128], [64, 128]], "uniform": True},
    "shares": {"layers": [[64, None], [64, None]], "shares": True},
    "sinks": {"layers": [[64, None, True], [64, None]]},
    "caps": {"layers": [[64, None, False, cap] for cap in (50.0, None, 0)]},
    "unasked": {"layers": [[64, 0]]},
    "odd": {"layers": [], "heads": 3},
    "refused": {"layers": [], "raises": "value"},
    "confused": {"layers": [], "raises": "type"},
    "unusual": {"layers": [], "torch": True},
}
"""Models of the small engine that is asked, by what their `config.json` has."""
ROOTS = _TEXTS["roots"]
IMPORTS = """
from vllm.v1.attention.backend import AttentionBackend, AttentionMetadataBuilder
"""
REGISTRY = _TEXTS["registry"]


def write_importable(folder: Path) -> Path:
    """Write a small engine that a process can import and ask, and its models beside it."""
    files = {path: text.removeprefix("\n") for path, text in data("vllm_launch")["files"].items()}
    write_folder(folder / "engine", files)
    for name, values in MODELS.items():
        own = {"heads": 4, "architectures": ["Small"], IS_COMPLETE: True, **values}
        write_folder(folder, {f"{name}/config.json": json.dumps(own)})
    return folder


def _members(paths: Mapping[str, str]) -> str:
    return "\n".join(f'    {name} = "{path}"' for name, path in paths.items())


def files_of(
    modules: Mapping[str, str],
    attention: Mapping[str, str] | None = None,
    mamba: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Write the files of an engine with some modules, and the names of their classes."""
    registry = REGISTRY.format(attention=_members(attention or {}), mamba=_members(mamba or {}))
    own = {f"vllm/{name}.py": IMPORTS + dedent(text) for name, text in modules.items()}
    return {
        "vllm/__init__.py": "",
        "vllm/v1/attention/backend.py": ROOTS,
        "vllm/v1/attention/backends/registry.py": registry,
        **own,
    }


def read(
    folder: Path, files: Mapping[str, str], *, version: str | None = "0.33.0"
) -> EngineReading:
    """Store files, and read them as an engine of a version."""
    if version is not None:
        files = {**files, f"vllm-{version}.dist-info/METADATA": f"Version: {version}\n"}
    return read_vllm(open_tree("vllm", write_folder(folder, files)))


def read_one(
    folder: Path, body: str, *, before: str = "", base: str = "AttentionBackend"
) -> Backend:
    """Read a class `One` with a body, after some lines of its module."""
    text = f"{dedent(before)}\nclass One({base}):\n{indent(dedent(body).strip(), '    ')}\n"
    return read(folder, files_of({"one": text})).registry["One"]


def method(name: str, *lines: str, argument: str = "") -> str:
    """Write a class method of an argument, or of none."""
    body = "\n".join(f"    {line}" for line in lines)
    return f"def {name}(cls{argument and ', '}{argument}):\n{body}"


def class_of(backend: Backend) -> EngineClass:
    """Return the class that a record was read from."""
    assert backend.engine_class is not None
    return backend.engine_class


def declared(backend: Backend) -> Declaration:
    """Return a record's declaration."""
    assert backend.declaration is not None
    return backend.declaration


def as_json(backend: Backend) -> Mapping[str, object]:
    """Write what a record declares for every case as documents have it."""
    return declared(backend).capabilities.model_dump(mode="json")


def said(backend: Backend, capability: str) -> Reading:
    """Return what a record's class says of a capability."""
    return class_of(backend).readings[capability]
