"""Whether the arguments of a call fit the parameters of a function."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from backend_caps.engines.source.classes import Classes
from backend_caps.engines.source.guards import Function, returns
from backend_caps.engines.source.index import External
from backend_caps.engines.source.module import ClassDef

_FIELDS = frozenset({"field", "Field"})
_NO_FIELDS = ("ClassVar", "InitVar", "KW_ONLY")


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of a function."""

    name: str
    is_required: bool
    by_place: bool = True
    by_name: bool = True


@dataclass(frozen=True)
class Signature:
    """The parameters of a function, without the one that a bound method fills."""

    parameters: tuple[Parameter, ...]
    takes_more: bool = False
    """Whether it has `*args`."""
    takes_named: bool = False
    """Whether it has `**kwargs`."""

    @cached_property
    def by_place(self) -> list[Parameter]:
        """Those that may be given by place, in order."""
        return [each for each in self.parameters if each.by_place]

    def __str__(self) -> str:
        words = [each.name if each.is_required else f"{each.name}=…" for each in self.parameters]
        words += ["*"] * self.takes_more + ["**"] * self.takes_named
        return f"({', '.join(words)})"

    @classmethod
    def of(cls, function: Function | ast.Lambda, *, is_bound: bool) -> Signature:
        """Read the parameters of a function, without the first of a method that is bound."""
        own = function.args
        places = [*own.posonlyargs, *own.args]
        first = len(places) - len(own.defaults)
        found = [
            Parameter(each.arg, at < first, by_name=at >= len(own.posonlyargs))
            for at, each in enumerate(places)
        ]
        found = found[1:] if is_bound else found
        found += [
            Parameter(each.arg, default is None, by_place=False)
            for each, default in zip(own.kwonlyargs, own.kw_defaults, strict=True)
        ]
        return cls(tuple(found), own.vararg is not None, own.kwarg is not None)


@dataclass(frozen=True, slots=True)
class Arguments:
    """What a call gives."""

    places: tuple[str, ...]
    """What is given by place, in the source's words."""
    names: frozenset[str]
    has_stars: bool = False
    """Whether it unpacks a sequence, of a length that is not known."""
    has_named_stars: bool = False
    """Whether it unpacks a mapping."""

    def __str__(self) -> str:
        words = [*self.places] + ["*…"] * self.has_stars
        words += [f"{name}=" for name in sorted(self.names)] + ["**…"] * self.has_named_stars
        return f"({', '.join(words)})"

    @classmethod
    def of(cls, call: ast.Call) -> Arguments:
        """Read what a call gives."""
        places = [each for each in call.args if not isinstance(each, ast.Starred)]
        named = [each.arg for each in call.keywords]
        return cls(
            tuple(map(ast.unparse, places)),
            frozenset(filter(None, named)),
            has_stars=len(places) < len(call.args),
            has_named_stars=None in named,
        )

    def fault(self, signature: Signature) -> str | None:
        """Say what does not fit a signature; None where it fits, or may."""
        places = signature.by_place
        given = len(self.places)
        if given > len(places) and not signature.takes_more:
            return f"takes {len(places)} arguments by place; it is given {given}"
        filled = {each.name for each in places[:given]}
        known = {each.name for each in signature.parameters if each.by_name}
        unknown = sorted(self.names - known)
        if unknown and not signature.takes_named:
            return f"takes no argument {', '.join(unknown)}"
        if twice := sorted(self.names & filled & known):
            return f"is given {', '.join(twice)} by place and by name"
        if self.has_stars or self.has_named_stars:
            return None
        missing = [
            each.name
            for each in signature.parameters
            if each.is_required and each.name not in filled | self.names
        ]
        return f"needs {', '.join(missing)}, which it is not given" if missing else None

    def misplaced(self, signature: Signature) -> str | None:
        """Say which argument goes to another parameter than the one of its name."""
        own = {each.name for each in signature.parameters}
        for words, parameter in zip(self.places, signature.by_place, strict=False):
            name = words.rpartition(".")[2]
            if name in own and name != parameter.name and parameter.name not in words:
                return f"is given {words} as {parameter.name}"
        return None

    def bound(self, signature: Signature) -> tuple[str, ...]:
        """List the parameters that the arguments by place go to."""
        return tuple(each.name for each in signature.by_place[: len(self.places)])


