"""What is public: the modules whose names stay, and those names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module

from backend_caps.errors import BackendCapsError

MODULES: Mapping[str, str] = {
    "backend_caps": "backend_caps",
    "backend_caps.protocols": "protocols",
    "backend_caps.relay": "relay",
    "backend_caps.runtime": "runtime",
    "backend_caps.kit": "kit",
    "backend_caps.kit.scenes": "scenes",
    "backend_caps.simulator": "simulator",
}
"""Public modules, each with its page below `docs/reference/api`."""

_LOADING_TORCH = ("Configuration", "GraphSizes", "configure")
"""Public names of `backend_caps` that `__all__` leaves out."""


def public_names(module: str) -> Sequence[str]:
    """List the public names of a module."""
    listed: Sequence[str] = import_module(module).__all__
    return [*listed, *(_LOADING_TORCH if module == "backend_caps" else ())]


def is_error(module: str, name: str) -> bool:
    """Tell whether the page of errors has a name."""
    own = getattr(import_module(module), name)
    return isinstance(own, type) and issubclass(own, BackendCapsError) and own != BackendCapsError
