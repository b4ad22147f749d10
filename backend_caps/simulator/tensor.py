"""What torch's operators do to memory, what their results look like, and the device's tensor.

Effects and results are asked at every launch, so both are kept: the first by operator, the second
by operator and the arguments' metadata.

A `SimTensor` has no memory that torch knows of: it holds a raw host tensor, which views the memory
of its block.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from enum import Enum
from typing import ClassVar, Protocol, TypeVar, cast

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils._pytree import tree_leaves, tree_map_only

from backend_caps.simulator.allocation import Lease
from backend_caps.simulator.queues import no_dispatch
from backend_caps.simulator.simulation import Simulation

_Values = TypeVar("_Values")
AnyOperator = OpOverload[..., object]
aten = torch.ops.aten


class Effect(Enum):
    """What an operator does to memory."""

    VIEW = "view"
    """Its results lie in its first argument's memory; no data is touched."""
    COMPOSITE = "composite"
    """It is made of other operators."""
    WRITE = "write"
    """It writes to arguments and returns them."""
    FRESH = "fresh"
    """Its results are new memory."""
    READ = "read"
    """Its results depend on data that the host has to wait for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """An operator's effect on memory."""

    func: AnyOperator
    """The operator."""
    name: str
    """Its name, `aten::add.Tensor`."""
    effect: Effect
    """What it does."""
    written: tuple[str, ...]
    """Arguments that it writes to, as the schema names them."""
    positions: Mapping[str, int]
    """Where the schema has its arguments."""
    is_out: bool
    """Whether what it writes to are `out=` arguments, which torch would resize."""
    is_random: bool
    """Whether it draws from a generator."""
    has_one_tensor: bool
    """Whether it takes one tensor, which cannot be at odds with another."""
    is_cheap: bool
    """Whether computing it takes short where its arguments are small."""


# `linear` and the like are run as one, as a device's library does; in inference mode they come so,
# and outside of it by way of the autograd key.
WHOLE: tuple[AnyOperator, ...] = (
    aten.linear.default,
    aten.matmul.default,
    aten.rms_norm.default,
    aten.softmax.int,
    aten.scaled_dot_product_attention.default,
)
# In the order of its shape on the meta device; in that of its query on the CPU.
_IN_ORDER: tuple[AnyOperator, ...] = (aten.scaled_dot_product_attention.default,)
# Views in all but their schema.
_VIEWS: tuple[AnyOperator, ...] = (aten._unsafe_view.default, aten._reshape_alias.default)  # noqa: SLF001


class _Operators(dict[AnyOperator, Operator]):
    def __missing__(self, func: AnyOperator) -> Operator:
        schema = func._schema  # noqa: SLF001 - the only way to an operator's schema
        names = [arg.name for arg in schema.arguments]
        written = [arg for arg in schema.arguments if arg.alias_info and arg.alias_info.is_write]
        operator = self[func] = Operator(
            func=func,
            name=f"{schema.name}.{schema.overload_name}".removesuffix("."),
            effect=_effect(func),
            written=tuple(arg.name for arg in written),
            positions={name: place for place, name in enumerate(names)},
            is_out=any(arg.is_out for arg in written),
            is_random="generator" in names,
            has_one_tensor=sum("Tensor" in str(arg.type) for arg in schema.arguments) == 1,
            is_cheap=_is_cheap(func, names),
        )
        return operator


OPERATORS = _Operators()


def _effect(func: AnyOperator) -> Effect:
    schema = func._schema  # noqa: SLF001 - as above
    if func in WHOLE:
        return Effect.FRESH
    if func._can_decompose():  # noqa: SLF001 - what `decompose` asks before it raises
        return Effect.COMPOSITE
    if func in _VIEWS or func.is_view:
        return Effect.VIEW
    if schema.is_mutable:
        return Effect.WRITE
    data_dependent = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
    return Effect.READ if data_dependent.intersection(func.tags) else Effect.FRESH


def _is_cheap(func: AnyOperator, names: Sequence[str]) -> bool:
    """Return whether it is torch's own, and its arguments alone say how large its results are."""
    return func.namespace == "aten" and {"generator", "size"}.isdisjoint(names)


@dataclass(frozen=True, slots=True)
class Metadata:
    """What one result looks like."""

    size: tuple[int, ...]
    """Its shape."""
    stride: tuple[int, ...]
    """Its strides."""
    dtype: torch.dtype
    """Its dtype."""
    num_bytes: int
    """The memory that it needs."""

    @classmethod
    def of(cls, tensor: Tensor) -> Metadata:
        """Describe a tensor as if its memory began with it."""
        size, stride = tuple(tensor.shape), tuple(tensor.stride())
        return cls(size, stride, tensor.dtype, num_bytes_of(size, stride, tensor.dtype))


