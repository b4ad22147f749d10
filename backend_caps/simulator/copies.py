"""Copies between the host and the device.

Pageable memory is staged at once, and a copy into it makes the host wait, as does every copy that
is not asked to be non-blocking. A non-blocking copy reads and writes pinned memory when it runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import cast

import torch
from torch import Tensor

from backend_caps.simulator.counts import WaitKind
from backend_caps.simulator.factories import without_place
from backend_caps.simulator.lowering import blocks_of
from backend_caps.simulator.ops import OPERATORS, AnyOperator, Operator, aten
from backend_caps.simulator.queues import NO_BLOCKS, Op
from backend_caps.simulator.running import Handler, result_of, run_fresh, run_write
from backend_caps.simulator.simulation import current
from backend_caps.simulator.sites import call_site
from backend_caps.simulator.tensor import Args, Kwargs, SimTensor

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
    # torch's own copy of nothing returns before it asks where it goes.
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


COPIES: Mapping[AnyOperator, Handler] = {
    aten._to_copy.default: _to_copy,  # noqa: SLF001
    aten.copy_.default: _copy,
}
"""Operators that copy."""
