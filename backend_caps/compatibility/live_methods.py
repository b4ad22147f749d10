"""The methods of an engine's classes that run for instances of a plugin's class."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from backend_caps.compatibility.decorators import is_property
from backend_caps.compatibility.nodes import walk
from backend_caps.engines.source.guards import Function
from backend_caps.engines.source.module import ClassDef

if TYPE_CHECKING:
    from backend_caps.compatibility.pair import Pair

Method = tuple[ClassDef, str]
"""The class that defines a method, and its name."""


class _Uses(NamedTuple):
    """The names of attributes that a method reads."""

    own: frozenset[str]
    """Of `self` or `cls`."""
    of_base: frozenset[tuple[str, str]]
    """Of `super()`: the class that it looks after, empty for the method's own; the attribute."""
    of_class: frozenset[tuple[str, str]]
    """Of a class: its name, and the attribute."""


@dataclass
class LiveMethods:
    """Follows a class from the methods that the engine calls to those that they call."""

    pair: Pair
    _methods: dict[ClassDef, frozenset[Method]] = field(default_factory=dict)
    _uses: dict[Function, _Uses] = field(default_factory=dict)

    def of(self, definition: ClassDef) -> frozenset[Method]:
        """List the methods, a class's own and its bases', that may run for its instances."""
        if definition not in self._methods:
            self._methods[definition] = self._followed(definition)
        return self._methods[definition]

    def _followed(self, definition: ClassDef) -> frozenset[Method]:
        order = self.pair.classes.ancestors(definition)
        definers: dict[str, list[ClassDef]] = {}
        for each in order:
            for name in each.methods:
                definers.setdefault(name, []).append(each)
        pending = [(f[0], name) for name, f in definers.items() if self._is_entered(f[0], name)]
        found: set[Method] = set()
        while pending:
            method = pending.pop()
            if method not in found:
                found.add(method)
                pending += self._called(method, definers, order)
        return frozenset(found)

    def _is_entered(self, owner: ClassDef, name: str) -> bool:
        """Return whether something other than the instance may call a method."""
        return (
            not self.pair.is_engines(owner.module.path)
            or name.startswith("__")
            or is_property(owner.methods[name])
            or name in self.pair.texts.calling_of_others
            or name in self.pair.texts.quoted
        )

    def _called(
        self, method: Method, definers: dict[str, list[ClassDef]], order: Sequence[ClassDef]
    ) -> Iterator[Method]:
        owner, name = method
        uses = self._used(owner.methods[name])
        for each in uses.own & definers.keys():
            yield definers[each][0], each
        for named, each in uses.of_base:
            after = [base for base in order if not named or base.name == named]
            first = owner if not named or not after else after[0]
            later = order[order.index(first) + 1 :]
            yield from ((base, each) for base in [b for b in later if each in b.methods][:1])
        for named, each in uses.of_class:
            owners = [base for base in order if base.name == named]
            following = order[order.index(owners[0]) :] if owners else ()
            yield from ((base, each) for base in [b for b in following if each in b.methods][:1])

    def _used(self, function: Function) -> _Uses:
        if function not in self._uses:
            own: set[str] = set()
            of_base: set[tuple[str, str]] = set()
            of_class: set[tuple[str, str]] = set()
            for node in walk(function):
                match node:
                    case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=name):
                        own.add(name)
                    case ast.Attribute(
                        value=ast.Call(func=ast.Name(id="super"), args=arguments), attr=name
                    ):
                        of_base.add((ast.unparse(arguments[0]) if arguments else "", name))
                    case ast.Attribute(value=ast.Name(id=named) | ast.Attribute(attr=named)):
                        of_class.add((named, node.attr))
            self._uses[function] = _Uses(frozenset(own), frozenset(of_base), frozenset(of_class))
        return self._uses[function]
