"""Operators that make tensors, of nothing or like another."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import cast

import torch
from torch import Tensor

from backend_caps.simulator.lowering import blocks_of
from backend_caps.simulator.ops import OPERATORS, AnyOperator, Metadata, Operator, aten
from backend_caps.simulator.queues import NO_BLOCKS, Op, no_dispatch
from backend_caps.simulator.running import Handler, result_of, run_fresh
from backend_caps.simulator.simulation import current
from backend_caps.simulator.sites import call_site
from backend_caps.simulator.tensor import Args, Kwargs, SimTensor, allocate

_PLACES = frozenset({"device", "layout", "pin_memory", "non_blocking"})


def without_place(kwargs: Kwargs) -> dict[str, object]:
    """Drop the options that say where a result is made."""
    return {name: value for name, value in kwargs.items() if name not in _PLACES}


def _make_like(operator: Operator, args: Args, kwargs: Kwargs) -> object:
    """Make a tensor like another one: on its device, or on the host if that is asked for."""
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

LIKES: Mapping[AnyOperator, Handler] = dict.fromkeys(_LIKE, _make_like)
"""Operators that make a tensor like another one."""


def empty(size: Sequence[int], dtype: torch.dtype | None = None, **_place: object) -> SimTensor:
    """Allocate memory of the current stream: poison."""
    with no_dispatch():
        return _allocated(torch.empty(size, dtype=dtype, device="meta"))


def empty_strided(
    size: Sequence[int],
    stride: Sequence[int],
    dtype: torch.dtype | None = None,
    **_place: object,
) -> SimTensor:
    """Allocate memory of the current stream for these strides: poison."""
    with no_dispatch():
        return _allocated(torch.empty_strided(size, stride, dtype=dtype, device="meta"))


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
