"""What the engine's own classes do: what one of them does without, a plugin's class may, too."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING

from backend_caps.compatibility.constructors import constructor_of
from backend_caps.compatibility.decorators import is_static, keeps_signature
from backend_caps.compatibility.signatures import Arguments, Signature
from backend_caps.engines.source.index import FunctionDef
from backend_caps.engines.source.module import ClassDef

if TYPE_CHECKING:
    from backend_caps.compatibility.pair import Pair


@dataclass
class Precedents:
    """The engine's own classes of a family."""

    pair: Pair
    _methods: dict[tuple[ClassDef, str], list[Signature]] = field(default_factory=dict)
    _constructors: dict[ClassDef, list[Signature]] = field(default_factory=dict)

    def take(self, root: ClassDef, name: str, arguments: Arguments) -> bool:
        """Return whether each of the engine's own methods of a family takes a call.

        A call that one of them does not take is made for some of the family's classes alone.
        """
        return all(arguments.fault(each) is None for each in self._signatures(root, name))

    def take_of_base(self, base: ClassDef, caller: str, call: ast.Call) -> bool:
        """Return whether the engine's subclasses take a call that a base's method makes of `self`.

        One that does not take it, though the base's method runs for it, is not called so.
        """
        assert isinstance(call.func, ast.Attribute), "it is a call of an attribute"
        name, arguments = call.func.attr, Arguments.of(call)
        for each in self.family(base)[1:]:
            if name in each.methods and (base, caller) in self.pair.live_methods.of(each):
                method = FunctionDef(each.module, each.methods[name], each)
                signature = Signature.of(method.node, is_bound=not is_static(method.node))
                is_plain = keeps_signature(self.pair, method)
                if is_plain and arguments.fault(signature) is not None:
                    return False
        return True

    def some_takes(self, root: ClassDef, name: str, arguments: Arguments) -> bool:
        """Return whether one of the engine's own methods of a family takes a call."""
        return any(arguments.fault(each) is None for each in self._signatures(root, name))

    def construct(self, root: ClassDef, arguments: Arguments) -> bool:
        """Return whether each of the engine's own classes of a family can be made with a call."""
        if root not in self._constructors:
            found = [constructor_of(self.pair, each) for each in self.family(root)]
            self._constructors[root] = [each for each in found if each is not None]
        return all(
            arguments.fault(each) is None and arguments.misplaced(each) is None
            for each in self._constructors[root]
        )

    def without(self, root: ClassDef, name: str) -> Iterator[ClassDef]:
        """Find those of the family's classes without subclasses that have a root's method alone.

        A family may have hundreds of classes, which are parsed as far as they are iterated.
        """
        for each in chain(self.pair.derived(root), [root]):
            is_own = self.pair.is_engines(each.module.path)
            has_none = is_own and self.pair.classes.definer(each, name) is root
            if has_none and next(self.pair.derived(each), None) is None:
                yield each

    def family(self, root: ClassDef) -> list[ClassDef]:
        """List a class of the engine's and its own subclasses of it."""
        derived = self.pair.subclasses(root)
        return [root, *(each for each in derived if self.pair.is_engines(each.module.path))]

    def _signatures(self, root: ClassDef, name: str) -> list[Signature]:
        key = (root, name)
        if key not in self._methods:
            owners = [root, *self.pair.subclasses(root, defining=name)]
            owners = [each for each in owners if name in each.methods]
            found = [FunctionDef(each.module, each.methods[name], each) for each in owners]
            self._methods[key] = [
                Signature.of(each.node, is_bound=not is_static(each.node))
                for each in found
                if keeps_signature(self.pair, each)
            ]
        return self._methods[key]
