"""Operations that touch memory, or that only a GPU's program has."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial

import torch
from torch import Tensor

from backend_caps.simulator.kernels.arithmetic import (
    constant,
    to_float,
    unsigned_maximum,
    unsigned_minimum,
)
from backend_caps.simulator.kernels.blocks import full
from backend_caps.simulator.kernels.errors import KernelFaultError, KernelTextError
from backend_caps.simulator.kernels.frames import Builder, Frame, Step
from backend_caps.simulator.kernels.ir import Kind, Operation
from backend_caps.simulator.kernels.memory import Access

_AXES = {"x": 0, "y": 1, "z": 2}


def _put(result: int, value: Tensor, frame: Frame) -> None:
    frame.values[result] = value


def _constant(_: Builder, operation: Operation) -> Step:
    value, (result,) = constant(operation), operation.results
    return partial(_put, result, value)


def _undefined(_: Builder, operation: Operation) -> Step:
    (kind,) = operation.kinds
    value = torch.zeros((1, *(1 for _ in kind.shape)), dtype=kind.held)
    return partial(_put, operation.results[0], value)


def _nothing(_: Builder, __: Operation) -> Step:
    return lambda _: None


def _program_id(_: Builder, operation: Operation) -> Step:
    axis, (result,) = _AXES[operation.words], operation.results

    def step(frame: Frame) -> None:
        frame.values[result] = frame.ids[axis]

    return step


def _num_programs(_: Builder, operation: Operation) -> Step:
    axis, (result,) = _AXES[operation.words], operation.results

    def step(frame: Frame) -> None:
        frame.values[result] = torch.tensor([frame.grid[axis]], dtype=torch.int32)

    return step


def _split(_: Builder, operation: Operation) -> Step:
    (value,), (left, right) = operation.operands, operation.results

    def step(frame: Frame) -> None:
        pair = frame.values[value].expand(*frame.values[value].shape[:-1], 2)
        frame.values[left], frame.values[right] = pair.unbind(-1)

    return step


def _text(operation: Operation) -> str:
    """Return the text that an operation prints; what is no letter in it is printed as its code."""
    printed = operation.words.partition('"')[2].partition('"')[0].encode()
    return re.sub(
        rb"\\([0-9A-F]{2})", lambda code: bytes.fromhex(code[1].decode()), printed
    ).decode()


def _assert(_: Builder, operation: Operation) -> Step:
    (condition,), site, text = operation.operands, operation.site, _text(operation)

    def step(frame: Frame) -> None:
        if not frame.values[condition].all():
            raise KernelFaultError(site, f"asserts what is false: {text}")

    return step


def _print(builder: Builder, operation: Operation) -> Step:
    text = _text(operation).strip()
    operands = [(each, builder.kinds[each]) for each in operation.operands]

    def step(frame: Frame) -> None:
        values = (to_float(frame.values[each], kind) for each, kind in operands)
        print(text, *values)  # noqa: T201 - what the kernel asks for

    return step


def _access(builder: Builder, operation: Operation, verb: str, kind: Kind) -> Access:
    pointer = operation.operands[0]
    roots = builder.roots.of(pointer)
    held = kind.held
    sizes = {builder.roots.sizes[root] for root in roots or ()}
    access = Access(
        verb=verb, dtype=held, roots=roots, may_be_odd=sizes != {held.itemsize}, site=operation.site
    )
    builder.accesses.append(access)
    return access


def _load(builder: Builder, operation: Operation) -> Step:
    access = _access(builder, operation, "reads", operation.kinds[0])
    (result,), (pointer, *others) = operation.results, operation.operands

    def step(frame: Frame) -> None:
        values = frame.values
        given = [values[each] for each in others]
        mask, other = (*given, None, None)[:2]
        values[result] = frame.memory.load(values[pointer], mask, other, access)

    return step


def _store(builder: Builder, operation: Operation) -> Step:
    pointer, value, *masks = operation.operands
    access = _access(builder, operation, "writes", builder.kinds[value])

    def step(frame: Frame) -> None:
        values = frame.values
        mask = values[masks[0]] if masks else None
        frame.memory.store(values[pointer], values[value], mask, access)

    return step


_EXCHANGES: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = {
    "add": lambda before, values: before + values[:, 0],
    "and": lambda before, values: before & values[:, 0],
    "cas": lambda before, values: torch.where(before == values[:, 0], values[:, 1], before),
    "exch": lambda before, values: values[:, 0],  # noqa: ARG005
    "fadd": lambda before, values: before + values[:, 0],
    "max": lambda before, values: torch.maximum(before, values[:, 0]),
    "min": lambda before, values: torch.minimum(before, values[:, 0]),
    "or": lambda before, values: before | values[:, 0],
    "umax": lambda before, values: unsigned_maximum(before, values[:, 0]),
    "umin": lambda before, values: unsigned_minimum(before, values[:, 0]),
    "xor": lambda before, values: before ^ values[:, 0],
}
"""What atomic operations leave where something was before."""


def _exchange(builder: Builder, operation: Operation) -> Step:
    pointer, *given = operation.operands
    is_swap = operation.name == "tt.atomic_cas"
    word = "cas" if is_swap else operation.words.partition(",")[0].strip()
    combine = _EXCHANGES.get(word)
    if combine is None:
        raise KernelTextError(f"the atomic operation {word!r}, at {operation.site}")
    operands, masks = (given, []) if is_swap else (given[:1], given[1:])
    (kind,), (result,) = operation.kinds, operation.results
    access = _access(builder, operation, "writes", kind)

    def step(frame: Frame) -> None:
        # The programs differ in what they add, or all of them add the same.
        def whole(number: int) -> Tensor:
            return full(frame.values[number], kind).expand(frame.count, *kind.shape)

        shape = (frame.count, *kind.shape)
        wanted = whole(masks[0]) if masks else torch.ones(shape, dtype=torch.bool)
        values = torch.stack([whole(each)[wanted] for each in operands], -1)
        before = torch.zeros(shape, dtype=kind.held)
        before[wanted] = frame.memory.exchange(whole(pointer)[wanted], combine, values, access)
        frame.values[result] = before

    return step


STEPS: Mapping[str, Callable[[Builder, Operation], Step]] = {
    "arith.constant": _constant,
    "gpu.barrier": _nothing,
    "llvm.intr.assume": _nothing,
    "tt.assert": _assert,
    "tt.atomic_cas": _exchange,
    "tt.atomic_rmw": _exchange,
    "tt.get_num_programs": _num_programs,
    "tt.get_program_id": _program_id,
    "tt.load": _load,
    "tt.print": _print,
    "tt.split": _split,
    "tt.store": _store,
    "ttg.barrier": _nothing,
    "ub.poison": _undefined,
}
"""What makes the steps of operations that touch memory or ask for a program's place."""
