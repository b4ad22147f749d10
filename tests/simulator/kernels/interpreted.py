# mypy: disable-error-code="import-untyped, no-untyped-def, untyped-decorator, no-untyped-call"
# ruff: noqa: ANN001, ANN201, N803 - a kernel's arguments
"""Kernels with their arguments; run as a program, what they compute on the host.

Triton decides between its compiler and its interpreter for a whole process, when it is imported.
"""

import sys
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def softmax(source, out, columns, BLOCK: tl.constexpr):
    """Take a softmax of each row."""
    row, at = tl.program_id(0), tl.arange(0, BLOCK)
    scores = tl.load(source + row * columns + at, mask=at < columns, other=float("-inf"))
    weights = tl.exp(scores - tl.max(scores, 0))
    tl.store(out + row * columns + at, weights / tl.sum(weights, 0), mask=at < columns)


@triton.jit
def normalized(source, weight, out, columns, BLOCK: tl.constexpr):
    """Normalize each row, a block of columns at a time."""
    row = tl.program_id(0)
    squares = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, columns, BLOCK):
        at = start + tl.arange(0, BLOCK)
        value = tl.load(source + row * columns + at, mask=at < columns, other=0.0)
        squares += value * value
    scale = tl.rsqrt(tl.sum(squares, 0) / columns + 1e-6)
    for start in range(0, columns, BLOCK):
        at = start + tl.arange(0, BLOCK)
        value = tl.load(source + row * columns + at, mask=at < columns, other=0.0)
        kept = tl.load(weight + at, mask=at < columns, other=0.0)
        tl.store(out + row * columns + at, value * scale * kept, mask=at < columns)


@triton.jit
def matmul(left, right, out, K, BLOCK: tl.constexpr):
    """Multiply matrices of programs' blocks, masked in the inner dimension."""
    rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    width = tl.num_programs(1) * BLOCK
    total = tl.zeros((BLOCK, BLOCK), tl.float32)
    for start in range(0, K, BLOCK):
        inner = start + tl.arange(0, BLOCK)
        a = tl.load(left + rows[:, None] * K + inner[None, :], mask=inner[None, :] < K, other=0.0)
        b = tl.load(
            right + inner[:, None] * width + columns[None, :], mask=inner[:, None] < K, other=0.0
        )
        total += tl.dot(a, b, input_precision="ieee")
    tl.store(out + rows[:, None] * width + columns[None, :], total)


@triton.jit
def ragged_attention(q, k, v, starts, out, D: tl.constexpr, BLOCK: tl.constexpr):
    """Attend to each request's own keys, online."""
    request, feature = tl.program_id(0), tl.arange(0, D)
    first, last = tl.load(starts + request), tl.load(starts + request + 1)
    query = tl.load(q + request * D + feature)
    largest, total = float("-inf"), 0.0
    result = tl.zeros((D,), tl.float32)
    for start in range(first, last, BLOCK):
        at = start + tl.arange(0, BLOCK)
        mask = (at < last)[:, None]
        keys = tl.load(k + at[:, None] * D + feature[None, :], mask=mask, other=0.0)
        scores = tl.where(at < last, tl.sum(keys * query[None, :], 1), float("-inf"))
        larger = tl.maximum(largest, tl.max(scores, 0))
        weights, kept = tl.exp(scores - larger), tl.exp(largest - larger)
        values = tl.load(v + at[:, None] * D + feature[None, :], mask=mask, other=0.0)
        result = result * kept + tl.sum(weights[:, None] * values, 0)
        total = total * kept + tl.sum(weights, 0)
        largest = larger
    if total > 0:
        result /= total
    tl.store(out + request * D + feature, result)


@triton.jit
def compacted(source, index, out, count, BLOCK: tl.constexpr):
    """Move what is positive to the front, and count it."""
    at = tl.arange(0, BLOCK)
    value = tl.load(source + at)
    is_kept = value > 0
    place = tl.cumsum(is_kept.to(tl.int32), 0) - 1
    tl.store(out + place, value, mask=is_kept)
    tl.store(index + place, at, mask=is_kept)
    tl.store(count, tl.sum(is_kept.to(tl.int32), 0))


@triton.jit
def counted(source, out, size, BLOCK: tl.constexpr, BINS: tl.constexpr):
    """Count numbers by their remainder, all programs in one table."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(source + at, mask=at < size, other=0)
    tl.atomic_add(out + (value % BINS + BINS) % BINS, 1, mask=at < size)


@triton.jit
def hashed(source, out, BLOCK: tl.constexpr):
    """Mix the bits of unsigned numbers."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(source + at).to(tl.uint32, bitcast=True)
    value = (value ^ 61) ^ (value >> 16)
    value *= 9
    value = value ^ (value >> 4)
    value = tl.umulhi(value, 0x27D4EB2D) + value * 0x27D4EB2D
    tl.store(out + at, (value ^ (value >> 15)).to(tl.int32, bitcast=True))


@triton.jit
def drawn(out, seed, BLOCK: tl.constexpr):
    """Draw numbers by Philox."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.rand(seed, at) + tl.randint(seed, at) % 7)


@triton.jit
def ordered(source, out, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Sort rows, and turn them around."""
    row, column = tl.arange(0, ROWS), tl.arange(0, COLUMNS)
    at = row[:, None] * COLUMNS + column[None, :]
    tl.store(out + at, tl.flip(tl.sort(tl.load(source + at)), 1))


def _floats(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def _integers(*shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randint(-(2**31), 2**31, shape, generator=generator).to(torch.int32)


def _zeros(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.zeros(*shape, dtype=dtype)


STARTS = torch.tensor([0, 5, 5, 22, 23], dtype=torch.int32)


class Case(NamedTuple):
    """A launch."""

    kernel: Any
    """The kernel."""
    grid: tuple[int, ...]
    """Its programs."""
    arguments: tuple[Any, ...]
    """Tensors of the host, and numbers."""


CASES: Mapping[str, Case] = {
    "softmax": Case(softmax, (5,), (_floats(5, 13), _zeros(5, 13), 13, 16)),
    "norm": Case(normalized, (4,), (_floats(4, 37), _floats(37), _zeros(4, 37), 37, 16)),
    "matmul": Case(matmul, (2, 3), (_floats(32, 40), _floats(40, 48), _zeros(32, 48), 40, 16)),
    "attention": Case(
        ragged_attention,
        (4,),
        (_floats(4, 16), _floats(23, 16), _floats(23, 16), STARTS, _zeros(4, 16), 16, 4),
    ),
    "compaction": Case(
        compacted,
        (1,),
        (_floats(32), _zeros(32, dtype=torch.int32), _zeros(32), _zeros(1, dtype=torch.int32), 32),
    ),
    "histogram": Case(counted, (4,), (_integers(50), _zeros(8, dtype=torch.int32), 50, 16, 8)),
    "hash": Case(hashed, (2,), (_integers(32), _zeros(32, dtype=torch.int32), 16)),
    "random": Case(drawn, (2,), (_zeros(32), 1234, 16)),
    "sort": Case(ordered, (1,), (_floats(4, 8), _zeros(4, 8), 4, 8)),
}


def main() -> None:
    """Run all on the host, and save each one's tensors under its name."""
    found = {}
    for name, (kernel, grid, arguments) in CASES.items():
        kernel[grid](*arguments)
        found[name] = [each for each in arguments if isinstance(each, Tensor)]
    torch.save(found, sys.argv[1])


if __name__ == "__main__":
    main()
