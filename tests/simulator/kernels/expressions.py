# mypy: disable-error-code="import-untyped"
"""Kernels that compute one expression, made of its text."""

from __future__ import annotations

import linecache
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra import libdevice

from backend_caps.simulator import simulate

_NAMES = "abc"


@cache
def kernel_of(expression: str, num_inputs: int = 1, **helpers: Any) -> Any:
    """Make a kernel of an expression of its inputs' elements `a`, `b` and `c`.

    Args:
        expression: the text; what it gives is one number, or as many as the output has.
        num_inputs: how many inputs it has.
        helpers: functions that it calls, of `triton.jit`.
    """
    names = _NAMES[:num_inputs]
    loads = "".join(
        f"    {name} = tl.load({name}_ptr + tl.arange(0, {name.upper()}))\n" for name in names
    )
    source = (
        f"def computed({''.join(f'{name}_ptr, ' for name in names)}out, "
        f"{''.join(f'{name.upper()}: tl.constexpr, ' for name in names)}OUT: tl.constexpr):\n"
        f"{loads}"
        f"    tl.store(out + tl.arange(0, OUT), {expression})\n"
    )
    # Triton reads a kernel's source where `inspect` finds it.
    file = f"<{expression}, {num_inputs}>"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    scope = {"tl": tl, "triton": triton, "libdevice": libdevice, **helpers}
    exec(compile(source, file, "exec"), scope)  # noqa: S102 - the tests' own text
    return triton.jit(scope["computed"])


def computed(
    expression: str,
    *inputs: Tensor,
    dtype: torch.dtype | None = None,
    size: int | None = None,
    **helpers: Any,
) -> Tensor:
    """Return what a kernel computes of host tensors, whose sizes are powers of 2.

    Args:
        expression: what it computes of `a`, `b` and `c`, which are flat.
        inputs: these.
        dtype: the result's, where it is not that of `a`.
        size: the result's size, where it is not that of `a`.
        helpers: functions that the expression calls, of `triton.jit`.
    """
    kernel = kernel_of(expression, len(inputs), **helpers)
    with simulate("lazy"):
        out = torch.empty(size or inputs[0].numel(), dtype=dtype or inputs[0].dtype, device="sim")
        given = [each.to("sim") for each in inputs]
        kernel[(1,)](*given, out, *[each.numel() for each in given], len(out))
        return out.cpu()


def padded(values: Sequence[float], dtype: torch.dtype) -> Tensor:
    """Return numbers as a tensor whose length is a power of 2: the first one is repeated."""
    length = 1 << (len(values) - 1).bit_length()
    numbers = [*values, *[values[0]] * (length - len(values))]
    return torch.tensor(numbers, dtype=dtype)
