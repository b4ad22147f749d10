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

from backend_caps.simulator.launches import (
    Call,
    Handler,
    answer_bytes,
    blocks_of,
    run_fresh,
    run_read,
    run_view,
    run_write,
)
from backend_caps.simulator.queues import Op, no_dispatch
from backend_caps.simulator.simulation import current
from backend_caps.simulator.tensor import (
    AnyOperator,
    Args,
    Effect,
    Kwargs,
    Metadata,
    SimTensor,
    allocate,
    aten,
    operator_of,
)


def _make_like(call: Call) -> object:
    """Make a tensor like another one: on its device, or on the host where `device` says so."""
    func = call.operator.func
    if device_type(call.kwargs) != "cpu":
        on_device = call.without_place()
        return allocate(on_device.result()) if func in _EMPTY else run_fresh(on_device)
    if call.kwargs.get("pin_memory"):
        result = call.without_place().result()
        assert func in _EMPTY, f"{call.operator.name} with pin_memory"
        return current().pinned.empty(result.size, result.dtype)
    return func(cast("SimTensor", call.args[0]).raw, *call.args[1:], **call.kwargs)


def device_type(kwargs: Kwargs) -> str | None:
    """Return the type of the device that options name; None where they name none."""
    device = cast("torch.device | None", kwargs.get("device"))
    return None if device is None else device.type


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
            return allocate(Metadata.of(func(*shape, dtype=dtype, device="meta")))

    return make


def made_on_host(func: AnyOperator) -> Callable[..., object]:
    """Make a factory of values that the host computes, and a launch on the current stream writes.

    torch's own way is to make an empty tensor and resize it.
    """
    operator = operator_of(func)

    def make(*args: object, **options: object) -> SimTensor:
        call = Call(operator, args, options).without_place()
        with no_dispatch():
            made = cast("Tensor", func(*args, **call.kwargs, device=torch.device("cpu")))
            tensor = allocate(Metadata.of(made))
        work = partial(tensor.raw.copy_, made)
        current().launch(Op(operator.name, work, writes=blocks_of(tensor)))
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


_COPY = operator_of(aten.copy_.default).name


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
        simulation.refuse_in_capture(_COPY)
    copy = Op(_COPY, partial(raw_dst.copy_, raw_src), blocks_of(src), blocks_of(dst))
    copy.bytes_to_host = src.nbytes if to_host else 0
    copy.bytes_to_device = src.nbytes if from_host else 0
    simulation.launch(copy)
    if not is_beside:
        simulation.wait_for_current(_COPY)
    return dst


def _copy(call: Call) -> Tensor:
    dst, src = cast("tuple[Tensor, Tensor]", call.args[:2])
    if isinstance(dst, SimTensor) and isinstance(src, SimTensor):
        return cast("Tensor", run_write(call))
    third = call.args[2:] or (call.kwargs.get("non_blocking", False),)
    return copy_between(dst, src, non_blocking=bool(third[0]))


def _to_copy(call: Call) -> object:
    """Convert on the device, or bring to the host what was converted there.

    A non-blocking copy to the host gets pinned memory, as it does from CUDA.
    """
    on_device = call.without_place()
    if device_type(call.kwargs) != "cpu":
        return run_fresh(on_device)
    result = on_device.result()
    src = cast("SimTensor", call.args[0])
    if result.dtype is not src.dtype:
        src = cast("SimTensor", run_fresh(on_device))
    non_blocking = bool(call.kwargs.get("non_blocking", False))
    if non_blocking:
        dst = current().pinned.empty((result.num_bytes // result.dtype.itemsize,), result.dtype)
        dst = dst.as_strided(result.size, result.stride)
    else:
        dst = torch.empty_strided(result.size, result.stride, dtype=result.dtype, device="cpu")
    return copy_between(dst, src, non_blocking=non_blocking)


def copy_from(src: Tensor, dst: Tensor, non_blocking: bool = False) -> Tensor:
    """Copy between the host and the device, where torch does so by itself."""
    return copy_between(dst, src, non_blocking=non_blocking)


def _index(call: Call) -> object:
    """Index: by numbers, or by a mask, whose result's shape the host has to wait for."""
    return run_read(call) if _has_mask(call) else run_fresh(call)


def _index_put(call: Call) -> object:
    """Write where an index says; a mask with one value is filled, and others become numbers."""
    if _has_mask(call) and cast("Tensor", call.args[2]).numel() != 1:
        current().count_copy(to_host=answer_bytes(call))
        current().wait_for_current(call.operator.name)
    return run_write(call)


def _has_mask(call: Call) -> bool:
    masks, indices = (torch.bool, torch.uint8), cast("Args", call.args[1])
    return any(isinstance(index, Tensor) and index.dtype in masks for index in indices)


def _repeat_interleave(call: Call) -> object:
    """Repeat: into a known size, or into one that the host has to wait for."""
    return run_read(call) if call.kwargs.get("output_size") is None else run_fresh(call)


_HANDLERS: Mapping[AnyOperator, Handler] = {
    aten._index_put_impl_.default: _index_put,
    aten._to_copy.default: _to_copy,  # noqa: SLF001
    aten.copy_.default: _copy,
    aten.detach_.default: lambda call: call.args[0],
    aten.index.Tensor: _index,
    aten.index_put_.default: _index_put,
    aten.is_pinned.default: lambda _: False,
    aten.repeat_interleave.Tensor: _repeat_interleave,
    **dict.fromkeys(_LIKE, _make_like),
}
"""Operators that copy, make a tensor like another, or are not what their schema says."""


_BY_EFFECT: Mapping[Effect, Handler] = {
    Effect.COMPOSITE: lambda call: call.operator.func.decompose(*call.args, **call.kwargs),
    Effect.FRESH: run_fresh,
    Effect.READ: run_read,
    Effect.VIEW: run_view,
    Effect.WRITE: run_write,
}


def is_composite(func: AnyOperator) -> bool:
    """Return whether an operator is run as those that it is made of."""
    return operator_of(func).effect is Effect.COMPOSITE and func not in _HANDLERS


def dispatch(func: AnyOperator, args: Args, kwargs: Kwargs) -> object:
    """Run one of torch's operators on tensors of the device."""
    operator = operator_of(func)
    handler = _HANDLERS.get(func) or _BY_EFFECT[operator.effect]
    return handler(Call(operator, args, kwargs))