def num_bytes_of(size: Sequence[int], stride: Sequence[int], dtype: torch.dtype) -> int:
    """Return the memory that a tensor of these strides needs."""
    if 0 in size:
        return 0
    last = sum((extent - 1) * step for extent, step in zip(size, stride, strict=True))
    return (last + 1) * dtype.itemsize


Results = tuple[Metadata | None, ...]
_MOST_KEPT = 20_000
_SMALL = 1 << 20
"""Bytes of arguments that are computed with sooner than asked about."""


_kept: dict[Hashable, tuple[type, Results]] = {}


def results_of(
    operator: Operator, key: Hashable, args: Sequence[object], kwargs: Mapping[str, object]
) -> tuple[type, Results]:
    """Return what the results of a call look like, from a run on zeros, or on torch's meta device.

    Args:
        operator: what is called.
        key: describes the arguments.
        args: the arguments, on raw memory.
        kwargs: the arguments by name, on raw memory.

    Returns:
        What the results come in, and the metadata of each.
    """
    kept = _kept.get(key)
    if kept is None:
        if len(_kept) >= _MOST_KEPT:
            _kept.clear()
        kept = _kept[key] = _described(_tried(operator, args, kwargs))
    return kept


def _tried(operator: Operator, args: Sequence[object], kwargs: Mapping[str, object]) -> object:
    """Run an operator for what its results look like.

    Most of torch's meta kernels are Python: the first one imports dynamo, which takes a second, and
    each takes some twenty times as long as the work itself on tensors as small as those of cases.
    """
    func = operator.func
    if operator.is_cheap and _num_bytes((args, kwargs)) <= _SMALL:
        with suppress(RuntimeError, IndexError), no_dispatch(), _unseeded(func):
            result = func(*_moved(args, "cpu"), **_moved(kwargs, "cpu"))
            return cast("Tensor", result).contiguous() if func in _IN_ORDER else result
    try:
        return func(*_moved(args, "meta"), **_moved(kwargs, "meta"))
    except NotImplementedError:
        return func(*_moved(args, "cpu"), **_moved(kwargs, "cpu"))


def _unseeded(func: AnyOperator) -> AbstractContextManager[None]:
    """Leave the host's generator as it is, where an operator may draw from it."""
    is_random = torch.Tag.nondeterministic_seeded in func.tags
    return torch.random.fork_rng(devices=()) if is_random else nullcontext()


def _num_bytes(values: object) -> int:
    """Add up what tensors among values take."""
    return sum(own.nbytes for own in tree_leaves(values) if isinstance(own, Tensor))


def _moved(values: _Values, device: str) -> _Values:
    """Put zeros of the same shapes, on a device, in place of tensors among values."""

    def zeros(tensor: Tensor) -> Tensor:
        size, stride, dtype = tensor.shape, tensor.stride(), tensor.dtype
        return torch.empty_strided(size, stride, dtype=dtype, device=device).zero_()

    moved: _Values = tree_map_only(Tensor, zeros, values)
    return moved


def _described(result: object) -> tuple[type, Results]:
    if isinstance(result, Tensor):
        return Tensor, (Metadata.of(result),)
    if isinstance(result, list | tuple):
        entries = (Metadata.of(entry) if isinstance(entry, Tensor) else None for entry in result)
        return type(result), tuple(entries)
    return type(result), ()


Args = Sequence[object]
Kwargs = Mapping[str, object]
Dispatch = Callable[[AnyOperator, Args, Kwargs], object]


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
    dispatch: ClassVar[Dispatch]
    """How operators run on it; set when the device is registered."""

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]  # noqa: SLF001

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: AnyOperator, types: Sequence[type], args: Args = (), kwargs: Kwargs | None = None
    ) -> object:
        """Run an operator."""
        return cls.dispatch(func, args, kwargs or {})

    def tolist(self) -> list[object]:
        """Bring the values to the host, which waits for them."""
        return cast("list[object]", self.cpu().tolist())

    def numpy(self, *, force: bool = False) -> object:  # type: ignore[override]
        """Refuse a view, as every device that is not the host does; by force, copy."""
        if not force:
            raise TypeError("a sim tensor has no numpy view; copy it to the host by .cpu() first")
        return self.cpu().numpy()

    def record_stream(self, stream: HasHandle) -> None:  # type: ignore[override]
        """Keep the memory from reuse until a stream has run what it has now."""
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
        """Return False: device memory is not pinned host memory."""
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
