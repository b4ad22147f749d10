"""What the host does with its own memory while the device runs beside it.

Only pinned memory matters: the device reads and writes it when its work runs. Operators are seen by
a dispatch mode; `tolist` and `numpy` read memory without an operator, so they are replaced while a
simulation runs. A numpy view that was made before is not seen when it is read later.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache, wraps
from typing import cast

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from backend_caps.simulator.device import DEVICE_NAME
from backend_caps.simulator.dispatching import dispatch, is_composite
from backend_caps.simulator.lowering import accesses, blocks_of
from backend_caps.simulator.ops import OPERATORS, AnyOperator, Effect, Operator, aten
from backend_caps.simulator.queues import NO_BLOCKS, Blocks
from backend_caps.simulator.simulation import Simulation
from backend_caps.simulator.sites import call_site
from backend_caps.simulator.tensor import Args, Kwargs, SimTensor

Method = Callable[..., object]


class HostMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """See every operator: serve pinned memory, and note who touches it."""

    def __init__(self, simulation: Simulation) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._simulation = simulation

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Keep torch from wrapping the dispatch: that imports dynamo, for three seconds."""
        return False

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
            if not is_composite(func):
                return dispatch(func, args, kwargs)
            with self:
                return dispatch(func, args, kwargs)
        if func in _PINS:
            return pinned_copy(self._simulation, cast("Tensor", args[0]))
        if func is aten.is_pinned.default:
            return self._simulation.pinned.has(cast("Tensor", args[0]))
        if _is_on_sim(kwargs) and _is_composed(func):
            with self:
                return func._op_dk(_COMPOSED, *args, **kwargs)  # noqa: SLF001 - as `decompose` does
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


_COMPOSED = torch._C.DispatchKey.CompositeExplicitAutograd  # noqa: SLF001
_PINS: tuple[AnyOperator, ...] = (aten.pin_memory.default, aten._pin_memory.default)  # noqa: SLF001
_EMPTY = (aten.empty, aten.empty_strided, aten.empty_like, aten.new_empty)


def _is_on_sim(kwargs: Kwargs) -> bool:
    """Tell whether options say that a tensor is made on the device."""
    device = cast("torch.device | None", kwargs.get("device"))
    return device is not None and device.type == DEVICE_NAME


@cache
def _is_composed(func: AnyOperator) -> bool:
    """Tell whether torch makes a tensor of the device by other operators, such as a copy to it.

    They are shown to the mode: where torch meets a tensor's class instead, it imports DTensor, for
    a second.
    """
    own = torch._C.DispatchKey.PrivateUse1  # noqa: SLF001
    has = func.has_kernel_for_dispatch_key
    return has(_COMPOSED) and not has(own)


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
    with ExitStack() as replaced:
        for name in ("tolist", "numpy", "__array__"):
            method = cast("Method", getattr(torch.Tensor, name))
            replacement = _reader(simulation, name, method)
            replaced.enter_context(_replaced(torch.Tensor, name, replacement))
        replaced.enter_context(_replaced(torch, "tensor", _tensor_maker(simulation, torch.tensor)))
        replaced.enter_context(HostMode(simulation))
        yield


@contextmanager
def _replaced(owner: object, name: str, replacement: Method) -> Iterator[None]:
    """Replace an attribute, and afterwards leave no trace, also where it was inherited."""
    before = vars(owner).get(name)
    setattr(owner, name, replacement)
    try:
        yield
    finally:
        if before is None:
            delattr(owner, name)
        else:
            setattr(owner, name, before)


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
