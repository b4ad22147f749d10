"""The names that SGLang registers attention backends under, and the classes behind them."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum

from backend_caps.engines import problems
from backend_caps.engines.sglang.conditions import can_hold
from backend_caps.engines.source.attributes import branches
from backend_caps.engines.source.classes import Classes
from backend_caps.engines.source.guards import Guards, guarded
from backend_caps.engines.source.index import FunctionDef, Index
from backend_caps.engines.source.module import ClassDef, Function, Module
from backend_caps.engines.source.returns import Makers

_REGISTER = "register_attention_backend"
_TABLE = "ATTENTION_BACKENDS"
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
Made = tuple[Guards, ClassDef]


@dataclass(slots=True)
class Name:
    """A name that flags may use."""

    name: str
    made: dict[Place, list[Made]] = field(default_factory=dict)
    """By place, the classes that it may mean; a place that is not there is refused."""


class Names:
    """Reads registrations, and follows them to classes."""

    def __init__(self, index: Index, classes: Classes) -> None:
        self._index = index
        self._registered = dict(self._registrations())
        self._makers = Makers(index, classes, tables={_TABLE: self._registered})

    def read(self) -> Mapping[str, Name]:
        """List every name with the classes behind it."""
        names: dict[str, Name] = {}
        for name, function in self._registered.items():
            made = _possible(self._makers.made(function))
            if not made:
                self._index.tell(problems.name_not_made("sglang", name, function.at))
            names[name] = Name(name, {Place.TARGET: made})
        for name, place, made in self._drafts():
            own = names.setdefault(name, Name(name))
            # Where the factory makes none, the draft's runner keeps its own.
            own.made[place] = _possible(made) or own.made.get(Place.TARGET, [])
        return dict(sorted(names.items()))

    def _registrations(self) -> Iterator[tuple[str, FunctionDef]]:
        for path in self._index.containing(_REGISTER.encode()):
            module = self._index.parse(path)
            for statement in guarded(module.tree.body) if module else ():
                if module is not None and isinstance(statement.node, Function):
                    for name in _registered_names(statement.node):
                        yield name, FunctionDef(module, statement.node)

    def _drafts(self) -> Iterator[tuple[str, Place, list[Made]]]:
        module = self._index.module(_DRAFTS)
        factory = next((c for c in module.classes if c.name == _FACTORY), None) if module else None
        if module is None or factory is None:
            version = self._index.tree.version or "of unknown version"
            path = _DRAFTS.replace(".", "/") + ".py"
            self._index.tell(problems.anchor_missing("sglang", version, _FACTORY, path))
            return
        for method in factory.node.body:
            if isinstance(method, Function) and method.name in _MAPS:
                for name, value in _entries(method):
                    made = self._of_entry(value, module, factory)
                    yield name, _MAPS[method.name], made

    def _of_entry(self, value: ast.expr, module: Module, factory: ClassDef) -> list[Made]:
        """Follow one entry of a map: a method, or a choice of methods."""
        found: list[Made] = []
        for case in branches(value, ()):
            match case.value:
                case ast.Attribute(value=ast.Name(id="self"), attr=name):
                    method = next(
                        (
                            m
                            for m in factory.node.body
                            if isinstance(m, Function) and m.name == name
                        ),
                        None,
                    )
                    if method is not None:
                        made = self._makers.made(FunctionDef(module, method), factory)
                        found += [((*case.guards, *guards), each) for guards, each in made]
        return found


def _possible(made: list[Made]) -> list[Made]:
    """Leave out what contradicting conditions guard."""
    return [(guards, each) for guards, each in made if can_hold(guards)]


def _registered_names(function: Function) -> Iterator[str]:
    for decorator in function.decorator_list:
        match decorator:
            case ast.Call(
                func=ast.Name(id=called) | ast.Attribute(attr=called),
                args=[ast.Constant(value=str(name))],
            ) if called == _REGISTER:
                yield name


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
                for guard in statement.guards:
                    match guard:
                        case ast.Compare(left=ast.Attribute(attr=profile), ops=[ast.IsNot()]):
                            if profile.endswith("_profile"):
                                yield profile.removesuffix("_profile"), made
