"""Which way each of torch's operators runs on the device.

Operators that make tensors, copy between host and device, or do what their schema does not say have
handlers of their own. Pageable memory is staged at once, and a copy into it makes the host wait, as
does every copy that is not asked to be non-blocking. A non-blocking copy reads and writes pinned
memory when it runs.

Collectives and backward are not there. Random numbers are drawn in the order of the launches.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import cast

import torch
from torch import Tensor

from backend_caps.simulator.errors import call_site
from backend_caps.simulator.launches import (
    Handler,
    answer_bytes,
    blocks_of,
    result_of,
    run_fresh,
    run_read,
    run_view,
    run_write,
)
from backend_caps.simulator.queues import NO_BLOCKS, Op, no_dispatch
from backend_caps.simulator.records import WaitKind
from backend_caps.simulator.simulation import current
from backend_caps.simulator.tensor import (
    OPERATORS,
    AnyOperator,
    Args,
    Effect,
    Kwargs,
    Metadata,
    Operator,
    SimTensor,
    allocate,
    aten,
)

_PLACES = frozenset({"device", "layout", "pin_memory", "non_blocking"})


def without_place(kwargs: Kwargs) -> dict[str, object]:
    """Drop the options that say where a result is made."""
    return {name: value for name, value in kwargs.items() if name not in _PLACES}


def _make_like(operator: Operator, args: Args, kwargs: Kwargs) -> object:
    """Make a tensor like another one: on its device, or on the host where `device` says so."""
    device = cast("torch.device | None", kwargs.get("device"))
    if device is None or device.type != "cpu":
        on_device = without_place(kwargs)
        if operator.func in _EMPTY:
            return allocate(current(), result_of(operator, args, on_device))
        return run_fresh(operator, args, on_device)
    like = cast("SimTensor", args[0])
    if kwargs.get("pin_memory"):
        result = result_of(operator, args, without_place(kwargs))
        assert operator.func in _EMPTY, f"{operator.name} with pin_memory"
        return current().pinned.empty(result.size, result.dtype)
    return operator.func(like.raw, *args[1:], **kwargs)


_EMPTY: tuple[AnyOperator, ...] = (
    aten.empty_like.default,
    aten.new_empty.default,
    aten.new_empty_strided.default,
)
_LIKE: tuple[AnyOperator, ...] = (
    *_EMPTY,
    aten.full_like.default,
    aten.new_full.default,
    aten.new_ones.default,
    aten.new_zeros.default,
    aten.ones_like.default,
    aten.rand_like.default,
    aten.randint_like.default,
    aten.randint_like.low_dtype,
    aten.randn_like.default,
    aten.zeros_like.default,
)


def made_empty(func: Callable[..., Tensor]) -> Callable[..., SimTensor]:
    """Make a factory that allocates memory of the current stream: poison."""

    def make(*shape: Sequence[int], dtype: torch.dtype | None = None, **_: object) -> SimTensor:
        with no_dispatch():
            return _allocated(func(*shape, dtype=dtype, device="meta"))

    return make


def _allocated(tensor: Tensor) -> SimTensor:
    return allocate(current(), Metadata.of(tensor))


def made_on_host(func: AnyOperator) -> Callable[..., object]:
    """Make a factory of values that the host computes, and a launch on the current stream writes.

    torch's own way is to make an empty tensor and resize it.
    """

    def make(*args: object, **options: object) -> SimTensor:
        with no_dispatch():
            made = cast("Tensor", func(*args, **without_place(options), device=torch.device("cpu")))
            tensor = _allocated(made)
        operator = OPERATORS[func]
        work = partial(tensor.raw.copy_, made)
        current().launch(Op(operator.name, call_site(), work, NO_BLOCKS, blocks_of(tensor)))
        return tensor

    return make


MADE_ON_HOST: tuple[AnyOperator, ...] = (
    aten.arange.default,
    aten.arange.start,
    aten.arange.start_step,
    aten.eye.default,
    aten.eye.m,
    aten.linspace.default,
    aten.randperm.default,
    aten.randperm.generator,
    aten.tril_indices.default,
    aten.triu_indices.default,
)
"""Factories whose values the host computes."""


_COPY = OPERATORS[aten.copy_.default]


def copy_between(dst: Tensor, src: Tensor, *, non_blocking: bool) -> Tensor:
    """Copy from or to the device.

    dst  any shape and dtype, on the host or the device  written
    src  a shape that broadcasts to it, host or device  read

    Stream: enqueued on the current stream.
    Sync: the current stream, unless it is non-blocking and the host's side is pinned, or on the
    device both, or pageable memory that is read, or nothing is copied.
    """
    simulation = current()
    from_host, to_host = not isinstance(src, SimTensor), not isinstance(dst, SimTensor)
    reads = writes = NO_BLOCKS
    if simulation.detector is not None:
        reads, writes = blocks_of(src), blocks_of(dst)
    is_beside = non_blocking or not (from_host or to_host)
    raw_src = src if from_host else cast("SimTensor", src).raw
    raw_dst = dst if to_host else cast("SimTensor", dst).raw
    if from_host and not simulation.pinned.has(src):
        raw_src = src.clone()
    if to_host:
        is_beside = is_beside and simulation.pinned.has(dst)
    # torch's own copy of no elements returns before it looks at the devices.
    is_beside = is_beside or not dst.numel()
    if not is_beside:
        simulation.refuse_in_capture(_COPY.name)
    copy = Op(_COPY.name, call_site(), partial(raw_dst.copy_, raw_src), reads, writes)
    copy.bytes_to_host = src.nbytes if to_host else 0
    copy.bytes_to_device = src.nbytes if from_host else 0
    simulation.launch(copy)
    if not is_beside:
        simulation.synchronize_stream(simulation.current_stream, _COPY.name, WaitKind.HIDDEN)
    return dst


def _copy(operator: Operator, args: Args, kwargs: Kwargs) -> Tensor:
    if all(isinstance(arg, SimTensor) for arg in args[:2]):
        return cast("Tensor", run_write(operator, args, kwargs))
    dst, src = cast("tuple[Tensor, Tensor]", args[:2])
    non_blocking = args[2] if len(args) > 2 else kwargs.get("non_blocking", False)  # noqa: PLR2004
    return copy_between(dst, src, non_blocking=bool(non_blocking))


def _to_copy(operator: Operator, args: Args, kwargs: Kwargs) -> object:
    """Convert on the device, or bring to the host what was converted there.

    A non-blocking copy to the host gets pinned memory, as it does from CUDA.
    """
    device = cast("torch.device | None", kwargs.get("device"))
    on_device = without_place(kwargs)
    src = cast("SimTensor", args[0])
    if device is None or device.type != "cpu":
        return run_fresh(operator, args, on_device)
    result = result_of(operator, args, on_device)
    if result.dtype is not src.dtype:
        src = cast("SimTensor", run_fresh(operator, args, on_device))
    non_blocking = bool(kwargs.get("non_blocking", False))
    if non_blocking:
        dst = current().pinned.empty((result.num_bytes // result.dtype.itemsize,), result.dtype)
        dst = dst.as_strided(result.size, result.stride)
    else:
        dst = torch.empty_strided(result.size, result.stride, dtype=result.dtype, device="cpu")
    return copy_between(dst, src, non_blocking=non_blocking)


def copy_from(src: Tensor, dst: Tensor, non_blocking: bool = False) -> Tensor:
    """Copy between the host and the device, where torch does so by itself."""
    return copy_between(dst, src, non_blocking=non_blocking)


def _index(operator: Operator, args: Args, kwargs: Kwargs) -> object:
    """Index: by numbers, or by a mask, whose result's shape the host has to wait for."""
    run = run_read if _has_mask(args[1]) else run_fresh
    return run(operator, args, kwargs)


