"""What torch's operators do to memory, and calls of them.

A call on tensors of the device is lowered to one on raw memory, which keeps no block from being
freed. Every launch looks up an operator's effect and what its results look like, so both are kept:
the first by operator, the second by operator and the arguments' metadata.
"""

from __future__ import annotations

from collections.abc import Hashable
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, replace
from enum import Enum
from functools import cache
from typing import NoReturn, cast

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only

from backend_caps.simulator.errors import SimulatorError, call_site
from backend_caps.simulator.queues import NO_BLOCKS, Blocks, no_dispatch
from backend_caps.simulator.simulation import current
from backend_caps.simulator.tensor import AnyOperator, Args, Kwargs, Metadata, SimTensor, aten
from backend_caps.simulator.trace_function import call_traced


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


class Operator:
    """An operator's effect on memory, as its schema has it.

    Args:
        func: the operator.
    """

    def __init__(self, func: AnyOperator) -> None:
        schema = func._schema  # noqa: SLF001 - the only way to an operator's schema
        written = [arg for arg in schema.arguments if arg.alias_info and arg.alias_info.is_write]
        self.func = func
        """The operator."""
        self.name = f"{schema.name}.{schema.overload_name}".removesuffix(".")
        """Its name, `aten::add.Tensor`."""
        self.effect = _effect(func)
        """What it does."""
        self.written = tuple(arg.name for arg in written)
        """Arguments that it writes to, as the schema names them."""
        self.positions = {arg.name: place for place, arg in enumerate(schema.arguments)}
        """Where the schema has its arguments."""
        self.is_out = any(arg.is_out for arg in written)
        """Whether what it writes to are `out=` arguments, which torch would resize."""
        self.is_random = "generator" in self.positions
        """Whether it draws from a generator."""
        self.has_one_tensor = sum("Tensor" in str(arg.type) for arg in schema.arguments) == 1
        """Whether it takes one tensor, which cannot be at odds with another."""
        is_sized_by_arguments = self.positions.keys().isdisjoint(("generator", "size"))
        self.is_cheap = func.namespace == "aten" and is_sized_by_arguments
        """Whether computing it takes short where its arguments are small."""
        self.is_foreign = func.namespace not in _OF_TORCH
        """Whether its own code may be Python of a backend."""


operator_of = cache(Operator)
"""Return what an operator does, looked up once for each."""


# `linear` and the like are run as one, as a device's library does; in inference mode they come so,
# and outside of it by way of the autograd key.
WHOLE: tuple[AnyOperator, ...] = (
    aten.linear.default,
    aten.matmul.default,
    aten.rms_norm.default,
    aten.softmax.int,
    aten.scaled_dot_product_attention.default,
)
# Views in all but their schema.
_VIEWS: tuple[AnyOperator, ...] = (aten._unsafe_view.default, aten._reshape_alias.default)  # noqa: SLF001


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


Results = tuple[Metadata | None, ...]
_OF_TORCH = frozenset({"aten", "prim", "prims"})
_PLACES = frozenset({"device", "layout", "pin_memory", "non_blocking"})
_MOST_KEPT = 20_000
_SMALL = 1 << 20
"""Bytes of arguments with which computing takes less time than torch's meta kernels."""
# In the order of its shape on the meta device; in that of its query on the CPU.
_IN_ORDER: tuple[AnyOperator, ...] = (aten.scaled_dot_product_attention.default,)
_kept: dict[Hashable, tuple[type, Results]] = {}
"""What results look like, by the key of a lowered call."""


