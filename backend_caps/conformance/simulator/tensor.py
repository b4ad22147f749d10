"""The tensor of the simulated device, and how torch's operators run on it.

A `SimTensor` has no memory that torch knows of: it holds a raw host tensor, which views the memory
of its block. Views are taken at once, since they touch no data. Everything else is put on the
current stream as work on raw tensors, which keeps no block from being freed.

Collectives and backward are not there. Random numbers are drawn in the order of the launches.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NoReturn, Protocol, cast

import torch
from torch import Tensor

from backend_caps.conformance.simulator.allocator import Lease
from backend_caps.conformance.simulator.errors import UnsupportedOperatorError
from backend_caps.conformance.simulator.ops import (
    OPERATORS,
    AnyOperator,
    Effect,
    Metadata,
    Operator,
    ResultCache,
    aten,
)
from backend_caps.conformance.simulator.queues import NO_BLOCKS, Blocks, Op
from backend_caps.conformance.simulator.simulation import Simulation, current
from backend_caps.conformance.simulator.sites import call_site

Args = Sequence[object]
Kwargs = Mapping[str, object]
Handler = Callable[[Operator, Args, Kwargs], object]

SPECIAL: dict[AnyOperator, Handler] = {}
"""Operators whose effect their schema does not tell; filled when the device is registered."""
_RESULTS = ResultCache()


class HasHandle(Protocol):
    """A stream of the device."""

    handle: int


class SimTensor(torch.Tensor):
    """A tensor on the simulated device."""

    raw: Tensor
    """Its data, as a host tensor."""
    lease: Lease
    """Its block."""
    key: Hashable
    """What results of operators on it depend on: dtype, shape and strides."""

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]  # noqa: SLF001

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls,
        func: AnyOperator,
        types: Sequence[type],
        args: Args = (),
        kwargs: Kwargs | None = None,
    ) -> object:
        """Run an operator."""
        return dispatch(func, args, kwargs or {})

    def tolist(self) -> list[object]:
        """Bring the values to the host, which waits for them."""
        return cast("list[object]", self.cpu().tolist())

    def numpy(self, *, force: bool = False) -> object:  # type: ignore[override]
        """Refuse a view, as every device that is not the host does; by force, copy."""
        if not force:
            raise TypeError("a sim tensor has no numpy view; copy it to the host by .cpu() first")
        return self.cpu().numpy()

    def record_stream(self, stream: HasHandle) -> None:  # type: ignore[override]
        """Let nobody have the memory before a stream is done with what it has now."""
        if stream.handle != self.lease.block.stream:
            self.lease.block.users.add(stream.handle)

    @property
    def data(self) -> Tensor:
        """The tensor without autograd; assigned, it takes another tensor's memory."""
        return self.detach()

    @data.setter
    def data(self, other: Tensor) -> None:
        assert isinstance(other, SimTensor), "torch makes a new parameter where devices differ"
        torch._C.TensorBase.data.__set__(self, other)  # type: ignore[attr-defined]  # noqa: SLF001
        self.raw, self.lease, self.key = other.raw, other.lease, other.key

    def __deepcopy__(self, memo: dict[int, object]) -> Tensor:
        copy = memo.get(id(self))
        if copy is None:
            made = self.detach().clone()
            is_parameter = isinstance(self, torch.nn.Parameter)
            copy = memo[id(self)] = (
                torch.nn.Parameter(made, self.requires_grad) if is_parameter else made
            )
        return cast("Tensor", copy)

    def data_ptr(self) -> int:
        """Return the address of the data in the block's memory."""
        return self.raw.data_ptr()

    def is_pinned(self, device: object = None) -> bool:  # noqa: ARG002
        """Tell that device memory is not pinned host memory."""
        return False

    def __format__(self, format_spec: str) -> str:
        return format(self.cpu(), format_spec)

    def __repr__(self) -> str:  # type: ignore[override]
        return f"sim {self.cpu()!r}"


_DEVICE = torch.device(torch._C._get_privateuse1_backend_name(), 0)  # noqa: SLF001 - it is renamed later


def wrap(raw: Tensor, lease: Lease) -> SimTensor:
    """Make a tensor of the device of raw memory."""
    size, stride, dtype = raw.shape, raw.stride(), raw.dtype
    tensor = torch.Tensor._make_wrapper_subclass(  # noqa: SLF001 - torch's documented way
        SimTensor, size, stride, raw.storage_offset(), dtype=dtype, device=_DEVICE
    )
    tensor.raw, tensor.lease, tensor.key = raw, lease, (dtype, size, stride)
    return tensor


def allocate(simulation: Simulation, result: Metadata) -> SimTensor:
    """Make a tensor in new memory of the current stream: poison."""
    lease = simulation.allocate(result.num_bytes)
    return wrap(lease.block.raw(result.dtype, result.size, result.stride), lease)


