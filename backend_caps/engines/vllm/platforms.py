"""The class that a plugin's platform takes for a layer, and under which conditions.

vLLM asks `Platform.get_attn_backend_cls` for each kind of layer. That method is followed down all
of its paths, once for each backend that may be named, with what the plugin registers in place.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from backend_caps.engines.source.index import FunctionDef, Index
from backend_caps.engines.source.library import library
from backend_caps.engines.source.paths import Attributes, Flag, Paths
from backend_caps.engines.source.values import (
    ClassValue,
    Descriptor,
    FunctionValue,
    Hook,
    Instance,
    Native,
    Options,
    Raised,
    Unknown,
    members,
)
from backend_caps.engines.surroundings import answering
from backend_caps.engines.vllm.read import REGISTRIES
from backend_caps.engines.vllm.registrations import REGISTER, SlotCall

CHOOSER = "get_attn_backend_cls"
_CALL = f"current_platform.{CHOOSER}"
_REGISTRY = REGISTRIES[0]
_ENUM = f"{_REGISTRY}.AttentionBackendEnum"
_CONFIG = "AttentionSelectorConfig"
_FLAGS = ("use_", "has_", "is_")
_FEW = 4
"""As many named backends are listed; more are the others."""
_NATIVES: Mapping[str, object] = {
    f"{module}.{name}": Hook(answering(Unknown(value)))
    for module, name, value in (
        ("vllm.logger", "init_logger", "logger"),
        ("vllm.config", "get_current_vllm_config", "vllm_config"),
        ("vllm.config.vllm", "get_current_vllm_config", "vllm_config"),
        ("vllm.config.vllm", "get_current_vllm_config_or_none", "vllm_config"),
    )
}
"""What a server has, and a reader has not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlatformOutcome:
    """What the method returns or raises, under a condition."""

    given: str
    """The condition, in the source's words; empty where it always holds."""
    path: str | None = None
    """The path of a class; None where there is none."""
    refusal: str | None = None
    """Why there is none."""
    at: str | None = None
    """`file:line` of what raises."""

    def of_any(self, name: str | None) -> PlatformOutcome:
        """Return the outcome without the name of the backend in what it raises."""
        if self.refusal is None or name is None:
            return self
        return replace(self, refusal=re.sub(rf"\b{re.escape(name)}\b", "NAME", self.refusal))