@dataclass(slots=True)
class Call:
    """A call of an operator, on tensors of the device or lowered to raw memory."""

    operator: Operator
    """What is called."""
    args: Args
    """The arguments in order."""
    kwargs: Kwargs
    """The arguments by name."""
    key: Hashable = None
    """What the results' metadata depend on; set where the call is lowered."""

    def run(self) -> object:
        """Make the call."""
        if self.operator.is_foreign:
            return call_traced(self.operator.func, *self.args, **self.kwargs)
        return self.operator.func(*self.args, **self.kwargs)

    def argument(self, name: str) -> object:
        """Return the argument that the schema has under a name."""
        place = self.operator.positions[name]
        return self.args[place] if place < len(self.args) else self.kwargs[name]

    def without_place(self) -> Call:
        """Drop the options that say where a result is made."""
        kept = {name: value for name, value in self.kwargs.items() if name not in _PLACES}
        return replace(self, kwargs=kept)

    def lowered(self) -> Call:
        """Replace the device's tensors by their raw memory."""
        key: list[Hashable] = [self.operator.func]
        args = _lower(self.operator, self.args, key)
        named: dict[str, object] = {}
        for name, value in self.kwargs.items():
            key.append(name)
            (named[name],) = _lower(self.operator, (value,), key)
        if self.operator.is_random:
            generator = self.kwargs.get("generator")
            named["generator"] = _seeded(cast("torch.Generator | None", generator))
        return Call(self.operator, args, named, tuple(key))

    def results(self) -> tuple[type, Results]:
        """Return what the results of a lowered call come in, and the metadata of each."""
        kept = _kept.get(self.key)
        if kept is None:
            if len(_kept) >= _MOST_KEPT:
                _kept.clear()
            kept = _kept[self.key] = described(self._tried())
        return kept

    def _tried(self) -> object:
        """Run a lowered call on zeros, or on torch's meta device, for what its results look like.

        Most of torch's meta kernels are Python: the first one imports dynamo, which takes a second,
        and each takes some twenty times as long as the work itself on tensors as small as those of
        cases.
        """
        func = self.operator.func
        leaves = tree_leaves((self.args, self.kwargs))
        num_bytes = sum(own.nbytes for own in leaves if isinstance(own, Tensor))
        if self.operator.is_cheap and num_bytes <= _SMALL:
            with suppress(RuntimeError, IndexError), no_dispatch(), _unseeded(func):
                result = self._on_zeros("cpu")
                return cast("Tensor", result).contiguous() if func in _IN_ORDER else result
        try:
            return self._on_zeros("meta")
        except NotImplementedError:
            return self._on_zeros("cpu")

    def _on_zeros(self, device: str) -> object:
        """Make the call on a device, with zeros of the same shapes in place of tensors."""

        def zeros(tensor: Tensor) -> Tensor:
            size, stride, dtype = tensor.shape, tensor.stride(), tensor.dtype
            return torch.empty_strided(size, stride, dtype=dtype, device=device).zero_()

        args: Args = tree_map_only(Tensor, zeros, self.args)
        kwargs: Kwargs = tree_map_only(Tensor, zeros, self.kwargs)
        return self.operator.func(*args, **kwargs)

    def result(self) -> Metadata:
        """Return the metadata of the call's one result, without launching it."""
        _, (result,) = self.lowered().results()
        assert result is not None, f"{self.operator.name} returns a tensor"
        return result

    def accesses(self) -> tuple[Blocks, Blocks]:
        """Return the blocks that it reads and writes; none where races are not looked for."""
        if not current().detector.is_on:
            return NO_BLOCKS, NO_BLOCKS
        reads: set[int] = set()
        writes: set[int] = set()
        named = zip(self.operator.positions, self.args, strict=False)
        for name, value in (*named, *self.kwargs.items()):
            (writes if name in self.operator.written else reads).update(blocks_of(value))
        return frozenset(reads - writes), frozenset(writes)


def _unseeded(func: AnyOperator) -> AbstractContextManager[None]:
    """Leave the host's generator as it is, where an operator may draw from it."""
    is_random = torch.Tag.nondeterministic_seeded in func.tags
    return torch.random.fork_rng(devices=()) if is_random else nullcontext()


def described(result: object) -> tuple[type, Results]:
    """Return what an operator's results come in, and the metadata of each."""
    if isinstance(result, Tensor):
        return Tensor, (Metadata.of(result),)
    if isinstance(result, list | tuple):
        entries = (Metadata.of(entry) if isinstance(entry, Tensor) else None for entry in result)
        return type(result), tuple(entries)
    return type(result), ()


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
        current().count_copy(to_device=tensor.nbytes)
        current().wait_for_current(operator.name)
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


def blocks_of(value: object) -> Blocks:
    """Return the blocks that a value's data lie in; host memory counts where it is pinned.

    There are none where races are not looked for.
    """
    if not current().detector.is_on:
        return NO_BLOCKS
    if isinstance(value, list | tuple):
        return NO_BLOCKS.union(*map(blocks_of, value))
    if not isinstance(value, Tensor) or not value.numel():
        return NO_BLOCKS
    if isinstance(value, SimTensor):
        return frozenset((value.lease.block.serial,))
    serial = current().pinned.serial(value)
    return NO_BLOCKS if serial is None else frozenset((serial,))
