"""Kernels on tensors of the host, run at once.

An operator of `torch.library` that is made of kernels gets tensors of the host where the simulated
device runs it, and on a CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

import torch
from torch import Tensor

from backend_caps.simulator.allocation import Segment
from backend_caps.simulator.kernels.driver import (
    SimDriver,
    SimLauncher,
    install,
    launched_by,
    run_on_segments,
)
from backend_caps.simulator.kernels.frames import Grid
from backend_caps.simulator.kernels.programs import Kernel


class Launchable(Protocol):
    """What `triton.jit` makes of a function."""

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., object]:
        """Choose how many programs run."""


class HostLauncher(SimLauncher):
    """Runs a kernel where it is launched."""

    def launch(self, kernel: Kernel, given: Sequence[object], grid: Grid) -> None:
        """Run a kernel on tensors of the host."""
        segments: dict[int, Segment] = {}
        values: list[object] = []
        for number, value in zip(kernel.function.arguments, given, strict=True):
            if isinstance(value, Tensor):
                storage = value.untyped_storage()
                memory = torch.empty(0, dtype=torch.uint8).set_(storage)
                segments[number] = Segment(memory, storage.nbytes(), None)
                values.append(value.data_ptr())
            else:
                values.append(value)
        run_on_segments(kernel, values, grid, segments)


class HostDriver(SimDriver):
    """The host, as Triton sees devices."""

    launcher_cls = HostLauncher

    def get_current_device(self) -> str:
        """Return what kernels are kept by."""
        return "host"

    def get_current_stream(self, device: object = None) -> int:
        """Return 0: nothing is queued."""
        del device
        return 0


class HostKernel:
    """A kernel that runs on tensors of the host: `HostKernel(kernel)[grid](...)`.

    Args:
        kernel: what `triton.jit` made; its arguments have no addresses that it reads from memory.
    """

    def __init__(self, kernel: Launchable) -> None:
        self._kernel = kernel

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., object]:
        """Choose how many programs run."""
        return partial(self._run, grid)

    def _run(self, grid: tuple[int, ...], *args: object, **constants: object) -> object:
        install()
        with launched_by(HostDriver()):
            return self._kernel[grid](*args, **constants)
