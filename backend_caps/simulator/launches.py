"""How calls of torch's operators become work of the device.

A call is brought down to raw memory. Views are taken at once, since they touch no data. Everything
else is put on the current stream as work on raw tensors, which keeps no block from being freed.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NoReturn, cast

import torch
from torch import Tensor

from backend_caps.simulator.allocation import Lease
from backend_caps.simulator.errors import SimulatorError, call_site
from backend_caps.simulator.queues import NO_BLOCKS, Blocks, Op
from backend_caps.simulator.records import WaitKind
from backend_caps.simulator.simulation import current
from backend_caps.simulator.tensor import (
    AnyOperator,
    Args,
    Kwargs,
    Metadata,
    Operator,
    Results,
    SimTensor,
    allocate,
    aten,
    results_of,
    wrap,
)


@dataclass(slots=True)
class Lowered:
    """A call on raw memory."""

    operator: Operator
    """What is called."""
    args: list[object]
    """The arguments in order."""
    kwargs: dict[str, object]
    """The arguments by name."""
    key: Hashable
    """What the results' metadata depend on."""

    def run(self) -> object:
        """Make the call."""
        return self.operator.func(*self.args, **self.kwargs)

    def results(self) -> tuple[type, Results]:
        """Return what the results come in, and the metadata of each."""
        return results_of(self.operator, self.key, self.args, self.kwargs)


def lower(operator: Operator, args: Args, kwargs: Kwargs) -> Lowered:
    """Replace the device's tensors by their raw memory."""
    key: list[Hashable] = [operator.func]
    lowered = _lower(operator, args, key)
    named: dict[str, object] = {}
    for name, value in kwargs.items():
        key.append(name)
        (named[name],) = _lower(operator, (value,), key)
    if operator.is_random:
        named["generator"] = _seeded(cast("torch.Generator | None", kwargs.get("generator")))
    return Lowered(operator, lowered, named, tuple(key))


def _lower(operator: Operator, values: Args, key: list[Hashable]) -> list[object]:
    lowered: list[object] = []
    for value in values:
        kind = value.__class__
        if kind is SimTensor:
            tensor = cast("SimTensor", value)
            key.append(tensor.key)
            lowered.append(tensor.raw)
        elif kind is list or kind is tuple:
            nested: list[Hashable] = []
            lowered.append(_lower(operator, cast("Args", value), nested))
            key.append(tuple(nested))
        elif isinstance(value, Tensor):
            key.append((value.dtype, value.shape, value.stride()))
            lowered.append(_host_argument(operator, value))
        else:
            # 1, 1.0 and True are equal, and give results of three dtypes.
            key.append((kind, value))
            lowered.append(value)
    return lowered


_INDEXED: tuple[AnyOperator, ...] = (
    aten.index.Tensor,
    aten.index_put_.default,
    aten._index_put_impl_.default,
)


def _host_argument(operator: Operator, tensor: Tensor) -> Tensor:
    """Take a host tensor's value now: a number goes with the launch, an index is copied."""
    if tensor.dim() and operator.func in _INDEXED:
        simulation = current()
        simulation.count_copy(to_device=tensor.nbytes)
        simulation.synchronize_stream(simulation.current_stream, operator.name, WaitKind.HIDDEN)
    elif tensor.dim():
        reason = f"a host tensor of shape {tuple(tensor.shape)} is among its arguments; copy it"
        refuse(operator, f"{reason} to 'sim' first")
    return tensor.clone()


def _seeded(generator: torch.Generator | None) -> torch.Generator:
    """Draw now what the work will draw when it runs."""
    seed = torch.randint(2**62, (), generator=generator, device="cpu")
    return torch.Generator().manual_seed(int(seed))


def refuse(operator: Operator, reason: str) -> NoReturn:
    """Raise for an operator that cannot run.

    Raises:
        SimulatorError: always.
    """
    raise SimulatorError(
        "unsupported-operator",
        f"operator {operator.name!r}, called at {call_site()}, cannot run on the simulated "
        f"device: {reason}.",
    )


def accesses(operator: Operator, args: Args, kwargs: Kwargs) -> tuple[Blocks, Blocks]:
    """Return the blocks that a call reads and writes; only asked where races are looked for."""
    if current().detector is None:
        return NO_BLOCKS, NO_BLOCKS
    names = tuple(operator.positions)
    reads: set[int] = set()
    writes: set[int] = set()
    for name, value in (*zip(names, args, strict=False), *kwargs.items()):
        (writes if name in operator.written else reads).update(blocks_of(value))
    return frozenset(reads - writes), frozenset(writes)


def blocks_of(value: object) -> Blocks:
    """Return the blocks that a value's data lie in; host memory counts where it is pinned."""
    if isinstance(value, list | tuple):
        return NO_BLOCKS.union(*map(blocks_of, value))
    if not isinstance(value, Tensor) or not value.numel():
        return NO_BLOCKS
    if isinstance(value, SimTensor):
        return frozenset((value.lease.block.serial,))
    serial = current().pinned.serial(value)
    return NO_BLOCKS if serial is None else frozenset((serial,))


Handler = Callable[[Operator, Args, Kwargs], object]
"""A way to run an operator."""


