"""Operations on each element by itself.

Values have one more dimension than the IR says, the first: programs. It is 1 where all programs
have the same value, and so is every dimension along which a block is the same: torch broadcasts.

Integers have no sign; operations do. Torch's are signed, so the unsigned ones are widened, and
those of 64 bits are numpy's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from backend_caps.simulator.kernels.assembly import assembly
from backend_caps.simulator.kernels.errors import KernelTextError
from backend_caps.simulator.kernels.ir import FLOAT8, Kind, Operation
from backend_caps.simulator.kernels.library import Compute, fused, library_function

Bits = NDArray[np.uint64]
Kinds = Mapping[int, Kind]
"""The types of values."""


def together(*values: Tensor) -> tuple[Tensor, ...]:
    """Expand values to the shape that torch would give what it computes of them."""
    return tuple(torch.broadcast_tensors(*values))  # type: ignore[no-untyped-call]


def _unsigned(value: Tensor) -> Tensor:
    """Widen to int64 without the sign; int64 is moved, so that its order is the unsigned one."""
    if value.dtype is torch.int64:
        return value ^ torch.iinfo(torch.int64).min
    return value.to(torch.int64) & ((1 << (8 * value.itemsize)) - 1)


def _by_numpy(function: Callable[..., Bits], left: Tensor, right: Tensor) -> Tensor:
    """Compute with unsigned integers of 64 bits."""
    left, right = together(left, right)
    operands = (np.ascontiguousarray(each.numpy()).view(np.uint64) for each in (left, right))
    return torch.from_numpy(function(*operands).view(np.int64))


def _widened(function: Compute, on_64_bits: Callable[..., Bits], *operands: Tensor) -> Tensor:
    left, right = operands
    if left.dtype is torch.int64:
        return _by_numpy(on_64_bits, left, right)
    return function(_unsigned(left), _unsigned(right)).to(left.dtype)


def _or_one(divisor: Tensor) -> Tensor:
    """Replace zeros, by which elements that a mask drops later may be divided."""
    return torch.where(divisor == 0, 1, divisor)


def _divide(left: Tensor, right: Tensor) -> Tensor:
    return torch.div(left, _or_one(right), rounding_mode="trunc")


def _remainder(left: Tensor, right: Tensor) -> Tensor:
    return torch.fmod(left, _or_one(right))


def _at_least_one(divisor: Bits) -> Bits:
    return np.maximum(divisor, 1)


def _select(condition: Tensor, yes: Tensor, no: Tensor) -> Tensor:
    """Choose; a number as the condition chooses a whole block."""
    missing = max(yes.dim(), no.dim()) - condition.dim()
    return torch.where(condition.reshape(*condition.shape, *(1,) * missing), yes, no)


def _high_product(left: Tensor, right: Tensor) -> Tensor:
    """Return the upper half of an unsigned product."""
    if left.dtype is not torch.int64:
        return ((_unsigned(left) * _unsigned(right)) >> 32).to(left.dtype)
    wide = [
        np.ascontiguousarray(each.numpy()).view(np.uint64).astype(object) for each in (left, right)
    ]
    high = (wide[0] * wide[1]) >> 64
    return torch.from_numpy(high.astype(np.uint64).view(np.int64))


def _not_number(left: Tensor, right: Tensor) -> Tensor:
    return left.isnan() | right.isnan()


_COMPARED: Mapping[str, Compute] = {
    "eq": torch.eq,
    "ne": torch.ne,
    "lt": torch.lt,
    "le": torch.le,
    "gt": torch.gt,
    "ge": torch.ge,
}


def _compare_integers(predicate: str) -> Compute:
    if predicate in {"eq", "ne"}:
        return _COMPARED[predicate]
    function = _COMPARED[predicate[1:]]
    if predicate[0] == "s":
        return function
    return lambda left, right: function(_unsigned(left), _unsigned(right))


def _compare_floats(predicate: str) -> Compute:
    if predicate == "uno":
        return _not_number
    if predicate == "ord":
        return lambda left, right: ~_not_number(left, right)
    function = _COMPARED[predicate[1:]]
    is_true_of_nan = predicate[0] == "u"
    if (predicate[1:] == "ne") == is_true_of_nan:  # what torch answers where one is no number
        return function
    if is_true_of_nan:
        return lambda left, right: function(left, right) | _not_number(left, right)
    return lambda left, right: function(left, right) & ~_not_number(left, right)


def extend_signed(value: Tensor, kind: Kind) -> Tensor:
    """Widen an integer by its sign, which of one bit is the bit."""
    wide = value.to(kind.dtype)
    return -wide if value.dtype is torch.bool else wide


def extend_unsigned(value: Tensor, kind: Kind) -> Tensor:
    """Widen an integer by zeros."""
    return (value if value.dtype is torch.bool else _unsigned(value)).to(kind.dtype)


def _truncate(value: Tensor, kind: Kind) -> Tensor:
    return (value & 1).to(torch.bool) if kind.dtype is torch.bool else value.to(kind.dtype)


def _unsigned_to_float(value: Tensor, kind: Kind) -> Tensor:
    if value.dtype is not torch.int64:
        return extend_unsigned(value, Kind(torch.int64)).to(kind.dtype)
    numbers = np.ascontiguousarray(value.numpy()).view(np.uint64).astype(np.float64)
    return torch.from_numpy(numbers).to(kind.dtype)


def _to_unsigned(value: Tensor, kind: Kind) -> Tensor:
    half = 2.0**63
    if kind.dtype is not torch.int64:
        return value.to(torch.int64).to(kind.dtype)
    is_upper = value >= half
    low = torch.where(is_upper, value - half, value).to(torch.int64)
    return torch.where(is_upper, low ^ torch.iinfo(torch.int64).min, low)


def _sum_of(function: Compute) -> Compute:
    """Return an addition or a subtraction; of single bits they are the same."""

    def compute(left: Tensor, right: Tensor) -> Tensor:
        return left ^ right if left.dtype is torch.bool else function(left, right)

    return compute


def _bits(value: Tensor, kind: Kind) -> Tensor:
    """Take an element's bits for another type of the same size."""
    if value.dtype is torch.bool or kind.dtype is torch.bool:
        return value.to(kind.held)
    return value.view(kind.held)