def dispatch(func: AnyOperator, args: Args, kwargs: Kwargs) -> object:
    """Run one of torch's operators on tensors of the device."""
    operator = OPERATORS[func]
    special = SPECIAL.get(func)
    if special is not None:
        return special(operator, args, kwargs)
    match operator.effect:
        case Effect.FRESH:
            return run_fresh(operator, args, kwargs)
        case Effect.VIEW:
            return run_view(operator, args, kwargs)
        case Effect.WRITE:
            return run_write(operator, args, kwargs)
        case Effect.READ:
            return run_read(operator, args, kwargs)
        case Effect.COMPOSITE:
            return func.decompose(*args, **kwargs)


@dataclass(slots=True)
class Lowered:
    """A call's arguments on raw memory."""

    args: list[object]
    """In order."""
    kwargs: dict[str, object]
    """By name."""
    key: Hashable
    """What the results' metadata depend on."""


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
    return Lowered(lowered, named, tuple(key))


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
        simulation.bytes_to_device += tensor.nbytes
        simulation.synchronize_stream(
            simulation.current_stream, operator.name, simulation.hidden_syncs
        )
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
        UnsupportedOperatorError: always.
    """
    raise UnsupportedOperatorError(operator=operator.name, site=str(call_site()), reason=reason)


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
    kind, results = _RESULTS.lookup(operator.func, call.key, call.args, call.kwargs)
    simulation = current()
    reads, _ = accesses(operator, args, kwargs)
    if kind is Tensor:
        (result,) = results
        assert result is not None, "a tensor has metadata"
        tensor = allocate(simulation, result)
        work = partial(_compute, tensor.raw, operator.func, call)
        writes = blocks_of(tensor) if simulation.detector is not None else NO_BLOCKS
        simulation.launch(Op(operator.name, call_site(), work, reads, writes))
        return tensor
    return run_many(operator, kind, results, partial(_call, operator.func, call), reads)


def result_of(operator: Operator, args: Args, kwargs: Kwargs) -> Metadata:
    """Tell what an operator's one result looks like, without launching it."""
    call = lower(operator, args, kwargs)
    _, (result,) = _RESULTS.lookup(operator.func, call.key, call.args, call.kwargs)
    assert result is not None, f"{operator.name} returns a tensor"
    return result


def run_many(
    operator: Operator,
    kind: type,
    results: Sequence[Metadata | None],
    compute: Callable[[], object],
    reads: Blocks,
) -> object:
    """Compute several results into new memory."""
    simulation = current()
    tensors = [None if result is None else allocate(simulation, result) for result in results]
    raws = [None if tensor is None else tensor.raw for tensor in tensors]
    writes = blocks_of(tensors) if simulation.detector is not None else NO_BLOCKS
    work = partial(_compute_many, raws, compute)
    simulation.launch(Op(operator.name, call_site(), work, reads, writes))
    return tensors if kind is list else tuple(tensors)


def _call(func: AnyOperator, call: Lowered) -> object:
    return func(*call.args, **call.kwargs)


def _compute(out: Tensor, func: AnyOperator, call: Lowered) -> None:
    out.copy_(cast("Tensor", func(*call.args, **call.kwargs)))


def _compute_many(outs: Sequence[Tensor | None], compute: Callable[[], object]) -> None:
    for out, result in zip(outs, cast("Sequence[Tensor]", compute()), strict=True):
        if out is not None:
            out.copy_(result)


def run_write(operator: Operator, args: Args, kwargs: Kwargs) -> object:
    """Write to arguments."""
    if torch.Tag.inplace_view in operator.func.tags:
        refuse(operator, "it changes a shape in place; use the one that returns a new view")
    call = lower(operator, args, kwargs)
    if operator.is_out or not operator.has_one_tensor:
        _, results = _RESULTS.lookup(operator.func, call.key, call.args, call.kwargs)
        if operator.is_out:
            _require_sizes(operator, results, args, kwargs)
    reads, writes = accesses(operator, args, kwargs)
    work = partial(_call, operator.func, call)
    current().launch(Op(operator.name, call_site(), work, reads, writes))
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
    work = partial(_keep, found, operator.func, call)
    simulation.launch(Op(operator.name, call_site(), work, reads))
    simulation.synchronize_stream(simulation.current_stream, operator.name, simulation.hidden_syncs)
    (result,) = found
    if isinstance(result, Tensor):
        tensors = run_many(operator, tuple, (Metadata.of(result),), lambda: (result,), NO_BLOCKS)
        return cast("tuple[SimTensor]", tensors)[0]
    if isinstance(result, list | tuple):
        metadata = [Metadata.of(entry) for entry in result]
        return run_many(operator, type(result), metadata, lambda: result, NO_BLOCKS)
    return result


def _keep(found: list[object], func: AnyOperator, call: Lowered) -> None:
    found.append(func(*call.args, **call.kwargs))
