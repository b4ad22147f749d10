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

from backend_caps.simulator.kernels.errors import KernelTextError
from backend_caps.simulator.kernels.ir import FLOAT8, Kind, Operation

Compute = Callable[..., Tensor]
"""A function of operands' elements."""
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
    return value.to(torch.int64).to(kind.dtype)


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
    if "rtz" in rounding and kind.dtype.itemsize < number.itemsize:
        number = _towards_zero(number, kind.dtype)
    if kind.dtype not in FLOAT8:
        return number.to(kind.dtype)
    most = torch.finfo(kind.dtype).max
    return number.to(torch.float32).clamp(-most, most).to(kind.dtype).view(torch.int8)


def _towards_zero(number: Tensor, dtype: torch.dtype) -> Tensor:
    """Move numbers that rounding to a narrower type would enlarge to the next one below."""
    rounded = number.to(dtype).to(number.dtype)
    bits = number.view(torch.int32)
    dropped = {
        torch.bfloat16: 16,
        torch.float16: 13,
        torch.float8_e5m2: 21,
        torch.float8_e4m3fn: 20,
    }
    if dtype not in dropped or number.dtype is not torch.float32:
        raise KernelTextError(f"rounding of {number.dtype} to {dtype} towards zero")
    cut = (bits >> dropped[dtype] << dropped[dtype]).view(torch.float32)
    return torch.where(rounded.abs() > number.abs(), cut, number)


unsigned_maximum = partial(_widened, torch.maximum, np.maximum)
"""Return the larger of two integers without sign."""
unsigned_minimum = partial(_widened, torch.minimum, np.minimum)
"""Return the smaller of two integers without sign."""

_PLAIN: Mapping[str, Compute] = {
    "arith.addi": torch.add,
    "arith.subi": torch.sub,
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
    "math.fma": lambda left, right, third: left * right + third,
    "math.log": torch.log,
    "math.log1p": torch.log1p,
    "math.log2": torch.log2,
    "math.powf": torch.pow,
    "math.rsqrt": torch.rsqrt,
    "math.sin": torch.sin,
    "math.sqrt": torch.sqrt,
    "math.tanh": torch.tanh,
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
    "arith.index_cast": lambda value, kind: value.to(kind.dtype),
    "arith.sitofp": lambda value, kind: extend_signed(value, Kind(torch.int64)).to(kind.dtype),
    "arith.truncf": lambda value, kind: value.to(kind.dtype),
    "arith.trunci": _truncate,
    "arith.uitofp": _unsigned_to_float,
    "tt.bitcast": lambda value, kind: value if kind.is_pointer else _bits(value, kind),
    "tt.int_to_ptr": lambda value, _: value,
    "tt.ptr_to_int": lambda value, _: value,
}
"""Operations that need the type of their result too."""

_LIBRARY: Mapping[str, Compute] = {
    "ceil": torch.ceil,
    "cos": torch.cos,
    "erf": torch.erf,
    "exp": torch.exp,
    "exp10": lambda value: torch.pow(10.0, value),
    "exp2": torch.exp2,
    "expm1": torch.expm1,
    "fabs": torch.abs,
    "fdiv_rn": torch.div,
    "fdividef": torch.div,
    "finite": torch.isfinite,
    "floor": torch.floor,
    "fmax": torch.fmax,
    "fmin": torch.fmin,
    "fmod": torch.fmod,
    "isinf": lambda value: value.isinf().to(torch.int32),
    "isnan": lambda value: value.isnan().to(torch.int32),
    "log": torch.log,
    "log10": torch.log10,
    "log1p": torch.log1p,
    "log2": torch.log2,
    "nearbyint": torch.round,
    "pow": torch.pow,
    "rint": torch.round,
    "round": lambda value: value.trunc() + ((value - value.trunc()).abs() >= 0.5) * value.sign(),  # noqa: PLR2004
    "rsqrt": torch.rsqrt,
    "sin": torch.sin,
    "sqrt": torch.sqrt,
    "tan": torch.tan,
    "tanh": torch.tanh,
    "trunc": torch.trunc,
}
"""CUDA's libdevice, by its functions' names without prefix and suffix."""

_ASSEMBLY: Mapping[str, Compute] = {
    "ex2.approx.f32": torch.exp2,
    "ex2.approx.ftz.f32": torch.exp2,
    "lg2.approx.f32": torch.log2,
    "rcp.approx.f32": torch.reciprocal,
    "rcp.approx.ftz.f32": torch.reciprocal,
    "rsqrt.approx.f32": torch.rsqrt,
    "rsqrt.approx.ftz.f32": torch.rsqrt,
    "sqrt.approx.f32": torch.sqrt,
    "tanh.approx.f32": torch.tanh,
}
"""Single instructions of PTX that kernels write by hand; they are exact here."""


def _library_function(symbol: str) -> Compute:
    name = symbol.strip('"').removeprefix("__nv_").removeprefix("fast_")
    function = (
        _LIBRARY.get(name) or _LIBRARY.get(name.removesuffix("f")) or _LIBRARY.get(name + "f")
    )
    if function is None:
        raise KernelTextError(f"the library function {symbol}")
    return function


def _instruction(words: str) -> Compute:
    text = words.strip('" ,')
    function = _ASSEMBLY.get(text.split()[0] if text else "")
    if function is None or text.count(";") > 1:
        raise KernelTextError(f"inline assembly {words}")
    return function


def _clamp(operation: Operation) -> Compute:
    if "all" not in operation.words:
        return lambda value, low, high: torch.fmin(torch.fmax(value, low), high)
    return lambda value, low, high: torch.minimum(torch.maximum(value, low), high)


def _conversion(operation: Operation, kinds: Kinds) -> Compute:
    source, kind = kinds[operation.operands[0]], operation.kinds[0]
    return lambda value: convert(value, source, kind, operation.words)


def _predicate(operation: Operation) -> str:
    return operation.words.partition(",")[0]


_MADE: Mapping[str, Callable[[Operation, Kinds], Compute]] = {
    "arith.cmpf": lambda operation, _: _compare_floats(_predicate(operation)),
    "arith.cmpi": lambda operation, _: _compare_integers(_predicate(operation)),
    "tt.clampf": lambda operation, _: _clamp(operation),
    "tt.elementwise_inline_asm": lambda operation, _: _instruction(operation.words),
    "tt.extern_elementwise": lambda operation, _: _library_function(operation.attributes["symbol"]),
    "tt.fp_to_fp": _conversion,
}
"""Operations whose attributes or operands' types say what they compute."""


def computation(operation: Operation, kinds: Kinds) -> Compute | None:
    """Return what an operation computes of each element; None where it is none of these.

    Raises:
        KernelTextError: it is, but calls a function or instruction that is not known here.
    """
    name = operation.name
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
