"""Kernels on the host: Triton's interpreter, beside the compiler and not instead of it.

Triton decides between the two when it is imported, for a whole process. Here the tensors decide:
what is on a device is compiled for it, and what is on the host is interpreted. So one process
tests on both, and the simulated device, whose tensors are the host's, runs kernels too.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import cache
from types import FunctionType
from typing import Protocol, cast

import torch
import triton.language as tl  # type: ignore[import-untyped] # Triton ships no types
from triton.runtime.interpreter import InterpretedFunction  # type: ignore[import-untyped] # Triton ships no types
from triton.runtime.jit import JITFunction  # type: ignore[import-untyped] # Triton ships no types

# What `triton.jit` makes: the second where TRITON_INTERPRET=1 was set by then, which may be later
# than the library was imported, so that kernels are of one kind and what they call of the other.
_KERNELS = (JITFunction, InterpretedFunction)


class Launch(Protocol):
    """A kernel and its grid: called with the arguments, it runs."""

    def __call__(self, *args: object, **constants: object) -> object:
        """Run on the current stream of the tensors' device."""


class Kernel(Hashable, Protocol):
    """What a kernel is to who launches it."""

    def __getitem__(self, grid: tuple[int, ...]) -> Launch:
        """Choose how many programs run."""


def runnable(kernel: Kernel, device: torch.device) -> Kernel:
    """Return what runs a kernel on a device: itself, or on the host its interpretation."""
    return interpreted(kernel) if device.type == "cpu" else kernel


@cache
def interpreted(kernel: Kernel) -> Kernel:
    """Make a kernel that runs on host tensors, a few milliseconds a program."""
    assert isinstance(kernel, _KERNELS), f"a kernel is made by triton.jit: {kernel!r}"
    function = cast("FunctionType", kernel.fn)
    # The interpreter puts functions of its own into the modules that it finds here, and takes
    # them out again: `core` is where the library that kernels call looks.
    names: dict[str, object] = {"core": tl.core}
    for name, value in function.__globals__.items():
        names[name] = _within(value, function, names) if isinstance(value, _KERNELS) else value
    return cast("Kernel", InterpretedFunction(_copied(function, names)))


def _within(
    helper: JITFunction | InterpretedFunction, kernel: FunctionType, names: dict[str, object]
) -> Callable[..., object]:
    """Make what a kernel calls a plain function: the kernel's own helper, or the library's."""
    function = cast("FunctionType", helper.fn)
    is_own = function.__globals__ is kernel.__globals__
    own = _copied(function, names) if is_own else function
    return cast("Callable[..., object]", InterpretedFunction(own).rewrite())


def _copied(function: FunctionType, names: dict[str, object]) -> FunctionType:
    """Let a function find other things behind the same names."""
    copy = FunctionType(function.__code__, names, function.__name__, function.__defaults__)
    copy.__annotations__ = function.__annotations__
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy
