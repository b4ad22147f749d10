"""GPUs by the names that people write, and what a process on a machine with them sees."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

FORMS = "9.0, [9, 0], sm_90 or the name of a GPU, such as H100"
"""How a compute capability may be written."""
_VERSION = re.compile(r"(?:sm_?|compute_)?(\d{1,2})[._]?(\d)a?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """A kind of GPU."""

    key: str
    """The short name, such as `H100`."""
    name: str
    """Torch's `torch.cuda.get_device_name()`."""
    compute_capability: tuple[int, int]
    memory_mib: int
    multiprocessors: int
    rocm_arch: str | None = None
    """Its `gfx` name where ROCm drives it."""


@cache
def gpus() -> Mapping[str, Gpu]:
    """Read the known GPUs, by their short names."""
    stored = tomllib.loads(Path(__file__).with_name("gpus.toml").read_text("utf-8"))
    return {
        key: Gpu(key=key, **{**each, "compute_capability": tuple(each["compute_capability"])})
        for key, each in stored.items()
    }


def gpu_named(text: str) -> Gpu | None:
    """Find a GPU by its short name or by torch's, in any case; None where it is not known."""
    word = re.sub(r"[\W_]", "", text).upper()
    named = {key.upper(): gpu for key, gpu in gpus().items()}
    if word in named:
        return named[word]
    full = {re.sub(r"[\W_]", "", gpu.name).upper(): gpu for gpu in gpus().values()}
    return full.get(word)


def machine_of(gpu: Gpu) -> dict[str, str]:
    """Return what a machine asks of a backend: a compute capability, or ROCm's platform."""
    if gpu.rocm_arch is not None:
        return {"platform": "rocm"}
    return {"compute_capability": "{}.{}".format(*gpu.compute_capability)}


def gpu_of(compute_capability: tuple[int, int], *, rocm: bool) -> Gpu | None:
    """Return the GPU that stands for a compute capability, the first of the table."""
    fits = (
        gpu
        for gpu in gpus().values()
        if gpu.compute_capability == compute_capability and (gpu.rocm_arch is not None) is rocm
    )
    return next(fits, None)


def compute_capability(value: object) -> object:
    """Read a compute capability as people write it; what is none of the forms stays as it is."""
    if isinstance(value, float):
        value = f"{value:.1f}"
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str):
        return value
    if (gpu := gpu_named(value)) is not None:
        return gpu.compute_capability
    match = _VERSION.fullmatch(value.strip().lower())
    return value if match is None else (int(match[1]), int(match[2]))
