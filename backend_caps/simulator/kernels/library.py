"""CUDA's library of mathematical functions, libdevice, as torch has them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from backend_caps.simulator.kernels.errors import KernelTextError

Compute = Callable[..., Tensor]
"""A function of operands' elements."""


def fused(left: Tensor, right: Tensor, third: Tensor) -> Tensor:
    """Return `left * right + third`, rounded once; of float64 it is rounded twice."""
    exact = left.to(torch.float64) * right.to(torch.float64) + third.to(torch.float64)
    return exact.to(left.dtype)


def _round(value: Tensor) -> Tensor:
    """Round halves away from zero."""
    whole = value.trunc()
    return torch.where((value - whole).abs() >= 0.5, whole + value.sign(), whole)  # noqa: PLR2004


def _flag(function: Callable[[Tensor], Tensor]) -> Compute:
    return lambda value: function(value).to(torch.int32)


_LIBRARY: Mapping[str, Compute] = {
    "abs": torch.abs,
    "acos": torch.acos,
    "acosh": torch.acosh,
    "add_rn": torch.add,
    "asin": torch.asin,
    "asinh": torch.asinh,
    "atan": torch.atan,
    "atan2": torch.atan2,
    "atanh": torch.atanh,
    "ceil": torch.ceil,
    "copysign": torch.copysign,
    "cos": torch.cos,
    "cosh": torch.cosh,
    "div_rn": torch.div,
    "erf": torch.erf,
    "erfc": torch.erfc,
    "erfinv": torch.erfinv,
    "exp": torch.exp,
    "exp10": lambda value: torch.pow(10.0, value),
    "exp2": torch.exp2,
    "expm1": torch.expm1,
    "fabs": torch.abs,
    "fdivide": torch.div,
    "finite": _flag(torch.isfinite),
    "float_as_int": lambda value: value.view(torch.int32),
    "float_as_uint": lambda value: value.view(torch.int32),
    "floor": torch.floor,
    "fma": fused,
    "fma_rn": fused,
    "fmod": torch.fmod,
    "hypot": torch.hypot,
    "int_as_float": lambda value: value.view(torch.float32),
    "isfinite": _flag(torch.isfinite),
    "isinf": _flag(torch.isinf),
    "isnan": _flag(torch.isnan),
    "lgamma": torch.lgamma,
    "llabs": torch.abs,
    "llrint": lambda value: value.round().to(torch.int64),
    "log": torch.log,
    "log10": torch.log10,
    "log1p": torch.log1p,
    "log2": torch.log2,
    "mul_rn": torch.mul,
    "nearbyint": torch.round,
    "nextafter": torch.nextafter,
    "normcdf": torch.special.ndtr,
    "pow": torch.pow,
    "rcp_rn": torch.reciprocal,
    "rint": torch.round,
    "round": _round,
    "rsqrt": torch.rsqrt,
    "rsqrt_rn": torch.rsqrt,
    "saturate": lambda value: value.nan_to_num(0.0).clamp(0.0, 1.0),
    "signbit": _flag(torch.signbit),
    "sin": torch.sin,
    "sinh": torch.sinh,
    "sqrt": torch.sqrt,
    "sqrt_rn": torch.sqrt,
    "sub_rn": torch.sub,
    "tan": torch.tan,
    "tanh": torch.tanh,
    "trunc": torch.trunc,
    "uint_as_float": lambda value: value.view(torch.float32),
}
"""Functions by name, without the letter for the type: `expf` and `exp`, `fadd_rn` and `dadd_rn`."""


def library_function(symbol: str) -> Compute:
    """Return a function of libdevice.

    Args:
        symbol: its name in quotes, such as `"__nv_expf"`.

    Raises:
        KernelTextError: it is none that is known here.
    """
    name = symbol.strip('"').removeprefix("__nv_").removeprefix("fast_")
    for own in (name, name[:-1] if name[-1:] in {"d", "f"} else name, name[1:]):
        if own in _LIBRARY:
            return _LIBRARY[own]
    raise KernelTextError(f"the library function {symbol}")
