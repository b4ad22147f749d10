"""Kernels compiled for GPUs that are not there: what the compiler makes of them, launched nowhere.

Shapes: S slots in the KV cache, Hq query heads, Hk key and value heads, D and Dv their sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest
import torch
import triton  # type: ignore[import-untyped] # Triton ships no types
from backend_caps_triton.ops import attend, plan
from backend_caps_triton.tiling import Tiling
from torch import Tensor
from triton.backends.compiler import GPUTarget  # type: ignore[import-untyped] # as above
from triton.compiler import ASTSource  # type: ignore[import-untyped] # as above
from triton.runtime.jit import JITFunction  # type: ignore[import-untyped] # as above

SHARED_BYTES: Mapping[int, int] = {80: 163 * 1024, 86: 99 * 1024, 90: 227 * 1024}
"""Shared memory that a block may have, by compute capability: table "Technical Specifications per
Compute Capability" of the CUDA C++ Programming Guide."""
_TYPES = {
    torch.float32: "*fp32",
    torch.float16: "*fp16",
    torch.bfloat16: "*bf16",
    torch.int32: "*i32",
    torch.int64: "*i64",
    torch.uint8: "*u8",
}
_OPTIONS = ("num_warps", "num_stages")


@dataclass(frozen=True, slots=True)
class Compiler:
    """Stand in for the launch of kernels: compile each with the arguments that it would get."""

    compute_capability: int
    shared_bytes: dict[str, int] = field(default_factory=dict)
    """What each kernel needs of shared memory, by its name."""

    def runnable(self, kernel: JITFunction, _device: torch.device) -> _Compiling:
        """Return what compiles a kernel where it would be launched."""
        return _Compiling(self, kernel)


@dataclass(frozen=True, slots=True)
class _Compiling:
    compiler: Compiler
    kernel: JITFunction

    def __getitem__(self, _grid: tuple[int, ...]) -> Callable[..., None]:
        return self._compile

    def _compile(self, *args: object, **constants: object) -> None:
        options = {name: constants.pop(name) for name in _OPTIONS if name in constants}
        names = self.kernel.arg_names
        given = {**dict(zip(names, args, strict=False)), **constants}
        fixed = {*constants, *self._compiled_in(given)}
        source = ASTSource(
            self.kernel,
            signature={
                name: "constexpr" if name in fixed else _type_of(given[name]) for name in names
            },
            constexprs={(place,): given[name] for place, name in enumerate(names) if name in fixed},
            attrs={
                (place,): [["tt.divisibility", 16]]
                for place, name in enumerate(names)
                if name not in fixed and _is_aligned(given[name])
            },
        )
        target = GPUTarget("cuda", self.compiler.compute_capability, 32)
        compiled = triton.compile(source, target=target, options=options)
        self.compiler.shared_bytes[self.kernel.fn.__name__] = compiled.metadata.shared

    def _compiled_in(self, given: Mapping[str, object]) -> Iterator[str]:
        """Name the arguments that a launch would compile in: nothing, and the number 1."""
        for parameter in self.kernel.params:
            value = given[parameter.name]
            is_one = value == 1 if isinstance(value, int) else False
            if value is None or (is_one and not parameter.do_not_specialize):
                yield parameter.name


@contextmanager
def compiling_for(compute_capability: int) -> Iterator[Compiler]:
    """Compile what is launched within a `with` block, for a GPU of a compute capability."""
    compiler = Compiler(compute_capability)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("backend_caps_triton.ops.runnable", compiler.runnable)
        yield compiler


def launch_attend(
    heads: tuple[int, int], head_size: int, dtype: torch.dtype, tile: int, *, has_mask: bool
) -> None:
    """Attend from two requests' tokens, all of it without data."""
    q = torch.empty(64, heads[0], head_size, dtype=dtype)
    cache = torch.empty(128, heads[1], head_size, dtype=dtype)
    sizes = Tiling.of(q, cache, cache, tile)
    weights = torch.empty(2, sizes.head_blocks, sizes.rows)
    attend(
        q,
        cache,
        cache,
        _numbers(2, 128, dtype=torch.int32),
        _numbers(2, 8),
        _numbers(9, dtype=torch.int32),
        _numbers(512, dtype=torch.bool) if has_mask else None,
        torch.empty(*weights.shape, head_size),
        weights,
        torch.empty_like(q),
        1.0,
        tile,
    )


def launch_plan(num_requests: int, width: int, *, has_counts: bool) -> None:
    """Plan a forward of one token a request, and of contexts up to `width`, without data."""
    plan(
        _numbers(num_requests),
        _numbers(num_requests),
        _numbers(num_requests) if has_counts else None,
        _numbers(4, width, dtype=torch.int32),
        _numbers(num_requests, width, dtype=torch.int32),
        _numbers(num_requests, 8),
        _numbers(num_requests, dtype=torch.int32),
        num_requests,
        1,
        1,
        256,
    )


def _numbers(*shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
    return torch.zeros(shape, dtype=dtype)


def _type_of(value: object) -> str:
    match value:
        case Tensor():
            return _TYPES[value.dtype]
        case float():
            return "fp32"
    return "i32"


def _is_aligned(value: object) -> bool:
    return isinstance(value, Tensor) or (isinstance(value, int) and value % 16 == 0)