def run_view(operator: Operator, args: Args, kwargs: Kwargs) -> object:
    """View memory in another way, at once."""
    base = args[0]
    if not isinstance(base, SimTensor):
        refuse(operator, "its first argument is no tensor of the device")
    result = operator.func(base.raw, *args[1:], **kwargs)
    if torch.is_inference_mode_enabled() and not base.is_inference():
        with torch._C._InferenceMode(False):  # noqa: FBT003, SLF001 - a view is what its base is
            return _wrapped(result, base.lease)
    return _wrapped(result, base.lease)


def _wrapped(result: object, lease: Lease) -> object:
    if isinstance(result, Tensor):
        return wrap(result, lease)
    assert isinstance(result, list | tuple), f"a view is {type(result)}"
    return type(result)(wrap(entry, lease) for entry in result)


def run_fresh(operator: Operator, args: Args, kwargs: Kwargs) -> object:
    """Compute into new memory."""
    call = lower(operator, args, kwargs)
    kind, results = call.results()
    reads, _ = accesses(operator, args, kwargs)
    return run_many(operator, kind, results, call.run, reads)


def result_of(operator: Operator, args: Args, kwargs: Kwargs) -> Metadata:
    """Return the metadata of an operator's one result, without launching it."""
    _, (result,) = lower(operator, args, kwargs).results()
    assert result is not None, f"{operator.name} returns a tensor"
    return result


def run_many(
    operator: Operator,
    kind: type,
    results: Sequence[Metadata | None],
    compute: Callable[[], object],
    reads: Blocks,
) -> object:
    """Compute one result, or several in a tuple or a list, into new memory."""
    simulation = current()
    tensors = [None if result is None else allocate(simulation, result) for result in results]
    raws = [None if tensor is None else tensor.raw for tensor in tensors]
    writes = blocks_of(tensors) if simulation.detector is not None else NO_BLOCKS
    work = partial(_compute, raws, compute)
    simulation.launch(Op(operator.name, call_site(), work, reads, writes))
    if kind is Tensor:
        return tensors[0]
    return tensors if kind is list else tuple(tensors)


def _compute(outs: Sequence[Tensor | None], compute: Callable[[], object]) -> None:
    found = compute()
    results = (found,) if isinstance(found, Tensor) else cast("Sequence[Tensor]", found)
    for out, result in zip(outs, results, strict=True):
        if out is not None:
            out.copy_(result)


def run_write(operator: Operator, args: Args, kwargs: Kwargs) -> object:
    """Write to arguments."""
    if torch.Tag.inplace_view in operator.func.tags:
        refuse(operator, "it changes a shape in place; use the one that returns a new view")
    call = lower(operator, args, kwargs)
    if operator.is_out or not operator.has_one_tensor:
        _, results = call.results()
        if operator.is_out:
            _require_sizes(operator, results, args, kwargs)
    reads, writes = accesses(operator, args, kwargs)
    current().launch(Op(operator.name, call_site(), call.run, reads, writes))
    written = tuple(_argument(operator, name, args, kwargs) for name in operator.written)
    if not operator.func._schema.returns:  # noqa: SLF001
        return None
    return written[0] if len(written) == 1 else written


def _require_sizes(
    operator: Operator, results: Sequence[Metadata | None], args: Args, kwargs: Kwargs
) -> None:
    """Refuse what torch would resize: a block's memory has a size."""
    for name, result in zip(operator.written, results, strict=True):
        size = tuple(cast("Tensor", _argument(operator, name, args, kwargs)).shape)
        if result is not None and result.size != size:
            refuse(operator, f"{name}= has shape {size}, and the result {result.size}; make it so")


def _argument(operator: Operator, name: str, args: Args, kwargs: Kwargs) -> object:
    place = operator.positions[name]
    return args[place] if place < len(args) else kwargs[name]


def run_read(operator: Operator, args: Args, kwargs: Kwargs) -> object:
    """Compute what the host has to wait for: a number, or results of unknown shapes."""
    simulation = current()
    simulation.refuse_in_capture(operator.name)
    call = lower(operator, args, kwargs)
    reads, _ = accesses(operator, args, kwargs)
    found: list[object] = []
    question = Op(operator.name, call_site(), lambda: found.append(call.run()), reads)
    question.bytes_to_host = answer_bytes(operator, args)
    simulation.launch(question)
    simulation.synchronize_stream(simulation.current_stream, operator.name, WaitKind.HIDDEN)
    (result,) = found
    if isinstance(result, Tensor):
        return run_many(operator, Tensor, (Metadata.of(result),), lambda: result, NO_BLOCKS)
    if isinstance(result, list | tuple):
        metadata = [Metadata.of(entry) for entry in result]
        return run_many(operator, type(result), metadata, lambda: result, NO_BLOCKS)
    return result


def answer_bytes(operator: Operator, args: Args) -> int:
    """Return the bytes that the host reads: a number, or the results' size as one int64."""
    if operator.func is aten._local_scalar_dense.default:  # noqa: SLF001 - what item() is
        return cast("SimTensor", args[0]).itemsize
    return torch.bool.itemsize if operator.func is aten.equal.default else torch.int64.itemsize
