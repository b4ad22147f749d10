"""The device `sim`, as torch knows it: a name, a device module, and a few operators.

torch's way to a Python device is experimental: only this file uses it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from types import ModuleType

import torch
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

from backend_caps.simulator import copies, factories, graphs, streams
from backend_caps.simulator.dispatching import dispatch
from backend_caps.simulator.ops import OPERATORS, WHOLE, AnyOperator
from backend_caps.simulator.simulation import current
from backend_caps.simulator.tensor import SimTensor

DEVICE_NAME = "sim"
"""What torch calls the device."""


class SimModule(ModuleType):
    """What `torch.get_device_module("sim")` returns: the part of `torch.cuda` that engines use."""

    Stream = streams.Stream
    Event = streams.Event
    stream = staticmethod(streams.stream)
    current_stream = staticmethod(streams.current_stream)
    default_stream = staticmethod(streams.default_stream)
    StreamContext = streams.StreamContext
    set_stream = staticmethod(streams.set_stream)
    CUDAGraph = graphs.CUDAGraph
    graph = staticmethod(graphs.graph)
    graph_pool_handle = staticmethod(graphs.graph_pool_handle)
    memory_snapshot = staticmethod(graphs.memory_snapshot)
    is_current_stream_capturing = staticmethod(graphs.is_current_stream_capturing)

    @property
    def synchronize(self) -> Callable[..., None]:
        """What makes the host wait for everything of the simulation that runs when it is asked for.

        An engine that dies in a circle waits when garbage is looked for, and another may run then.
        """
        return partial(streams.synchronize, of=current())

    @staticmethod
    def is_available() -> bool:
        """Tell that the device is there."""
        return True

    @staticmethod
    def is_initialized() -> bool:
        """Tell that the device can be used."""
        return True

    @staticmethod
    def device_count() -> int:
        """Return 1: there is one device."""
        return 1

    @staticmethod
    def current_device() -> int:
        """Return 0: there is one device."""
        return 0

    @staticmethod
    def set_device(device: streams.DeviceLike) -> None:
        """Choose the only device there is."""
        assert device in {0, DEVICE_NAME, torch.device(DEVICE_NAME), torch.device(DEVICE_NAME, 0)}

    @staticmethod
    def manual_seed_all(seed: int) -> None:
        """Do nothing: random numbers come from the host's generator."""

    @staticmethod
    def _is_in_bad_fork() -> bool:
        return False


@cache
def register() -> torch.device:
    """Make torch know the device `sim`, once in a process, and return it.

    Raises:
        RuntimeError: torch's, where another device has the name of PrivateUse1 already.
    """
    _setup_privateuseone_for_python_backend(DEVICE_NAME, SimModule(f"torch.{DEVICE_NAME}"))
    SimTensor.dispatch = dispatch
    for name, implementation in _FACTORIES.items():
        torch.library.impl(f"aten::{name}", "PrivateUse1", implementation, lib=_library())
    for func in factories.MADE_ON_HOST:
        implementation = factories.made_on_host(func)
        torch.library.impl(OPERATORS[func].name, "PrivateUse1", implementation, lib=_library())
    for func in WHOLE:
        torch.library.impl(
            OPERATORS[func].name, "AutogradPrivateUse1", _whole(func), lib=_library()
        )
    return torch.device(DEVICE_NAME, 0)


def _whole(func: AnyOperator) -> Callable[..., object]:
    """Keep an operator from being taken apart by autograd."""

    def run(*args: object, **kwargs: object) -> object:
        return dispatch(func, args, kwargs)

    return run


@cache
def _library() -> torch.library.Library:
    """Make what holds the operators: torch forgets them when it dies."""
    return torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]


_FACTORIES: dict[str, Callable[..., object]] = {
    "_copy_from": copies.copy_from,
    "empty.memory_format": factories.empty,
    "empty_strided": factories.empty_strided,
}
