"""The base of every model that crosses a boundary, and one spelling for the names in them.

Were a condition on `bf16` compared with a server's `bfloat16` letter by letter, a need would be
lost without a word.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Annotated, Self, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, StringConstraints
from pydantic_core import PydanticCustomError

_Value = TypeVar("_Value")


class FrozenMapping(Mapping[str, _Value]):
    """An immutable, hashable mapping, sorted by key."""

    def __init__(self, values: Mapping[str, _Value]) -> None:
        self._values = dict(sorted(values.items()))

    def __getitem__(self, key: str) -> _Value:
        """Return the value of a key."""
        return self._values[key]

    def __iter__(self) -> Iterator[str]:
        """List the keys, sorted."""
        return iter(self._values)

    def __len__(self) -> int:
        """Count the keys."""
        return len(self._values)

    def __hash__(self) -> int:
        """Hash the items: equal mappings have equal hashes."""
        return hash(tuple(self._values.items()))

    def __repr__(self) -> str:
        """Show the mapping."""
        return repr(self._values)


class FrozenModel(BaseModel):
    """Data that is validated when it is created, and immutable afterwards.

    The docstrings below fields are for readers and for the generated reference; having pydantic
    parse them out of the source would cost every process a third of its import time.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    @cached_property
    def digest(self) -> str:
        """The first 12 hexadecimal digits of the SHA-256 of its JSON."""
        return hashlib.sha256(self.model_dump_json().encode()).hexdigest()[:12]

    def model_copy(self, *, update: Mapping[str, object] | None = None, deep: bool = False) -> Self:
        """Copy, validating what `update` brings; pydantic's own copy would not."""
        del deep  # frozen values may be shared
        stated = {name: getattr(self, name) for name in self.model_fields_set}
        return type(self).model_validate({**stated, **(update or {})})


AUTO = "auto"
"""The engine decides the value, which is not known yet."""
_ALGORITHMS = {"NEXTN": "EAGLE"}
_DTYPES = {
    "bf16": "bfloat16",
    "float": "float32",
    "fp16": "float16",
    "fp32": "float32",
    "half": "float16",
}
_NO_DEVICES: Mapping[str, str] = {
    **dict.fromkeys(("amd", "gpu", "hip", "nvidia", "rocm"), "cuda"),
    "metal": "mps",
}
"""Vendors' names of devices, with torch's type. Other names pass: torch backends add types."""


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
    """Read a device's type; its index is dropped.

    Raises:
        PydanticCustomError: it is a vendor's name; the message has torch's.
    """
    if not isinstance(value, str):
        return value
    name = value.strip().lower().partition(":")[0]
    if name in _NO_DEVICES:
        text = "Input should be a device type as torch calls it (did you mean {meant!r}?)"
        raise PydanticCustomError("device_type", text.format(meant=_NO_DEVICES[name]))
    return name


def unless_auto(value: object) -> object:
    """Read `auto` as not known."""
    return None if value == AUTO else value


def _frozen(values: Mapping[str, object]) -> FrozenMapping[object]:
    return FrozenMapping(values)


FROZEN = AfterValidator(_frozen)
"""The annotation of a field that holds a mapping."""
Text = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]
"""A text that is not blank."""
Algorithm = Annotated[str, BeforeValidator(algorithm)]
Dtype = Annotated[str, BeforeValidator(dtype)]
Device = Annotated[str, BeforeValidator(device)]
OrAuto = Annotated[_Value | None, BeforeValidator(unless_auto)]
"""A value, or `auto`, which is read as not known."""
