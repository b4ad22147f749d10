"""What the host does with its own memory while the device runs beside it.

Only pinned memory matters: the device reads and writes it when its work runs. Operators are seen by
a dispatch mode; `tolist` and `numpy` read memory without an operator, so they are replaced while a
simulation runs. A numpy view that was made before is not seen when it is read later.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import cast

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from backend_caps.conformance.simulator.ops import OPERATORS, AnyOperator, Effect, Operator, aten
from backend_caps.conformance.simulator.queues import NO_BLOCKS, Blocks
from backend_caps.conformance.simulator.simulation import Simulation
from backend_caps.conformance.simulator.sites import call_site
from backend_caps.conformance.simulator.tensor import (
    Args,
    Kwargs,
    SimTensor,
    accesses,
    blocks_of,
    dispatch,
)


class HostMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """See every operator: serve pinned memory, and note who touches it."""

    def __init__(self, simulation: Simulation) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._simulation = simulation

    def __torch_dispatch__(
        self,
        func: AnyOperator,
        types: Sequence[type],
        args: Args = (),
        kwargs: Kwargs | None = None,
    ) -> object:
        """Run an operator of the host, or of the device."""
        kwargs = kwargs or {}
        if SimTensor in types:
            return dispatch(func, args, kwargs)
        if func in _PINS:
            return pinned_copy(self._simulation, cast("Tensor", args[0]))
        if func is aten.is_pinned.default:
            return self._simulation.pinned.has(cast("Tensor", args[0]))
        if kwargs.get("pin_memory"):
            return self._make_pinned(func, args, {**kwargs, "pin_memory": False})
        operator = OPERATORS[func]
        if operator.effect is Effect.COMPOSITE:
            with self:
                return func.decompose(*args, **kwargs)
        if self._simulation.detector is not None and operator.effect is not Effect.VIEW:
            self._note(operator, args, kwargs)
        return func(*args, **kwargs)

    def _make_pinned(self, func: AnyOperator, args: Args, kwargs: Kwargs) -> Tensor:
        made = cast("Tensor", func(*args, **kwargs))
        if func.overloadpacket in _EMPTY:
            return self._simulation.pinned.empty(made.shape, made.dtype)
        return self._simulation.pinned.copy(made)

    def _note(self, operator: Operator, args: Args, kwargs: Kwargs) -> None:
        device = cast("torch.device | None", kwargs.get("device"))
        if device is None or device.type == "cpu":
            reads, writes = accesses(operator, args, kwargs)
            note_host_access(self._simulation, operator.name, reads, writes)


_PINS: tuple[AnyOperator, ...] = (aten.pin_memory.default, aten._pin_memory.default)  # noqa: SLF001
_EMPTY = (aten.empty, aten.empty_strided, aten.empty_like, aten.new_empty)


def pinned_copy(simulation: Simulation, tensor: Tensor) -> Tensor:
    """Return a host tensor in pinned memory: itself, where it is."""
    return tensor if simulation.pinned.has(tensor) else simulation.pinned.copy(tensor)


def note_host_access(simulation: Simulation, name: str, reads: Blocks, writes: Blocks) -> None:
    """Tell the race detector of the host's reads and writes."""
    if simulation.detector is not None and (reads or writes):
        simulation.detector.host_access(name, call_site(), reads, writes)


@contextmanager
def watched_host(simulation: Simulation) -> Iterator[None]:
    """Watch what the host does within a `with` block."""
    originals = {name: getattr(torch.Tensor, name) for name in _READERS}
    make_tensor = torch.tensor
    for name, original in originals.items():
        setattr(torch.Tensor, name, _reader(simulation, name, original))
    torch.tensor = cast("TensorMaker", _tensor_maker(simulation, make_tensor))
    try:
        with HostMode(simulation):
            yield
    finally:
        torch.tensor = make_tensor
        for name, original in originals.items():
            setattr(torch.Tensor, name, original)


_READERS = ("tolist", "numpy", "__array__")

Method = Callable[..., object]


def _reader(simulation: Simulation, name: str, original: Method) -> Method:
    """Make a method that notes what it reads."""

    @wraps(original)
    def read(self: Tensor, *args: object, **kwargs: object) -> object:
        note_host_access(simulation, f"Tensor.{name}", blocks_of(self), NO_BLOCKS)
        return original(self, *args, **kwargs)

    return read


def _tensor_maker(simulation: Simulation, original: Method) -> Method:
    """Make a `torch.tensor` that can pin: torch's own calls no operator that a mode sees."""

    @wraps(original)
    def tensor(data: object, *, pin_memory: bool = False, **options: object) -> object:
        made = original(data, **options)
        return pinned_copy(simulation, cast("Tensor", made)) if pin_memory else made

    return tensor