def to_float(value: Tensor, kind: Kind) -> Tensor:
    """Return numbers that torch computes with: float8 is held as its bits."""
    return value.view(kind.dtype).to(torch.float32) if kind.dtype in FLOAT8 else value


def convert(value: Tensor, source: Kind, kind: Kind, rounding: str) -> Tensor:
    """Convert between types of floating point.

    What lies beyond float8 becomes its largest number, as on NVIDIA's GPUs; infinity too.
    """
    number = to_float(value, source)
    if kind.dtype in FLOAT8:
        most = torch.finfo(kind.dtype).max
        number = number.to(torch.float32).clamp(-most, most)
    converted = number.to(kind.dtype)
    if "rtz" in rounding:
        converted = _towards_zero(number, converted)
    return converted.view(kind.held)


def _towards_zero(number: Tensor, rounded: Tensor) -> Tensor:
    """Move what rounding has enlarged to the next number below."""
    bits = rounded.view({1: torch.int8, 2: torch.int16, 4: torch.int32}[rounded.itemsize])
    is_larger = rounded.to(number.dtype).abs() > number.abs()
    return (bits - is_larger.to(bits.dtype)).view(rounded.dtype)


unsigned_maximum = partial(_widened, torch.maximum, np.maximum)
"""Return the larger of two integers without sign."""
unsigned_minimum = partial(_widened, torch.minimum, np.minimum)
"""Return the smaller of two integers without sign."""

