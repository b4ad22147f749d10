"""Which way each of torch's operators runs on the device.

Views are taken at once, since they touch no data. Everything else is put on the current stream as
work on raw tensors.

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

from backend_caps.simulator.allocation import Lease
from backend_caps.simulator.operators import (
    Call,
    Effect,
    Results,
    blocks_of,
    described,
    operator_of,
    refuse,
)
from backend_caps.simulator.queues import NO_BLOCKS, Blocks, Op, no_dispatch
from backend_caps.simulator.simulation import current
from backend_caps.simulator.tensor import (
    AnyOperator,
    Args,
    Kwargs,
    Metadata,
    SimTensor,
    allocate,
    aten,
    wrap,
)

Handler = Callable[[Call], object]
"""A way to run an operator."""


def run_view(call: Call) -> object:
    """View memory in another way, at once."""
    base = call.args[0]
    if not isinstance(base, SimTensor):
        refuse(call.operator, "its first argument is no tensor of the device")
    result = call.operator.func(base.raw, *call.args[1:], **call.kwargs)
    if torch.is_inference_mode_enabled() and not base.is_inference():
        with torch._C._InferenceMode(False):  # noqa: FBT003, SLF001 - a view is what its base is
            return _wrapped(result, base.lease)
    return _wrapped(result, base.lease)


def _wrapped(result: object, lease: Lease) -> object:
    if isinstance(result, Tensor):
        return wrap(result, lease)
    assert isinstance(result, list | tuple), f"a view is {type(result)}"
    return type(result)(wrap(entry, lease) for entry in result)


def run_fresh(call: Call) -> object:
    """Compute into new memory."""
    lowered = call.lowered()
    kind, results = lowered.results()
    reads, _ = call.accesses()
    return _launch(call.operator.name, kind, results, lowered.run, reads)


def _launch(
    name: str,
    kind: type,
    results: Results,
    compute: Callable[[], object],
    reads: Blocks = NO_BLOCKS,
) -> object:
    """Compute one result, or several in a tuple or a list, into new memory."""
    tensors = [None if result is None else allocate(result) for result in results]
    raws = [None if tensor is None else tensor.raw for tensor in tensors]
    current().launch(Op(name, partial(_compute, raws, compute), reads, blocks_of(tensors)))
    if kind is Tensor:
        return tensors[0]
    return tensors if kind is list else tuple(tensors)


def _compute(outs: Sequence[Tensor | None], compute: Callable[[], object]) -> None:
    found = compute()
    results = (found,) if isinstance(found, Tensor) else cast("Sequence[Tensor]", found)
    for out, result in zip(outs, results, strict=True):
        if out is not None:
            out.copy_(result)


def run_write(call: Call) -> object:
    """Write to arguments."""
    operator = call.operator
    if torch.Tag.inplace_view in operator.func.tags:
        refuse(operator, "it changes a shape in place; use the one that returns a new view")
    lowered = call.lowered()
    if operator.is_out or not operator.has_one_tensor:
        _, results = lowered.results()
        if operator.is_out:
            _require_sizes(call, results)
    current().launch(Op(operator.name, lowered.run, *call.accesses()))
    written = tuple(map(call.argument, operator.written))
    if not operator.func._schema.returns:  # noqa: SLF001
        return None
    return written[0] if len(written) == 1 else written


def _require_sizes(call: Call, results: Results) -> None:
    """Refuse what torch would resize: a block's memory has a size."""
    for name, result in zip(call.operator.written, results, strict=True):
        size = tuple(cast("Tensor", call.argument(name)).shape)
        if result is not None and result.size != size:
            expected = f"{name}= has shape {size}, and the result {result.size}; make it so"
            refuse(call.operator, expected)


def run_read(call: Call) -> object:
    """Compute what the host has to wait for: a number, or results of unknown shapes."""
    name, simulation = call.operator.name, current()
    simulation.refuse_in_capture(name)
    lowered = call.lowered()
    reads, _ = call.accesses()
    found: list[object] = []
    answer = Op(name, lambda: found.append(lowered.run()), reads, bytes_to_host=answer_bytes(call))
    simulation.launch(answer)
    simulation.wait_for_current(name)
    (result,) = found
    if isinstance(result, Tensor | list | tuple):
        return _launch(name, *described(result), lambda: result)
    return result


def answer_bytes(call: Call) -> int:
    """Return the bytes that the host reads: a number, or the results' size as one int64."""
    func = call.operator.func
    if func is aten._local_scalar_dense.default:  # noqa: SLF001 - what item() is
        return cast("SimTensor", call.args[0]).itemsize
    return torch.bool.itemsize if func is aten.equal.default else torch.int64.itemsize


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


def _made_empty(func: Callable[..., Tensor]) -> Callable[..., SimTensor]:
    """Make a factory that allocates memory of the current stream: poison."""

    def make(*shape: Sequence[int], dtype: torch.dtype | None = None, **_: object) -> SimTensor:
        with no_dispatch():
            return allocate(Metadata.of(func(*shape, dtype=dtype, device="meta")))

    return make


def _made_on_host(func: AnyOperator) -> Callable[..., object]:
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


_MADE_ON_HOST: tuple[AnyOperator, ...] = (
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


def _copy_from(src: Tensor, dst: Tensor, non_blocking: bool = False) -> Tensor:
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


KERNELS: Mapping[str, Callable[..., object]] = {
    "aten::_copy_from": _copy_from,
    "aten::empty.memory_format": _made_empty(torch.empty),
    "aten::empty_strided": _made_empty(torch.empty_strided),
    **{operator_of(func).name: _made_on_host(func) for func in _MADE_ON_HOST},
}
"""Operators that torch calls for the device where no argument is a tensor of it, by name."""


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
