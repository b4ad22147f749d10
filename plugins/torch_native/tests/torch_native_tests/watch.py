"""What watches a backend at work: a trap in place of the mirror, a recorder in place of a graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Never

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

_HOST_READS = frozenset(
    {
        "aten._local_scalar_dense.default",
        "aten._unique2.default",
        "aten.equal.default",
        "aten.masked_select.default",
        "aten.nonzero.default",
        "aten.repeat_interleave.Tensor",
    }
)
"""Operators by which the host gets a value, or a shape that follows from values."""


class Trap:
    """Stands for a mirror that must not be read."""

    def __getattribute__(self, name: str) -> Never:
        raise AssertionError(f"read the mirror: {name}")


@dataclass(frozen=True)
class Call:
    """One operator as it ran."""

    func: Callable[..., object]
    args: tuple[object, ...]
    kwargs: Mapping[str, object]
    result: object

    def is_host_read(self) -> bool:
        """Tell whether the host waited for it; indexing by a mask finds its size so."""
        if str(self.func) == "aten._to_copy.default":
            return self.kwargs.get("device") is not None
        by_mask = str(self.func) in {"aten.index.Tensor", "aten.index_put_.default"} and any(
            isinstance(index, Tensor) and index.dtype == torch.bool
            for index in tree_leaves(self.args[1])
        )
        return by_mask or str(self.func) in _HOST_READS


class Recording(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Record the operators of a capture, and run them again on the same tensors.

    As in a CUDA graph, host code runs once: what it computed stays as it was.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._calls: list[Call] = []

    def __torch_dispatch__(
        self,
        func: Callable[..., object],
        types: object,
        args: tuple[object, ...] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        """Run an operator, and note it."""
        del types
        result = func(*args, **(kwargs or {}))
        self._calls.append(Call(func, args, kwargs or {}, result))
        return result

    def host_reads(self) -> Sequence[str]:
        """List the operators that the host waited for."""
        return [str(call.func) for call in self._calls if call.is_host_read()]

    def replay(self) -> None:
        """Run every operator again, into the memory of its first result."""
        for call in self._calls:
            again = call.func(*call.args, **call.kwargs)
            for old, new in zip(tree_leaves(call.result), tree_leaves(again), strict=True):
                if isinstance(old, Tensor) and old.data_ptr() != new.data_ptr():
                    old.copy_(new)
