"""How an engine's own backends run under the kit: by an adapter in that engine's plugin."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec

from backend_caps.discovery.registry import Registry
from backend_caps.kit.check import Check
from backend_caps.kit.errors import UncheckableError
from backend_caps.kit.subject import Subject


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineAdapter:
    """What the plugin `backend_caps_<engine>` exports as `kit.ADAPTER`."""

    checks: Sequence[Check]
    """The kit's checks, and those that only the engine's backends have."""
    subject: Callable[[Registry, str], Subject]
    """Builds the subject of a class, by its name, from what was read of the engine's source."""


def engine_adapter(engine: str) -> EngineAdapter:
    """Import the adapter of an engine.

    Raises:
        UncheckableError: the engine's plugin is not installed.
    """
    package = f"backend_caps_{engine}"
    if find_spec(package) is None:
        raise UncheckableError(
            backend=engine,
            problem=f"the adapter of {engine} is in backend-caps-{engine}, which is not installed; "
            f"pip install backend-caps-{engine}",
        )
    adapter = vars(import_module(f"{package}.kit"))["ADAPTER"]
    assert isinstance(adapter, EngineAdapter), "a plugin of this project exports one"
    return adapter
