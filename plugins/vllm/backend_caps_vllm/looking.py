"""What the class of an out-of-tree backend states of CUDA graphs, and who states it."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from enum import Enum
from importlib import import_module

from backend_caps.capability.vocabulary import BatchKind
from backend_caps.engines.vllm.capabilities import LEVELS
from backend_caps_vllm.engine import ENGINE, Registered

_ROOT = "AttentionMetadataBuilder"
_ATTRIBUTE = "_cudagraph_support"
_METHOD = "get_cudagraph_support"


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What one backend states, in words that a log repeats."""

    registered: Registered
    words: str
    level: str | None = None
    """The level where there is one; None where it depends, or could not be read."""
    fault: str | None = None
    """What is wrong with it, and what to do; None where nothing is."""

    @property
    def replays(self) -> frozenset[BatchKind] | None:
        """The batches whose graphs can be replayed; None where that is open."""
        return None if self.level is None else LEVELS[self.level]

    def __str__(self) -> str:
        said = f"{self.registered.name} ({self.registered.path}): {self.words}."
        return f"{said} {self.fault}" if self.fault else said


def look(registered: Registered, *, imports: bool) -> Seen:
    """Look at a backend's class.

    Args:
        registered: where it is.
        imports: whether its module is imported; else one that is not there yet is left alone.
    """
    try:
        found = _class_at(registered.path, imports=imports)
        if found is None:
            return Seen(
                registered=registered,
                words="its module is not imported yet, and was not looked at",
            )
        return _stated(registered, _builder_of(found))
    except Exception as error:  # noqa: BLE001 - whatever a third party's code raises is told
        told = f"{type(error).__name__}: {error}"
        fault = f"Its class and its builder could not be read ({told}). Repair it, or uninstall it."
        return Seen(registered=registered, words="nothing is known of its graphs", fault=fault)


def _class_at(path: str, *, imports: bool) -> type | None:
    module, _, name = path.rpartition(".")
    if module not in sys.modules and not imports:
        return None
    found: object = vars(import_module(module))[name]
    if not isinstance(found, type):
        raise TypeError(f"{path} is of type {type(found).__name__}, not a class")
    return found


def _builder_of(backend: type) -> type:
    builder: object = backend.get_builder_cls()  # type: ignore[attr-defined] # vLLM's contract
    if not isinstance(builder, type):
        raise TypeError(f"get_builder_cls() returned an object of type {type(builder).__name__}")
    return builder


def _stated(registered: Registered, builder: type) -> Seen:
    """Say what a builder states: by its method where there is one, else by its attribute."""
    method, attribute = _stater(builder, _METHOD), _stater(builder, _ATTRIBUTE)
    if method is not None and not _is_root(method):
        words = f"{builder.__name__} decides by its configuration, in {method.__name__}.{_METHOD}()"
        return Seen(registered=registered, words=words, fault=_of_another(builder, method, _METHOD))
    if attribute is None or _is_root(attribute):
        words = f"{builder.__name__} states nothing of graphs, so vLLM captures none of it"
        return Seen(registered=registered, words=words, level="NEVER")
    return _of_attribute(registered, builder, attribute)


def _of_attribute(registered: Registered, builder: type, stater: type) -> Seen:
    value: object = vars(stater)[_ATTRIBUTE]
    level = _name_of(value)
    words = f"{stater.__name__} states {_ATTRIBUTE} = {level or repr(value)}"
    if level is None:
        fault = f"That is no level of vLLM's; expected one of {', '.join(LEVELS)}. State one."
        return Seen(registered=registered, words=words, fault=fault)
    inherited = _of_another(builder, stater, _ATTRIBUTE) if LEVELS[level] else None
    return Seen(registered=registered, words=words, level=level, fault=inherited)


def _name_of(value: object) -> str | None:
    """Read a level by its name, of whatever enum it is."""
    return value.name if isinstance(value, Enum) and value.name in LEVELS else None


def _stater(builder: type, name: str) -> type | None:
    return next((own for own in builder.__mro__ if name in vars(own)), None)


def _is_root(kind: type) -> bool:
    return kind.__name__ == _ROOT and _package(kind) == ENGINE


def _package(kind: type) -> str:
    return kind.__module__.partition(".")[0]


def _of_another(builder: type, stater: type, name: str) -> str | None:
    """Tell of an optimistic claim that its author may not know of."""
    if _package(builder) == _package(stater):
        return None
    return (
        f"{builder.__name__} inherits {name} of {stater.__module__}.{stater.__name__}, whose "
        f"author did not know it. State {name} in {builder.__name__}, if that is true of it."
    )
