"""Operators whose effect depends on their arguments, which a schema does not tell."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import torch
from torch import Tensor

from backend_caps.simulator.counts import WaitKind
from backend_caps.simulator.ops import AnyOperator, Operator, aten
from backend_caps.simulator.running import (
    Handler,
    answer_bytes,
    run_fresh,
    run_read,
    run_write,
)
from backend_caps.simulator.simulation import current
from backend_caps.simulator.tensor import Args, Kwargs


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


def _is_pinned(operator: Operator, args: Args, kwargs: Kwargs) -> bool:  # noqa: ARG001
    return False


def _detach(operator: Operator, args: Args, kwargs: Kwargs) -> object:  # noqa: ARG001
    return args[0]


SPECIAL_CASES: Mapping[AnyOperator, Handler] = {
    aten._index_put_impl_.default: _index_put,
    aten.detach_.default: _detach,
    aten.index.Tensor: _index,
    aten.index_put_.default: _index_put,
    aten.is_pinned.default: _is_pinned,
    aten.repeat_interleave.Tensor: _repeat_interleave,
}
"""Operators that are not what their schema says."""
