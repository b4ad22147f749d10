"""The names that SGLang registers attention backends under, and the classes behind them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

from backend_caps.engines.reading import not_followed
from backend_caps.engines.sglang.conditions import can_hold
from backend_caps.engines.source.classes import Classes, Factories, Made, is_none
from backend_caps.engines.source.guards import (
    Function,
    Guarded,
    Guards,
    as_expression,
    branches,
    condition,
    grouped,
    guarded,
    returns,
    under,
)
from backend_caps.engines.source.index import FunctionDef, Index
from backend_caps.engines.source.module import ClassDef

_REGISTER = "register_attention_backend"
_TABLE = "ATTENTION_BACKENDS"
_PROFILE = re.compile(r"[\w.]+\.(\w+)_profile is not None")
_REGISTRY = "sglang.srt.layers.attention.attention_registry"
_DRAFTS = "sglang.srt.speculative.draft_utils"
_FACTORY = "DraftBackendFactory"


class Runner(Enum):
    """The model runner that a registered name makes a class for."""

    TARGET = "target"
    """The model's own, the target's or the draft's."""
    DRAFT_DECODE = "draft_decode"
    """The draft's steps."""
    DRAFT_EXTEND = "draft_extend"
    """Draft-extend."""


_MAPS = {
    "create_decode_backend": Runner.DRAFT_DECODE,
    "create_draft_extend_backend": Runner.DRAFT_EXTEND,
}


@dataclass(slots=True)
class Name:
    """A name that flags may use."""

    name: str
    made: dict[Runner, list[Made]] = field(default_factory=dict)
    """By runner, the classes that it may mean; a runner without an entry refuses the name."""
    lost: FunctionDef | None = None
    """The function that makes an instance whose class was not found, if there is one."""


@dataclass(slots=True)
class _Registration:
    """A function that is registered to make the backend of one name."""

    function: FunctionDef
    guards: Guards
    """The conditions under which it is registered."""
    is_replaced: bool
    """Whether another decorator replaces the function before it is registered."""


def is_usable(index: Index, name: str, at: str) -> bool:
    """Return whether a name can be printed and typed; one that cannot is a problem."""
    is_plain = name.isprintable() and name == name.strip() != ""
    if not is_plain:
        index.note("engine-name-unusable", engine="sglang", name=name, at=at)
    return is_plain


class Names:
    """Reads registrations, and follows them to classes."""

    def __init__(self, classes: Classes) -> None:
        self._index = classes.index
        self._registered = _registrations(classes.index)
        certain = {
            name: own[0].function
            for name, own in self._registered.items()
            if len(own) == 1 and not own[0].is_replaced
        }
        self._factories = Factories(classes, {_TABLE: certain})

    def read(self) -> Mapping[str, Name]:
        """List every name with the classes behind it."""
        names = {name: Name(name) for name in self._registered}
        if not names:
            self._index.note_missing(f"use of {_REGISTER}()", _REGISTRY)
        for name, own in names.items():
            made: list[Made] = []
            for one in self._registered[name]:
                if one.is_replaced:
                    made.append(self._not_found(own, one.function, one.guards))
                else:
                    made += under(one.guards, self._followed(own, one.function))
            own.made[Runner.TARGET] = _possible(made)
        self._read_drafts(names)
        return dict(sorted(names.items()))

    def _read_drafts(self, names: dict[str, Name]) -> None:
        factory = self._index.class_in(_DRAFTS, _FACTORY)
        if factory is None:
            return
        for method_name, runner in _MAPS.items():
            method = factory.methods.get(method_name)
            if method is None:
                self._index.note_missing(f"{_FACTORY}.{method_name}()", _DRAFTS)
                continue
            for name, value in _entries(method):
                if is_usable(self._index, name, factory.module.at(value)):
                    own = names.setdefault(name, Name(name))
                    around = FunctionDef(factory.module, method, factory)
                    made = self._of_entry(own, value, factory, around)
                    own.made.setdefault(runner, []).extend(made)

    def _of_entry(
        self, name: Name, value: ast.expr, factory: ClassDef, around: FunctionDef
    ) -> Iterator[Made]:
        """Follow one entry of a map: a method, or a choice of methods."""
        for case in branches(value, ()):
            match case.value:
                case ast.Attribute(value=ast.Name(id="self"), attr=method) if (
                    node := factory.methods.get(method)
                ):
                    found = self._followed(name, replace(around, node=node))
                    yield from _possible(under(case.guards, found))
                case _:
                    yield self._not_found(name, around, ())

    def _followed(self, name: Name, function: FunctionDef) -> list[Made]:
        """List the classes that a function makes; the target's where a draft factory makes none."""
        found = [
            made if made.value else self._not_found(name, function, made.guards)
            for made in self._factories.made(function)
        ]
        makes_none = [case.guards for case in returns(function.node) if is_none(case.value)]
        for guards in makes_none or ([] if found else [()]):
            if function.owner is None:
                found.append(self._not_found(name, function, guards))
            else:
                found += under(guards, name.made.get(Runner.TARGET, []))
        return _possible(found)

    def _not_found(self, name: Name, function: FunctionDef, guards: Guards) -> Made:
        self._index.add(not_followed("sglang", name.name, function.at, condition(guards)))
        name.lost = name.lost or function
        return Guarded(guards, None)


def _possible(made: Iterable[Made]) -> list[Made]:
    """Leave out classes whose conditions contradict each other."""
    return [each for each in made if can_hold(each.guards)]


def _entries(method: Function) -> Iterator[tuple[str, ast.expr]]:
    """List the names in a factory's method with the methods that make their backends.

    A branch on `self.<name>_profile is not None` belongs to that name.
    """
    for guards, node in guarded(method.body):
        match node:
            case ast.Assign(value=ast.Dict(keys=keys, values=values)):
                for key, value in zip(keys, values, strict=True):
                    if isinstance(key, ast.Constant) and isinstance(key.value, str):
                        yield key.value, value
            case ast.Return(value=ast.Call(func=ast.Attribute() as made)):
                for guard in guards:
                    if profile := _PROFILE.fullmatch(ast.unparse(guard)):
                        yield profile[1], made


def _registrations(index: Index) -> dict[str, list[_Registration]]:
    """List the registrations of each name; if several files have one, the last to run is open."""
    found = grouped(
        (name, one)
        for module in index.modules(index.containing(_REGISTER.encode()))
        for guards, node in module.body
        if isinstance(node, Function)
        for name, one in _registered(FunctionDef(module, node), guards)
        if is_usable(index, name, one.function.at)
    )
    for name, own in found.items():
        if len({each.function.module.path for each in own}) > 1:
            files = ", ".join(each.function.at for each in own)
            index.note("engine-name-registered-twice", engine="sglang", name=name, files=files)
            for one in own:
                one.guards += (as_expression(f"{one.function.at} is the one that counts"),)
    return found


def _registered(function: FunctionDef, guards: Guards) -> Iterator[tuple[str, _Registration]]:
    """List the names that decorators register; Python applies the lowest decorator first."""
    is_replaced = False
    for decorator in reversed(function.node.decorator_list):
        match decorator:
            case ast.Call(func=ast.Name(id=of) | ast.Attribute(attr=of)) if of == _REGISTER:
                match decorator.args:
                    case [ast.Constant(value=str(name))]:
                        yield name, _Registration(function, guards, is_replaced)
            case _:
                is_replaced = True
