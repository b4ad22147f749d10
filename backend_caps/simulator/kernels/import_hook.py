"""Makes Triton know the simulated device, once it is imported.

Most programs that run on the device have no kernel of Triton, and its import takes a quarter of a
second.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

import torch

_TRITON = "triton"


class _LoaderWithDevice(Loader):
    """Loads Triton, and installs the device's driver in it.

    Args:
        loader: Triton's own.
    """

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Make the module as its own loader does."""
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """Run the module by its own loader, which it keeps, and install the driver."""
        assert module.__spec__ is not None, "it is being imported"
        module.__loader__ = module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        _install()


class _Finder(MetaPathFinder):
    """Finds Triton."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find Triton where the path has it, and leave all else to other finders."""
        if fullname != _TRITON:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _LoaderWithDevice(spec.loader)
        return spec


def install() -> None:
    """Make Triton know the device: now, or when it is imported."""
    if _TRITON in sys.modules:
        _install()
    else:
        sys.meta_path.insert(0, _Finder())


def _install() -> None:
    from backend_caps.simulator.kernels import driver  # noqa: PLC0415 - it imports Triton

    driver.install()


def launched_on_device() -> AbstractContextManager[None]:
    """Launch kernels on the device within a `with` block, also where there is a GPU."""
    if not torch.cuda.is_available():
        return nullcontext()  # its driver is the only active one
    from backend_caps.simulator.kernels import driver  # noqa: PLC0415 - it imports Triton

    return driver.launched_by(driver.SimDriver())