class PlatformReader:
    """Follows the platforms of one plugin."""

    def __init__(self, index: Index, calls: Iterable[SlotCall]) -> None:
        """Start with nothing imported.

        Args:
            index: the tree of vLLM with its plugins.
            calls: the plugin's.
        """
        self._index = index
        self._run = Paths(index, {**library({}), **_NATIVES})
        enum = self._run.found(_ENUM)
        found = members(enum) if isinstance(enum, ClassValue) else []
        self._named = {None: None, **{each.attributes["name"]: each for each in found}}
        self._slots = dict(_slots([call for call in calls if _ENUM.endswith(f".{call.enum}")]))

    def _register(self) -> None:
        """Put what the plugin registers into vLLM's registry."""
        for slot, value in self._slots.items():
            if (member := self._named.get(slot)) is not None:
                self._run.call(self._run.found(f"{_REGISTRY}.{REGISTER}"), member, value)

    def function(self, module: str, name: str) -> FunctionDef | None:
        """Find a function of a module, also one that the module's `__getattr__` returns."""
        return _definition(self._run.attribute_or(self._run.import_module(module), name, None))

    def followed(self, platform: str) -> tuple[str | None, list[PlatformOutcome]]:
        """Follow the method of a platform.

        Args:
            platform: the path of its class.

        Returns:
            The place of the method that chooses, as `file:line`, and what it returns or raises.

        Raises:
            NotFollowedError: it has too many paths.
            Raised: the class is not there once its module is imported.
        """
        cls = self._run.found(platform)
        function = _definition(cls.lookup(CHOOSER) if isinstance(cls, ClassValue) else None)
        place = None if function is None else function.at
        return place, self._outcomes(self._run.attribute(cls, CHOOSER))

    def _outcomes(self, method: Native) -> list[PlatformOutcome]:
        shape = self._shape()
        by_outcome: dict[tuple[PlatformOutcome, ...], list[str | None]] = {}
        for name, member in self._named.items():
            paths = self._run.of_call(lambda: self._choose(method, shape, member))  # noqa: B023 - called here
            found = tuple(each for path in paths for each in _outcomes_of(path.words, path.outcome))
            by_outcome.setdefault(tuple(each.of_any(name) for each in found), []).append(name)
        return [
            replace(each, given=" and ".join(filter(None, (self._words(names), each.given))))
            for outcomes, names in by_outcome.items()
            for each in outcomes
        ]

    def _words(self, names: Sequence[str | None]) -> str:
        """Say which backends may be named; empty for all."""
        if len(names) == len(self._named):
            return ""
        if len(names) > _FEW:
            return f"{'no backend or ' if None in names else ''}another one is named"
        listed = " or ".join("no backend" if name is None else name for name in names)
        return f"{listed} is named"

    def _choose(self, method: Native, shape: _Shape, member: Native) -> Native:
        """Call the method as vLLM's selector does, whatever has been imported by now."""
        self._register()
        args = [member, *(self._argument(each, shape) for each in shape.args[1:])]
        named = {name: self._argument(each, shape) for name, each in shape.named.items()}
        return self._run.call(method, *args, **named)

    def _argument(self, given: str, shape: _Shape) -> Native:
        if shape.config is not None and given == "attn_selector_config":
            return shape.config
        if given.startswith(_FLAGS):
            return self._run.decide(given)
        return {"True": True, "False": False, "None": None}.get(given, Unknown(given))

    def _shape(self) -> _Shape:
        """Read how vLLM calls the method, and make what it gives it."""
        paths = self._index.containing(_CALL.encode(), f"{self._index.tree.package}/")
        for module in self._index.modules(sorted(paths, key=lambda path: "selector" not in path)):
            for node in ast.walk(module.tree):
                if isinstance(node, ast.Call) and ast.unparse(node.func) == _CALL:
                    named = {k.arg: ast.unparse(k.value) for k in node.keywords if k.arg}
                    config = self._config(f"{module.name}.{_CONFIG}")
                    return _Shape([*map(ast.unparse, node.args)], named, config)
        self._index.note_missing(f"call of {_CALL}", "vllm.v1.attention.selector")
        return _Shape(["backend", "attn_selector_config"], {}, Unknown(_CONFIG))

    def _config(self, path: str) -> Instance | None:
        """Make what describes a layer: flags are decided, the rest is unknown."""
        cls = self._run.attribute_or(
            self._run.import_module(path.rpartition(".")[0]), _CONFIG, None
        )
        if not isinstance(cls, ClassValue):
            return None
        fields = cls.record_fields().items()
        kinds = {name: ast.unparse(stated) for name, (stated, _) in fields}
        values = {n: Flag(n) if kind == "bool" else Unknown(n) for n, kind in kinds.items()}
        return Instance(cls, Attributes(self._run, values))


def _slots(calls: Sequence[SlotCall]) -> Iterator[tuple[str, Native]]:
    """List what vLLM's registry may have in each slot: of several, any may be imported last."""
    for slot in dict.fromkeys(call.slot for call in calls):
        stored = {each.stored: None for each in calls if each.slot == slot and each.stored}
        if len(stored) > 1:
            yield slot, Options(" or ".join(map(str, stored)), tuple(stored))
        elif stored:
            yield slot, next(iter(stored))


def _definition(value: Native) -> FunctionDef | None:
    function = value.function if isinstance(value, Descriptor) else value
    if not isinstance(function, FunctionValue) or isinstance(function.node, ast.Lambda):
        return None
    return FunctionDef(function.frame.module.module, function.node)


@dataclass(frozen=True, slots=True)
class _Shape:
    """How vLLM calls the method: each argument as it is written."""

    args: Sequence[str]
    named: Mapping[str, str]
    config: Native
    """What stands for `attn_selector_config`; None for a vLLM without one."""


def _outcomes_of(given: str, outcome: Native) -> Iterator[PlatformOutcome]:
    match outcome:
        case Raised() as error:
            message = f"{error.error}: {error.message}".removesuffix(": ")
            at = None if error.at.startswith(":") else error.at
            yield PlatformOutcome(given=given, refusal=f"raises {message}", at=at)
        case Options(options=options):
            for option in options:
                yield from _outcomes_of(given, option)
        case str(name) if name:
            yield PlatformOutcome(given=given, path=name)
        case Unknown() as unknown:
            yield PlatformOutcome(given=given, refusal=f"depends on {unknown}")
        case _:
            yield PlatformOutcome(given=given, refusal="returns no class")
