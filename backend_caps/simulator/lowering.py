"""Calls of operators, brought down to raw memory, and what they read and write of it."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import NoReturn, cast

import torch
from torch import Tensor

from backend_caps.simulator.counts import WaitKind
from backend_caps.simulator.errors import UnsupportedOperatorError
from backend_caps.simulator.ops import AnyOperator, Operator, aten
from backend_caps.simulator.queues import NO_BLOCKS, Blocks
from backend_caps.simulator.simulation import current
from backend_caps.simulator.sites import call_site
from backend_caps.simulator.tensor import Args, Kwargs, SimTensor


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
