"""What out-of-tree backends state of CUDA graphs, who states it, and what is wrong with that."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum
from importlib import import_module

from backend_caps import Settings
from backend_caps.capability.backend import Backend, adapters_for
from backend_caps.capability.vocabulary import BatchKind
from backend_caps.resolution.launch import LEVELS
from backend_caps_vllm.engine import ENGINE, Registered, registered

_FIELD = "graph_replay"
_ROOT = "AttentionMetadataBuilder"
_ATTRIBUTES = ("_cudagraph_support", "cudagraph_support")
"""The attribute of the level; 0.11 has the second."""
_METHOD = "get_cudagraph_support"


def statements_of(*, imports: bool) -> Iterator[GraphStatement]:
    """Look at every out-of-tree backend, and compare it with what it declares to backend-caps.

    Args:
        imports: whether modules that are not there yet are imported.

    Raises:
        UnsupportedVLLMError: vLLM's registry is not as expected.
        BackendCapsError: a setting of backend-caps is refused.
    """
    found = registered()
    declared = adapters_for(ENGINE, Settings.load().discover().values()) if found else {}
    for own in found:
        yield compared(look(own, imports=imports), declared.get(own.path))


def compared(seen: GraphStatement, backend: Backend | None) -> GraphStatement:
    """Hold what a class states to what its backend declares; what depends is not compared."""
    declaration = None if backend is None else backend.declaration
    if backend is None or declaration is None:
        return seen
    declared = declaration.capabilities.stated().get(_FIELD)
    depends = any(_FIELD in when.capabilities.stated() for when in declaration.conditions)
    if not isinstance(declared, frozenset) or depends or seen.replays in {None, declared}:
        return seen
    assert seen.replays is not None, "None was left out above"
    fault = (
        f"Its class replays {_shown(seen.replays)}, and backend {backend.name!r} of "
        f"{backend.source.distribution} {backend.source.version} declares "
        f"{_FIELD}={_shown(declared)}. Correct one of the two."
    )
    return replace(seen, fault=" ".join(filter(None, (seen.fault, fault))))


def _shown(kinds: frozenset[BatchKind]) -> str:
    return f"{{{', '.join(sorted(kind.value for kind in kinds))}}}"


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphStatement:
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


class _ContractError(Exception):
    """A class or its registration is not what vLLM expects; the text says what to correct."""


def look(registered: Registered, *, imports: bool) -> GraphStatement:
    """Look at a backend's class.

    What it raises is no fault of it: it may need hardware, or a server around it.

    Args:
        registered: where it is.
        imports: whether its module is imported; else one that is not there yet is left alone.
    """
    words, fault = "its module is not imported yet, and was not looked at", None
    try:
        if registered.is_label:
            words = "a label, which names no class: the platform chooses the class by itself"
        elif (found := _class_at(registered.path, imports=imports)) is not None:
            return stated(registered, _builder_of(found))
    except _ContractError as error:
        words, fault = "nothing is known of its graphs", str(error)
    except NotImplementedError:
        words = "it has no metadata builder, so vLLM asks it for no graph"
    except Exception as error:  # noqa: BLE001 - whatever a third party's code raises is reported
        words = f"it cannot be asked here, where it raises {type(error).__name__}: {error}"
    return GraphStatement(registered=registered, words=words, fault=fault)


def _class_at(path: str, *, imports: bool) -> type | None:
    module, _, name = path.rpartition(".")
    if module not in sys.modules and not imports:
        return None
    correct = f"Correct the path that {path!r} is registered with."
    try:
        names = vars(import_module(module))
    except ModuleNotFoundError as error:
        # A module that it imports may be missing because of the machine.
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise
        raise _ContractError(f"There is no module {error.name!r}. {correct}") from error
    if not isinstance(found := names.get(name), type):
        kind = type(found).__name__
        raise _ContractError(f"{name!r} of {module} is of type {kind}, not a class. {correct}")
    return found


def _builder_of(backend: type) -> type:
    builder: object = backend.get_builder_cls()  # type: ignore[attr-defined] # vLLM's contract
    if not isinstance(builder, type):
        kind = type(builder).__name__
        raise _ContractError(
            f"get_builder_cls() returned an object of type {kind}. Return the builder's class."
        )
    return builder


def stated(registered: Registered, builder: type) -> GraphStatement:
    """Say what a builder states: by its method where there is one, else by its attribute."""
    names = (name for name in _ATTRIBUTES if _stater(builder, name) is not None)
    name = next(names, _ATTRIBUTES[0])
    method, attribute = _stater(builder, _METHOD), _stater(builder, name)
    if method is not None and not _is_root(method):
        words = f"{builder.__name__} decides by its configuration, in {method.__name__}.{_METHOD}()"
        return GraphStatement(
            registered=registered, words=words, fault=_of_another(builder, method, _METHOD)
        )
    if attribute is None or _is_root(attribute):
        words = f"{builder.__name__} states nothing of graphs, so vLLM captures none of it"
        return GraphStatement(registered=registered, words=words, level="NEVER")
    return _of_attribute(registered, builder, attribute, name)


def _of_attribute(registered: Registered, builder: type, stater: type, name: str) -> GraphStatement:
    value: object = vars(stater)[name]
    level = _name_of(value)
    words = f"{stater.__name__} states {name} = {level or repr(value)}"
    if level is None:
        fault = f"That is no level of vLLM's; expected one of {', '.join(LEVELS)}. State one."
        return GraphStatement(registered=registered, words=words, fault=fault)
    inherited = _of_another(builder, stater, name) if LEVELS[level] else None
    return GraphStatement(registered=registered, words=words, level=level, fault=inherited)


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
    """Describe an optimistic claim that its author may not know of."""
    if _package(builder) == _package(stater):
        return None
    return (
        f"{builder.__name__} inherits {name} of {stater.__module__}.{stater.__name__}, whose "
        f"author did not know it. State {name} in {builder.__name__}, if that is true of it."
    )
