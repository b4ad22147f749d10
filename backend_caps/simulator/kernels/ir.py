"""Triton's tensor IR as data: functions of blocks, of operations on numbered values."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache

import torch

from backend_caps.simulator.errors import Site
from backend_caps.simulator.kernels.errors import KernelTextError

_SHAPED = re.compile(r"tensor<((?:\d+x)*)(.*?)(?:, #.*)?>$")

DTYPES: Mapping[str, torch.dtype] = {
    "i1": torch.bool,
    "i8": torch.int8,
    "i16": torch.int16,
    "i32": torch.int32,
    "i64": torch.int64,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "f32": torch.float32,
    "f64": torch.float64,
    "f8E4M3FN": torch.float8_e4m3fn,
    "f8E5M2": torch.float8_e5m2,
}
"""What each of the IR's types of numbers is to torch; its integers have no sign."""
NOWHERE = Site("<unknown>", 0)
"""The line of what the compiler made by itself."""
FLOAT8 = frozenset(dtype for name, dtype in DTYPES.items() if name.startswith("f8"))
"""Types that torch converts from and to, and computes nothing with."""


@dataclass(frozen=True, slots=True)
class Kind:
    """The type of a value."""

    dtype: torch.dtype
    """Of its elements, or of what they point to."""
    shape: tuple[int, ...] = ()
    """Of one program's block; a number has none."""
    is_pointer: bool = False
    """Whether its elements are addresses."""

    @property
    def held(self) -> torch.dtype:
        """What its elements are while a kernel runs: addresses are int64, float8 is its bits."""
        if self.is_pointer:
            return torch.int64
        return torch.int8 if self.dtype in FLOAT8 else self.dtype


@dataclass(slots=True, kw_only=True)
class Operation:
    """One operation; values are numbered through the function."""

    name: str
    """`arith.addi`."""
    operands: Sequence[int] = ()
    """The values that it takes."""
    results: Sequence[int] = ()
    """The values that it gives."""
    kinds: Sequence[Kind] = ()
    """The types of its results."""
    attributes: Mapping[str, str] = field(default_factory=dict)
    """Its attributes, as they are printed."""
    words: str = ""
    """What is printed between its name and its type, without values and attributes."""
    regions: list[list[Block]] = field(default_factory=list)
    """The blocks of each of its regions."""
    targets: Sequence[tuple[str, Sequence[int]]] = ()
    """The blocks that it branches to, with their arguments."""
    lines: Sequence[Site] = (NOWHERE,)
    """Its line in the kernel, and behind it those of the calls that lead to it."""

    @property
    def site(self) -> Site:
        """Its line in the kernel."""
        return self.lines[0]


@dataclass(slots=True)
class Block:
    """Operations that run in order; the last one says how it goes on."""

    label: str
    """`^bb1`; the first block of a region has none."""
    arguments: list[int] = field(default_factory=list)
    """The values that it is entered with."""
    operations: list[Operation] = field(default_factory=list)
    """The operations."""


@dataclass(slots=True, kw_only=True)
class Function:
    """A kernel, or a function that it calls."""

    name: str
    """As the IR has it."""
    arguments: Sequence[int]
    """Its arguments' values."""
    kinds: dict[int, Kind]
    """The type of each value."""
    blocks: list[Block]
    """Its body; it is entered at the first."""
    names: Mapping[int, str]
    """What the kernel's source calls an argument."""


@cache
def kind_of(text: str) -> Kind:
    """Read a type.

    Raises:
        KernelTextError: it is none that is known here.
    """
    shaped = _SHAPED.match(text)
    if shaped is not None:
        sizes = shaped[1].split("x")[:-1]
        element = kind_of(shaped[2])
        return Kind(element.dtype, tuple(map(int, sizes)), element.is_pointer)
    if text.startswith("!tt.ptr<"):
        inner = text.removeprefix("!tt.ptr<").removesuffix(">")
        pointee = kind_of(inner)
        return Kind(torch.int64 if pointee.is_pointer else pointee.dtype, is_pointer=True)
    if text not in DTYPES:
        raise KernelTextError(f"values of type {text!r}")
    return Kind(DTYPES[text])
