"""The tensor class of the simulated device.

A `SimTensor` has no storage in torch: it holds a raw host tensor, a view of its block's memory.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol, cast

import torch
from torch import Tensor
from torch._ops import OpOverload

from backend_caps.simulator.allocation import Lease
from backend_caps.simulator.simulation import current
from backend_caps.simulator.trace_function import untraced

AnyOperator = OpOverload[..., object]
aten = torch.ops.aten


@dataclass(frozen=True, slots=True)
class Metadata:
    """Shape, strides and dtype of one result of an operator."""

    size: tuple[int, ...]
    """The shape."""
    stride: tuple[int, ...]
    """The strides."""
    dtype: torch.dtype
    """The dtype."""
    num_bytes: int
    """The memory that it needs."""

    @classmethod
    def of(cls, tensor: Tensor) -> Metadata:
        """Describe a tensor as if its memory began with it."""
        size, stride = tuple(tensor.shape), tuple(tensor.stride())
        last = sum((extent - 1) * step for extent, step in zip(size, stride, strict=True))
        num_items = last + 1 if tensor.numel() else 0
        return cls(size, stride, tensor.dtype, num_items * tensor.dtype.itemsize)


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
    """Dtype, shape and strides: cache key of the metadata of operators' results."""
    dispatch: ClassVar[Dispatch]
    """Runs an operator; set when the device is registered."""

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]  # noqa: SLF001

    @classmethod
    @untraced
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: AnyOperator, types: Sequence[type], args: Args = (), kwargs: Kwargs | None = None
    ) -> object:
        """Run an operator."""
        return cls.dispatch(func, args, kwargs or {})

    def tolist(self) -> list[object]:
        """Copy the values to the host, which waits for them."""
        return cast("list[object]", self.cpu().tolist())

    def numpy(self, *, force: bool = False) -> object:  # type: ignore[override]
        """Refuse a view, as every device but the CPU does; with `force`, copy."""
        if not force:
            raise TypeError("a sim tensor has no numpy view; copy it to the host by .cpu() first")
        return self.cpu().numpy()

    def record_stream(self, stream: HasHandle) -> None:  # type: ignore[override]
        """Keep the memory from reuse until a stream has run its present work."""
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
            clone = self.detach().clone()
            is_parameter = isinstance(self, torch.nn.Parameter)
            copy = memo[id(self)] = (
                torch.nn.Parameter(clone, self.requires_grad) if is_parameter else clone
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
    """Make a tensor of the device from raw memory."""
    size, stride, dtype = raw.shape, raw.stride(), raw.dtype
    tensor = torch.Tensor._make_wrapper_subclass(  # noqa: SLF001 - torch's documented way
        SimTensor, size, stride, raw.storage_offset(), dtype=dtype, device=_DEVICE
    )
    tensor.raw, tensor.lease, tensor.key = raw, lease, (dtype, size, stride)
    return tensor


def allocate(result: Metadata) -> SimTensor:
    """Make a tensor in new memory of the current stream, filled with poison."""
    lease = current().allocate(result.num_bytes)
    return wrap(lease.block.raw(result.dtype, result.size, result.stride), lease)
