"""The names that SGLang registers attention backends under, and the classes behind them."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from backend_caps.engines import problems
from backend_caps.engines.sglang.anchors import path_of, tell_missing
from backend_caps.engines.sglang.conditions import can_hold
from backend_caps.engines.sglang.lost import Lost, is_none
from backend_caps.engines.sglang.registrations import (
    Registration,
    is_usable,
    read_registrations,
)
from backend_caps.engines.source.attributes import branches
from backend_caps.engines.source.classes import Classes
from backend_caps.engines.source.guards import Guards, condition, guarded
from backend_caps.engines.source.index import FunctionDef, Index
from backend_caps.engines.source.module import ClassDef, Function, methods_of
from backend_caps.engines.source.returns import Makers, returns

_TABLE = "ATTENTION_BACKENDS"
_REGISTRY = "sglang.srt.layers.attention.attention_registry"
_DRAFTS = "sglang.srt.speculative.draft_utils"
_FACTORY = "DraftBackendFactory"


class Place(Enum):
    """What a registered name makes a class for."""

    TARGET = "target"
    """The model's own runner, the target's or the draft's."""
    DRAFT_DECODE = "draft_decode"
    """The draft's steps."""
    DRAFT_EXTEND = "draft_extend"
    """Draft-extend."""


_MAPS = {
    "create_decode_backend": Place.DRAFT_DECODE,
    "create_draft_extend_backend": Place.DRAFT_EXTEND,
}
Made = tuple[Guards, ClassDef | None]
"""A class, and when it is made; None where something is made whose class was not found."""


@dataclass(slots=True)
class Name:
    """A name that flags may use."""

    name: str
    made: dict[Place, list[Made]] = field(default_factory=dict)
    """By place, the classes that it may mean; a place that is not there is refused."""
    lost: FunctionDef | None = None
    """The function that makes something whose class was not found, where one does."""


class Names:
    """Reads registrations, and follows them to classes."""

    def __init__(self, index: Index, classes: Classes) -> None:
        self._index = index
        self._registered = read_registrations(index)
        tables = {_TABLE: dict(_looked_up(self._registered))}
        self._makers = Makers(index, classes, tables=tables)
        self._lost = Lost(index, self._makers, tables)

    def read(self) -> Mapping[str, Name]:
        """List every name with the classes behind it."""
        names: dict[str, Name] = {}
        if not self._registered:
            tell_missing(self._index, "use of register_attention_backend()", path_of(_REGISTRY))
        for name, registrations in self._registered.items():
            names[name] = own = Name(name)
            made = [each for one in registrations for each in self._registration(own, one)]
            own.made[Place.TARGET] = _possible(made)
        self._read_drafts(names)
        return dict(sorted(names.items()))

    def _registration(self, name: Name, one: Registration) -> list[Made]:
        if one.is_replaced:
            return [self._not_found(name, one.function, one.guards)]
        return [
            ((*one.guards, *guards), made) for guards, made in self._followed(name, one.function)
        ]

    def _read_drafts(self, names: dict[str, Name]) -> None:
        module = self._index.module(_DRAFTS)
        factory = next((c for c in module.classes if c.name == _FACTORY), None) if module else None
        if factory is None:
            tell_missing(self._index, f"class {_FACTORY}", path_of(_DRAFTS))
            return
        methods = methods_of(factory)
        for method_name in _MAPS:
            if method_name not in methods:
                tell_missing(self._index, f"{_FACTORY}.{method_name}()", path_of(_DRAFTS))
        for method in methods.values():
            if method.name in _MAPS:
                for name, value in _entries(method):
                    if is_usable(self._index, name, factory.module.at(value)):
                        own = names.setdefault(name, Name(name))
                        made = self._of_entry(own, value, factory, method)
                        own.made.setdefault(_MAPS[method.name], []).extend(made)

    def _of_entry(
        self, name: Name, value: ast.expr, factory: ClassDef, around: Function
    ) -> Iterator[Made]:
        """Follow one entry of a map: a method, or a choice of methods."""
        methods = methods_of(factory)
        for case in branches(value, ()):
            match case.value:
                case ast.Attribute(value=ast.Name(id="self"), attr=attribute) if (
                    attribute in methods
                ):
                    function = FunctionDef(factory.module, methods[attribute])
                    found = self._followed(name, function, factory)
                    found = [((*case.guards, *guards), made) for guards, made in found]
                case _:
                    found = [self._not_found(name, FunctionDef(factory.module, around), ())]
            yield from _possible(found)

    def _followed(
        self, name: Name, function: FunctionDef, factory: ClassDef | None = None
    ) -> list[Made]:
        """List what a function makes; where the draft's factory makes none, its runner's own."""
        found: list[Made] = list(self._makers.made(function, factory))
        lost = self._lost.guards(function, factory)
        found.extend(self._not_found(name, function, guards) for guards in lost)
        makes_none = [case.guards for case in returns(function.node) if is_none(case.value)]
        if not found and not makes_none:
            makes_none = [()]
        for guards in makes_none:
            if factory is None:
                found.append(self._not_found(name, function, guards))
            else:
                own = name.made.get(Place.TARGET, [])
                found += [((*guards, *more), made) for more, made in own]
        return _possible(found)

    def _not_found(self, name: Name, function: FunctionDef, guards: Guards) -> Made:
        told = problems.name_not_made("sglang", name.name, function.at, condition(guards))
        self._index.tell(told)
        name.lost = name.lost or function
        return guards, None


def _possible(made: list[Made]) -> list[Made]:
    """Leave out what contradicting conditions guard."""
    return [(guards, each) for guards, each in made if can_hold(guards)]


def _looked_up(
    registered: Mapping[str, Sequence[Registration]],
) -> Iterator[tuple[str, FunctionDef]]:
    """List what code that looks a name up certainly finds."""
    for name, own in registered.items():
        match own:
            case [Registration(function=function, is_replaced=False)]:
                yield name, function


def _entries(method: Function) -> Iterator[tuple[str, ast.expr]]:
    """List the names of a factory's method with the methods that they are made by.

    A branch of its own, on `self.<name>_profile is not None`, belongs to that name.
    """
    for statement in guarded(method.body):
        match statement.node:
            case ast.Assign(value=ast.Dict(keys=keys, values=values)):
                for key, value in zip(keys, values, strict=True):
                    if isinstance(key, ast.Constant) and isinstance(key.value, str):
                        yield key.value, value
            case ast.Return(value=ast.Call(func=ast.Attribute() as made)):
                yield from ((name, made) for name in map(_profiled, statement.guards) if name)


def _profiled(guard: ast.expr) -> str | None:
    match guard:
        case ast.Compare(left=ast.Attribute(attr=profile), ops=[ast.IsNot()]):
            return profile.removesuffix("_profile") if profile.endswith("_profile") else None
    return None
