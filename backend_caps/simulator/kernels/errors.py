"""Errors of kernels."""

from __future__ import annotations

from typing import NoReturn

from backend_caps.simulator.errors import SimulatorError, Site, call_site


class KernelTextError(Exception):
    """A kernel's IR has what is not known here.

    Args:
        what: what it has.
    """


class KernelFaultError(RuntimeError):
    """A kernel did what a device would answer by a fault, or not at all.

    Args:
        site: the kernel's line.
        text: what it did.
    """

    def __init__(self, site: Site, text: str) -> None:
        super().__init__(f"{site}: {text}")
        self.site = site
        """The kernel's line."""


def refuse_kernel(name: str, reason: str) -> NoReturn:
    """Raise for a kernel that cannot run.

    Raises:
        SimulatorError: always.
    """
    launched = f"kernel {name!r}, launched at {call_site()}"
    text = f"{launched}, cannot run on the simulated device: {reason}."
    raise SimulatorError("unsupported-kernel", text)