_PLAIN: Mapping[str, Compute] = {
    "arith.addi": _sum_of(torch.add),
    "arith.subi": _sum_of(torch.sub),
    "arith.muli": torch.mul,
    "arith.divsi": _divide,
    "arith.remsi": _remainder,
    "arith.divui": partial(_widened, _divide, lambda a, b: a // _at_least_one(b)),
    "arith.remui": partial(_widened, _remainder, lambda a, b: a % _at_least_one(b)),
    "arith.andi": torch.bitwise_and,
    "arith.ori": torch.bitwise_or,
    "arith.xori": torch.bitwise_xor,
    "arith.shli": torch.bitwise_left_shift,
    "arith.shrsi": torch.bitwise_right_shift,
    "arith.shrui": partial(_widened, torch.bitwise_right_shift, np.right_shift),
    "arith.minsi": torch.minimum,
    "arith.maxsi": torch.maximum,
    "arith.minui": unsigned_minimum,
    "arith.maxui": unsigned_maximum,
    "arith.addf": torch.add,
    "arith.subf": torch.sub,
    "arith.mulf": torch.mul,
    "arith.divf": torch.div,
    "arith.remf": torch.fmod,
    "arith.negf": torch.neg,
    "arith.maximumf": torch.maximum,
    "arith.minimumf": torch.minimum,
    "arith.maxnumf": torch.fmax,
    "arith.minnumf": torch.fmin,
    "arith.select": _select,
    "math.absf": torch.abs,
    "math.absi": torch.abs,
    "math.ceil": torch.ceil,
    "math.cos": torch.cos,
    "math.erf": torch.erf,
    "math.exp": torch.exp,
    "math.exp2": torch.exp2,
    "math.floor": torch.floor,
    "math.fma": fused,
    "math.log": torch.log,
    "math.log2": torch.log2,
    "math.rsqrt": torch.rsqrt,
    "math.sin": torch.sin,
    "math.sqrt": torch.sqrt,
    "tt.mulhiui": _high_product,
    "tt.precise_divf": torch.div,
    "tt.precise_sqrt": torch.sqrt,
}
"""Operations that need nothing but their operands."""

_CASTS: Mapping[str, Callable[[Tensor, Kind], Tensor]] = {
    "arith.bitcast": _bits,
    "arith.extf": lambda value, kind: value.to(kind.dtype),
    "arith.extsi": extend_signed,
    "arith.extui": extend_unsigned,
    "arith.fptosi": lambda value, kind: value.to(kind.dtype),
    "arith.fptoui": _to_unsigned,
    "arith.sitofp": lambda value, kind: extend_signed(value, Kind(torch.int64)).to(kind.dtype),
    "arith.truncf": lambda value, kind: value.to(kind.dtype),
    "arith.trunci": _truncate,
    "arith.uitofp": _unsigned_to_float,
    "tt.bitcast": lambda value, kind: value if kind.is_pointer else _bits(value, kind),
    "tt.int_to_ptr": lambda value, _: value,
    "tt.ptr_to_int": lambda value, _: value,
}
"""Operations that need the type of their result too."""


def _clamp(operation: Operation) -> Compute:
    if "all" not in operation.words:
        return lambda value, low, high: torch.fmin(torch.fmax(value, low), high)
    return lambda value, low, high: torch.minimum(torch.maximum(value, low), high)


def _conversion(operation: Operation, kinds: Kinds) -> Compute:
    source, kind = kinds[operation.operands[0]], operation.kinds[0]
    return lambda value: convert(value, source, kind, operation.words)


def _assembly(operation: Operation, _: Kinds) -> Compute:
    packed = operation.attributes["packed_element"]
    if packed != "1" or len(operation.kinds) > 1:
        raise KernelTextError(f"inline assembly of {packed} elements at a time, or of many results")
    return assembly(operation.words.split('"')[1], operation.kinds[0])


def _predicate(operation: Operation) -> str:
    return operation.words.partition(",")[0]


_MADE: Mapping[str, Callable[[Operation, Kinds], Compute]] = {
    "arith.cmpf": lambda operation, _: _compare_floats(_predicate(operation)),
    "arith.cmpi": lambda operation, _: _compare_integers(_predicate(operation)),
    "tt.clampf": lambda operation, _: _clamp(operation),
    "tt.elementwise_inline_asm": _assembly,
    "tt.extern_elementwise": lambda operation, _: library_function(operation.attributes["symbol"]),
    "tt.fp_to_fp": _conversion,
}
"""Operations whose attributes or operands' types say what they compute."""


def computation(operation: Operation, kinds: Kinds) -> Compute | None:
    """Return what an operation computes of each element; None where it is none of these.

    Raises:
        KernelTextError: it is, but calls a function or instruction that is not known here.
    """
    name = operation.name
    if name.startswith("arith.") and name.endswith("f"):
        if any(kinds[each].dtype in FLOAT8 for each in operation.operands):
            raise KernelTextError(
                f"{name} of float8, which is for conversions, at {operation.site}"
            )
    if name in _CASTS:
        cast, kind = _CASTS[name], operation.kinds[0]
        return lambda value: cast(value, kind)
    if name in _MADE:
        return _MADE[name](operation, kinds)
    return _PLAIN.get(name)


def constant(operation: Operation) -> Tensor:
    """Read a constant: a number, the same in every program, and in every element where it is one.

    Raises:
        KernelTextError: its text is not known here.
    """
    (kind,), text = operation.kinds, operation.words
    inner = text.removeprefix("dense<").removesuffix(">")
    if inner.startswith("["):
        entries = inner.replace("[", " ").replace("]", " ").split(",")
        values = torch.stack([_number(entry.strip(), kind) for entry in entries])
        return values.reshape(1, *kind.shape)
    return _number(inner, kind).reshape(1, *(1 for _ in kind.shape))


def _number(text: str, kind: Kind) -> Tensor:
    """Read a number; of floating point one may be printed as its bits."""
    if text in {"true", "false"}:
        return torch.tensor(text == "true")
    size = kind.held.itemsize
    if kind.dtype.is_floating_point:
        if text.startswith("0x"):
            bits = np.array(int(text, 16), dtype=f"uint{8 * size}").view(f"int{8 * size}")
            return torch.from_numpy(bits.reshape(1)).view(kind.held).reshape(())
        exact = torch.tensor(float(text), dtype=torch.float64)
        return convert(exact, Kind(torch.float64), kind, "")
    return torch.tensor(int(text), dtype=kind.held)
