"""Operations on whole blocks: shapes, products, reductions.

Values have programs in front, and are 1 in a dimension along which they do not differ, so a splat
or a broadcast costs nothing. What needs all elements of a block expands it first.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from backend_caps.simulator.kernels.arithmetic import Kinds, to_float, together
from backend_caps.simulator.kernels.errors import KernelFaultError
from backend_caps.simulator.kernels.ir import Kind, Operation

Combine = Callable[[Sequence[Tensor], Sequence[Tensor]], Sequence[Tensor]]
"""Combines two groups of operands of a reduction, element by element."""
Combination = Callable[[Combine, Sequence[Tensor]], list[Tensor]]
"""Combines the elements of operands along an axis."""
Compute = Callable[..., Tensor]


def full(value: Tensor, kind: Kind) -> Tensor:
    """Expand a value to its block's shape, in each program that it has."""
    return value.expand(value.shape[0], *kind.shape)


def _axis(operation: Operation) -> int:
    """Return the dimension of values that an operation names by that of blocks."""
    return int(operation.attributes["axis"]) + 1


def _splat(operation: Operation, _: Kinds) -> Compute:
    ones = (1,) * len(operation.kinds[0].shape)
    return lambda value: value.reshape(-1, *ones)


def _broadcast(_operation: Operation, _kinds: Kinds) -> Compute:
    return lambda value: value


def _expand_dims(operation: Operation, _: Kinds) -> Compute:
    axis = _axis(operation)
    return lambda value: value.unsqueeze(axis)


def _add_pointer(operation: Operation, kinds: Kinds) -> Compute:
    size = kinds[operation.operands[0]].dtype.itemsize
    return lambda address, index: torch.add(address, index, alpha=size)


def _make_range(operation: Operation, _: Kinds) -> Compute:
    start, end = int(operation.attributes["start"]), int(operation.attributes["end"])
    values = torch.arange(start, end, dtype=torch.int32).reshape(1, -1)
    return lambda: values


def _reshape(operation: Operation, kinds: Kinds) -> Compute:
    source, shape = kinds[operation.operands[0]], operation.kinds[0].shape
    return lambda value: full(value, source).reshape(value.shape[0], *shape)


def _transpose(operation: Operation, _: Kinds) -> Compute:
    digits = re.findall(r"\d+", operation.attributes["order"].partition(":")[2])
    order = [0, *(int(digit) + 1 for digit in digits)]
    return lambda value: value.permute(order)


def _join(operation: Operation, kinds: Kinds) -> Compute:
    del operation, kinds
    return lambda left, right: torch.stack(together(left, right), -1)


def _concatenate(operation: Operation, kinds: Kinds) -> Compute:
    left_kind, right_kind = (kinds[each] for each in operation.operands)

    def compute(left: Tensor, right: Tensor) -> Tensor:
        programs = max(left.shape[0], right.shape[0])
        parts = full(left, left_kind), full(right, right_kind)
        return torch.cat([part.expand(programs, *part.shape[1:]) for part in parts], 1)

    return compute


def _gather(operation: Operation, kinds: Kinds) -> Compute:
    axis = _axis(operation)
    source, index = (kinds[each] for each in operation.operands)

    def compute(values: Tensor, places: Tensor) -> Tensor:
        programs = max(values.shape[0], places.shape[0])
        values = full(values, source).expand(programs, *source.shape)
        if int(places.min()) < 0 or int(places.max()) >= source.shape[axis - 1]:
            text = f"gathers from a block of {source.shape[axis - 1]} elements beyond its ends"
            raise KernelFaultError(operation.site, text)
        places = full(places, index).expand(programs, *index.shape)
        return values.gather(axis, places.to(torch.int64))

    return compute


def _histogram(operation: Operation, kinds: Kinds) -> Compute:
    (bins,), source = operation.kinds[0].shape, kinds[operation.operands[0]]

    def compute(values: Tensor, mask: Tensor | None = None) -> Tensor:
        is_counted = (values >= 0) & (values < bins)
        if mask is not None:
            is_counted = is_counted & mask
        places, ones = (full(each, source) for each in together(values, is_counted))
        counts = torch.zeros((len(places), bins), dtype=torch.int32)
        places = places.clamp(0, bins - 1).to(torch.int64)
        return counts.scatter_add_(1, places, ones.to(torch.int32))

    return compute


def _dot(operation: Operation, kinds: Kinds) -> Compute:
    """Multiply matrices; exact products, summed in the accumulator's type or a wider one.

    Numbers of 32 bits are not rounded to TF32 first, as a GPU may.
    """
    left, right, total = (kinds[each] for each in operation.operands)
    wide = torch.float32 if total.dtype.is_floating_point else torch.float64
    if total.dtype is torch.float64:
        wide = torch.float64

    def compute(first: Tensor, second: Tensor, before: Tensor) -> Tensor:
        first, second = full(to_float(first, left), left), full(to_float(second, right), right)
        product = torch.matmul(first.to(wide), second.to(wide))
        if not total.dtype.is_floating_point:
            return product.to(total.dtype) + before
        return (product + before.to(wide)).to(total.dtype)

    return compute


