"""Instructions of PTX that kernels write by hand, on registers of 32 bits.

What a GPU approximates is exact here, up to torch's own rounding.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from backend_caps.simulator.kernels.errors import KernelTextError
from backend_caps.simulator.kernels.ir import Kind
from backend_caps.simulator.kernels.library import Compute, fused

_MODIFIERS = frozenset({"approx", "f32", "ftz", "full", "rn"})
"""Parts of an instruction's name that say how it rounds, or that it is one of float32."""
_FLOAT = re.compile(r"0[fF][0-9a-fA-F]{8}$")
_INPUT = re.compile(rf"\$[1-9]\d*$|{_FLOAT.pattern}")


def _pair_of_e4m3(high: Tensor, low: Tensor) -> Tensor:
    """Convert two numbers to float8, and put them into the halves of 16 bits."""
    most = torch.finfo(torch.float8_e4m3fn).max
    bits = [
        value.clamp(-most, most).to(torch.float8_e4m3fn).view(torch.uint8).to(torch.int32)
        for value in (high, low)
    ]
    return bits[0] << 8 | bits[1]


_INSTRUCTIONS: Mapping[str, Compute] = {
    "add": torch.add,
    "cvt.bf16": lambda value: value.to(torch.bfloat16),
    "cvt.f16": lambda value: value.to(torch.float16),
    "cvt.satfinite.e4m3x2": _pair_of_e4m3,
    "cvt.u32.u16": lambda value: value & 0xFFFF,
    "div": torch.div,
    "ex2": torch.exp2,
    "fma": fused,
    "lg2": torch.log2,
    "max": torch.fmax,
    "min": torch.fmin,
    "mov": lambda value: value,
    "mul": torch.mul,
    "rcp": torch.reciprocal,
    "rsqrt": torch.rsqrt,
    "sin": torch.sin,
    "cos": torch.cos,
    "sqrt": torch.sqrt,
    "sub": torch.sub,
    "tanh": torch.tanh,
}
"""Instructions by name, without their modifiers."""


def _operand(text: str) -> Callable[[Mapping[str, Tensor]], Tensor]:
    """Return what reads a register, or a number that is written as its bits."""
    if _FLOAT.match(text):
        (number,) = struct.unpack("!f", bytes.fromhex(text[2:]))
        constant = torch.tensor(number)
        return lambda _: constant
    return lambda registers: registers[text]


def _instruction(
    text: str, written: set[str]
) -> tuple[str, Compute, Sequence[Callable[..., Tensor]]]:
    """Read an instruction: where it puts what it computes, of which operands."""
    name, _, operands = text.partition(" ")
    plain = ".".join(part for part in name.split(".") if part not in _MODIFIERS)
    target, *sources = [each.strip() for each in operands.split(",")]
    is_known = all(_INPUT.match(each) or each in written for each in sources)
    if plain not in _INSTRUCTIONS or not sources or not is_known:
        raise KernelTextError(f"the instruction {text!r} of inline assembly")
    written.add(target)
    return target, _INSTRUCTIONS[plain], [_operand(each) for each in sources]


def assembly(text: str, kind: Kind) -> Compute:
    """Return what lines of PTX compute of their operands, `$1` and on, for their result, `$0`.

    Args:
        text: the lines.
        kind: the type of the result.

    Raises:
        KernelTextError: there is an instruction that is not known here.
    """
    lines = [" ".join(line.split()) for line in re.split(r"[;{}]", text)]
    written: set[str] = set()
    program = [
        _instruction(line, written) for line in lines if line and not line.startswith(".reg")
    ]

    def compute(*operands: Tensor) -> Tensor:
        registers = {f"${place}": value for place, value in enumerate(operands, 1)}
        for target, function, sources in program:
            registers[target] = function(*[source(registers) for source in sources])
        result = registers["$0"]
        is_same_size = result.dtype.itemsize == kind.held.itemsize
        return result.view(kind.held) if is_same_size else result.to(kind.held)

    return compute