def _index_put(operator: Operator, args: Args, kwargs: Kwargs) -> object:
    """Write where an index says; a mask with one value is filled, and others become numbers."""
    if _has_mask(args[1]) and cast("Tensor", args[2]).numel() != 1:
        simulation = current()
        simulation.count_copy(to_host=answer_bytes(operator, args))
        simulation.synchronize_stream(simulation.current_stream, operator.name, WaitKind.HIDDEN)
    return run_write(operator, args, kwargs)


def _has_mask(indices: object) -> bool:
    masks = (torch.bool, torch.uint8)
    return any(
        isinstance(index, Tensor) and index.dtype in masks for index in cast("Args", indices)
    )


def _repeat_interleave(operator: Operator, args: Args, kwargs: Kwargs) -> object:
    """Repeat: into a known size, or into one that the host has to wait for."""
    run = run_read if kwargs.get("output_size") is None else run_fresh
    return run(operator, args, kwargs)


_HANDLERS: Mapping[AnyOperator, Handler] = {
    aten._index_put_impl_.default: _index_put,
    aten._to_copy.default: _to_copy,  # noqa: SLF001
    aten.copy_.default: _copy,
    aten.detach_.default: lambda _operator, args, _kwargs: args[0],
    aten.index.Tensor: _index,
    aten.index_put_.default: _index_put,
    aten.is_pinned.default: lambda _operator, _args, _kwargs: False,
    aten.repeat_interleave.Tensor: _repeat_interleave,
    **dict.fromkeys(_LIKE, _make_like),
}
"""Operators that copy, make a tensor like another, or are not what their schema says."""


_BY_EFFECT: Mapping[Effect, Handler] = {
    Effect.FRESH: run_fresh,
    Effect.READ: run_read,
    Effect.VIEW: run_view,
    Effect.WRITE: run_write,
}


def is_composite(func: AnyOperator) -> bool:
    """Return whether an operator is run as those that it is made of."""
    return OPERATORS[func].effect is Effect.COMPOSITE and func not in _HANDLERS


def dispatch(func: AnyOperator, args: Args, kwargs: Kwargs) -> object:
    """Run one of torch's operators on tensors of the device."""
    operator = OPERATORS[func]
    special = _HANDLERS.get(func)
    if special is not None:
        return special(operator, args, kwargs)
    if operator.effect is Effect.COMPOSITE:
        return func.decompose(*args, **kwargs)
    return _BY_EFFECT[operator.effect](operator, args, kwargs)
