"""The registry of the installed vLLM, as far as it is read here; it is never written to.

The range is the 0.33 line: its registry and the levels of its graphs were read there, and both
are vLLM's own affair, which any release may change.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, entry_points, version
from types import ModuleType
from typing import Literal

from packaging.specifiers import SpecifierSet

from backend_caps import BackendCapsError

SUPPORTED = ">=0.33,<0.34"
"""The versions that this plugin was written against."""
GROUP, NAME = "vllm.general_plugins", "backend_caps"
"""The entry point by which vLLM calls this plugin."""
REGISTRY = "vllm.v1.attention.backends.registry"
ENGINE: Literal["vllm"] = "vllm"
_OVERRIDES = ("_ATTN_OVERRIDES", "_MAMBA_ATTN_OVERRIDES")


@dataclass(eq=False, kw_only=True)
class UnsupportedVLLMError(BackendCapsError):
    """The installed vLLM is not one that this plugin was written for."""

    found: str
    supported: str

    @property
    def message(self) -> str:
        """What was found, what is supported, and what to do."""
        return (
            f"backend-caps-vllm checks nothing here: {self.found}; supported is vLLM "
            f"{self.supported}. Install such a vLLM, or a backend-caps-vllm for yours."
        )


@dataclass(frozen=True, slots=True)
class Registered:
    """A backend that somebody put in by `register_backend`."""

    name: str
    """Of vLLM's enum."""
    path: str
    """`package.module.Class`, or a label such as `ASCEND`."""

    @property
    def is_label(self) -> bool:
        """Whether it names no class: a platform plugin then returns the class itself."""
        return "." not in self.path


def check_version() -> str:
    """Return vLLM's version.

    Raises:
        UnsupportedVLLMError: it is none of those that are supported, or not installed.
    """
    try:
        found = version(ENGINE)
    except PackageNotFoundError:
        raise _unsupported("no distribution named vllm is installed") from None
    if found not in SpecifierSet(SUPPORTED, prereleases=True):
        raise _unsupported(f"vLLM {found} is installed")
    return found


def registered() -> list[Registered]:
    """List the out-of-tree backends, by name; where nobody imported the registry, there are none.

    Raises:
        UnsupportedVLLMError: the registry is not as expected.
    """
    registry = sys.modules.get(REGISTRY)
    found = [] if registry is None else _read(registry)
    return sorted(found, key=lambda own: own.name)


def _read(registry: ModuleType) -> Iterator[Registered]:
    for place in _OVERRIDES:
        overrides: object = vars(registry).get(place)
        if not isinstance(overrides, dict):
            kind = type(overrides).__name__
            raise _unsupported(f"{REGISTRY}.{place} is of type {kind}, not dict")
        for member, path in overrides.items():
            if str(path).partition(".")[0] != ENGINE:
                yield Registered(str(member.name), str(path))


def later_plugins(allowed: list[str] | None) -> list[str]:
    """Name the plugins that vLLM calls behind this one; what those register is not there yet.

    vLLM's own are left out: what they register is no backend.

    Args:
        allowed: those of `VLLM_PLUGINS`; None: all.
    """
    # Of two with one name vLLM calls the last, in the place of the first.
    found = {each.name: each.value for each in entry_points(group=GROUP)}
    called = [name for name in found if allowed is None or name in allowed]
    behind = called[called.index(NAME) + 1 :] if NAME in called else []
    return [name for name in behind if found[name].partition(".")[0] != ENGINE]


def _unsupported(found: str) -> UnsupportedVLLMError:
    return UnsupportedVLLMError(found=found, supported=SUPPORTED)
