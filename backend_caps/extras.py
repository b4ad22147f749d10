"""The extras of this distribution: modules that some parts import beyond its dependencies.

`pip install backend-caps` is enough to declare, discover, resolve, read engines and report. A
folder or command that needs more calls `require_extra` before it imports that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec

from backend_caps.errors import BackendCapsError

EXTRAS: Mapping[str, tuple[str, ...]] = {
    "fits": ("unearth",),
    "html": ("jinja2",),
    "kit": ("torch", "numpy", "safetensors", "coverage", "jinja2"),
    "metrics": ("prometheus_client",),
    "relay": ("torch", "numpy"),
}
"""The modules that each extra of `pyproject.toml` brings."""


@dataclass(eq=False, kw_only=True)
class MissingExtraError(BackendCapsError, ImportError):
    """A module that an extra of backend-caps brings is not installed."""

    part: str
    """The part that needs it, such as `backend_caps.relay`."""
    extra: str
    modules: tuple[str, ...]
    """The modules that are missing."""

    @property
    def message(self) -> str:
        """What is missing, for what, and what to install."""
        return (
            f"{self.part} needs what is not installed here ({', '.join(self.modules)}): "
            f"pip install 'backend-caps[{self.extra}]'"
        )


def require_extra(extra: str, part: str) -> None:
    """Raise unless the modules of an extra are installed; none is imported.

    Args:
        extra: one of `EXTRAS`.
        part: the part that needs them, for the error.

    Raises:
        MissingExtraError: one of them is not installed.
    """
    missing = tuple(module for module in EXTRAS[extra] if find_spec(module) is None)
    if missing:
        raise MissingExtraError(part=part, extra=extra, modules=missing)
