"""One spelling for names that have several: of flags, facts, conditions and declarations alike.

Were a condition on `bf16` compared with a server's `bfloat16` letter by letter, a need would be
lost without a word.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from pydantic import BeforeValidator
from pydantic_core import PydanticCustomError

AUTO = "auto"
"""The engine decides, so nobody knows yet."""
_ALGORITHMS = {"NEXTN": "EAGLE"}
_DTYPES = {
    "bf16": "bfloat16",
    "float": "float32",
    "fp16": "float16",
    "fp32": "float32",
    "half": "float16",
}
_NO_DEVICES: Mapping[str, str] = {
    "amd": "cuda",
    "gpu": "cuda",
    "hip": "cuda",
    "metal": "mps",
    "nvidia": "cuda",
    "rocm": "cuda",
}
"""Names that no device has, with the one that torch uses. Others may be: backends add types."""


def algorithm(value: object) -> object:
    """Read a speculative algorithm as the engine does: in any case, by its main name."""
    if not isinstance(value, str):
        return value
    name = value.strip().upper()
    return _ALGORITHMS.get(name, name)


def dtype(value: object) -> object:
    """Read a dtype by torch's name, with or without `torch.`; SGLang's fp8 names stay."""
    if not isinstance(value, str):
        return value
    name = value.strip().removeprefix("torch.").lower()
    return _DTYPES.get(name, name)


def device(value: object) -> object:
    """Read a device's type; which one of several is no matter.

    Raises:
        PydanticCustomError: it is another name for what torch calls otherwise.
    """
    if not isinstance(value, str):
        return value
    name = value.strip().lower().partition(":")[0]
    if name in _NO_DEVICES:
        said = "Input should be a device type as torch calls it (did you mean {meant!r}?)"
        raise PydanticCustomError("device_type", said.format(meant=_NO_DEVICES[name]))
    return name


def unless_auto(value: object) -> object:
    """Read `auto` as not known."""
    return None if value == AUTO else value


Algorithm = Annotated[str, BeforeValidator(algorithm)]
Dtype = Annotated[str, BeforeValidator(dtype)]
Device = Annotated[str, BeforeValidator(device)]