BUILDERS: Mapping[str, Callable[[Operation, Kinds], Compute]] = {
    "tt.addptr": _add_pointer,
    "tt.broadcast": _broadcast,
    "tt.cat": _concatenate,
    "tt.dot": _dot,
    "tt.expand_dims": _expand_dims,
    "tt.gather": _gather,
    "tt.histogram": _histogram,
    "tt.join": _join,
    "tt.make_range": _make_range,
    "tt.reshape": _reshape,
    "tt.splat": _splat,
    "tt.trans": _transpose,
    "tt.unsplat": lambda operation, kinds: lambda value: value.reshape(-1),  # noqa: ARG005
}
"""What makes the computation of an operation with one result."""


_REDUCTIONS: Mapping[str, Callable[[Tensor, int], Tensor]] = {
    "arith.addf": lambda value, axis: value.sum(axis, dtype=value.dtype),
    "arith.addi": lambda value, axis: value.sum(axis, dtype=value.dtype),
    "arith.maximumf": torch.amax,
    "arith.maxsi": torch.amax,
    "arith.minimumf": torch.amin,
    "arith.minsi": torch.amin,
}
"""Reductions that torch has."""
_SCANS: Mapping[str, Callable[[Tensor, int], Tensor]] = {
    "arith.addf": lambda value, axis: value.cumsum(axis, dtype=value.dtype),
    "arith.addi": lambda value, axis: value.cumsum(axis, dtype=value.dtype),
    "arith.mulf": lambda value, axis: value.cumprod(axis, dtype=value.dtype),
    "arith.muli": lambda value, axis: value.cumprod(axis, dtype=value.dtype),
}
"""Scans that torch has."""


def _only(operation: Operation) -> str:
    """Return the name of the only operation that combines two elements; none where there are more.

    It takes the two, and gives what is returned.
    """
    block = operation.regions[0][0]
    combine, last = block.operations[0], block.operations[-1]
    is_only = len(block.operations) == 2 and len(block.arguments) == 2  # noqa: PLR2004 - and its return
    takes_both = sorted(combine.operands) == sorted(block.arguments)
    return combine.name if is_only and takes_both and last.operands == combine.results else ""


def reduction(operation: Operation, kinds: Kinds) -> Combination:
    """Return what reduces blocks along an axis: neighbours, then pairs, so their order is kept."""
    axis, shape = _axis(operation), kinds[operation.operands[0]].shape
    known = _REDUCTIONS.get(_only(operation))
    length = shape[axis - 1]

    def compute(combine: Combine, values: Sequence[Tensor]) -> list[Tensor]:
        values = _along(values, axis, length)
        if known is not None and len(values) == 1:
            return [known(values[0], axis)]
        while values[0].shape[axis] > 1:
            pairs = [
                value.reshape(*value.shape[:axis], -1, 2, *value.shape[axis + 1 :])
                for value in values
            ]
            left, right = ([pair.select(axis + 1, side) for pair in pairs] for side in (0, 1))
            values = _along(combine(left, right), axis, left[0].shape[axis])
        return [value.squeeze(axis) for value in values]

    return compute


def scan(operation: Operation, kinds: Kinds) -> Combination:
    """Return what combines each element with all before it: in strides that double."""
    axis, shape = _axis(operation), kinds[operation.operands[0]].shape
    is_reversed = operation.attributes.get("reverse") == "true"
    known = _SCANS.get(_only(operation))
    length = shape[axis - 1]

    def compute(combine: Combine, values: Sequence[Tensor]) -> list[Tensor]:
        values = _along(values, axis, length)
        if is_reversed:
            values = tuple(value.flip(axis) for value in values)
        if known is not None:
            values = (known(values[0], axis),)
        stride = 1 if known is None else length
        while stride < length:
            left = [value.narrow(axis, 0, length - stride) for value in values]
            right = [value.narrow(axis, stride, length - stride) for value in values]
            combined = _along(combine(left, right), axis, length - stride)
            values = tuple(
                torch.cat([value.narrow(axis, 0, stride), own], axis)
                for value, own in zip(values, combined, strict=True)
            )
            stride *= 2
        return [value.flip(axis) if is_reversed else value for value in values]

    return compute


def _along(values: Sequence[Tensor], axis: int, length: int) -> tuple[Tensor, ...]:
    """Give operands one shape, with all elements along an axis."""
    values = together(*values) if len(values) > 1 else values
    if values[0].shape[axis] == length:
        return tuple(values)
    shape = list(values[0].shape)
    shape[axis] = length
    return tuple(value.expand(shape) for value in values)