def is_static(function: Function) -> bool:
    """Return whether a method gets no instance and no class."""
    return "staticmethod" in _names_of(function.decorator_list)


def is_property(function: Function) -> bool:
    """Return whether a method is read as an attribute."""
    names = set(_names_of(function.decorator_list))
    return bool(names & {"property", "cached_property", "setter", "abstractproperty"})


def is_decorated(function: Function) -> bool:
    """Return whether a decorator that is not known may change the signature."""
    known = {
        *("staticmethod", "classmethod", "abstractmethod", "override", "overload", "final"),
        *("property", "cached_property", "abstractproperty", "setter", "wraps", "contextmanager"),
        *("lru_cache", "cache", "inference_mode", "no_grad", "torch_compile_guard", "compile"),
        *("deprecated", "instrument", "typing_override", "disable", "support_torch_compile"),
    }
    return not set(_names_of(function.decorator_list)) <= known


def _names_of(nodes: Sequence[ast.expr]) -> Iterator[str]:
    for node in nodes:
        inner = node.func if isinstance(node, ast.Call) else node
        yield ast.unparse(inner).rpartition(".")[2]


def signature_of_class(classes: Classes, definition: ClassDef) -> Signature | None:
    """Read what a call of a class takes; None where the source does not tell.

    Fields of a dataclass are those of its bases and its own, as `dataclasses` orders them.
    """
    order = classes.order(definition)
    fields: dict[str, Parameter] = {}
    is_record = False
    for base in order:
        if isinstance(base, External):
            if base.path not in _PLAIN_BASES:
                return None
            continue
        if is_static_new(base):
            return None
        constructor = base.methods.get("__init__")
        if constructor is not None:
            return None if is_decorated(constructor) else Signature.of(constructor, is_bound=True)
        if _is_dataclass(base):
            is_record = True
            break
        if base.node.decorator_list and not _is_dataclass(base):
            return None
    if not is_record:
        return Signature(())
    for base in reversed([each for each in order if isinstance(each, ClassDef)]):
        if _is_dataclass(base):
            fields |= {each.name: each for each in _fields(base)}
    ordered = sorted(fields.values(), key=lambda each: not each.by_place)
    return Signature(tuple(ordered))


_PLAIN_BASES = frozenset(
    {"abc.ABC", "typing.Generic", "typing.Protocol", "typing_extensions.Protocol", "torch.nn.Module"}
)
"""Bases outside of the engine that leave the constructor of a class as it is written."""


def is_static_new(definition: ClassDef) -> bool:
    """Return whether a class makes its instances itself."""
    return "__new__" in definition.methods or bool(definition.node.keywords)


def _is_dataclass(definition: ClassDef) -> bool:
    return "dataclass" in {
        ast.unparse(each.func if isinstance(each, ast.Call) else each).rpartition(".")[2]
        for each in definition.node.decorator_list
    }


def _fields(definition: ClassDef) -> Iterator[Parameter]:
    only_named = any(
        keyword.arg == "kw_only" and isinstance(keyword.value, ast.Constant) and keyword.value.value
        for each in definition.node.decorator_list
        if isinstance(each, ast.Call)
        for keyword in each.keywords
    )
    for node in definition.node.body:
        if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name):
            continue
        kind = ast.unparse(node.annotation)
        if "KW_ONLY" in kind:
            only_named = True
        if any(each in kind for each in _NO_FIELDS):
            continue
        name, value = node.target.id, node.value
        settings: dict[str | None, ast.expr] = {}
        if isinstance(value, ast.Call) and ast.unparse(value.func).rpartition(".")[2] in _FIELDS:
            settings = {each.arg: each.value for each in value.keywords}
            has_default = bool({"default", "default_factory"} & settings.keys() or value.args)
        else:
            has_default = value is not None
        match settings.get("init"):
            case ast.Constant(value=False):
                continue
        is_named = only_named or "kw_only" in settings
        yield Parameter(name, not has_default, by_place=not is_named)


def lengths_of_results(function: Function) -> set[int]:
    """List how many values a function returns; empty where that is not in its text."""
    found: set[int] = set()
    for case in returns(function):
        match case.value:
            case ast.Tuple(elts=values) if not any(isinstance(e, ast.Starred) for e in values):
                found.add(len(values))
            case _:
                return set()
    return found
