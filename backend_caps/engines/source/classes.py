"""The bases of classes, and the classes whose instances factories return."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from backend_caps.engines.source.guards import (
    Function,
    Guarded,
    Guards,
    condition,
    returns,
    under,
    where,
)
from backend_caps.engines.source.index import External, FunctionDef, Index, Value
from backend_caps.engines.source.module import ClassDef, Module, Scope

_DEEPEST = 100
"""The longest chain of bases that is followed; real ones are far shorter."""
Base = ClassDef | External
Order = tuple[Base, ...]
_DEEPEST_CALLS = 12
"""The longest chain of calls that is followed; no known engine builds a backend deeper."""
_MOST_CALLS = 50
"""The most calls that are followed for one factory, in all branches together."""
Made = Guarded[ClassDef | None]
"""A class, and when an instance is made; None for an instance whose class was not found."""
_LOST: Made = Guarded((), None)


class Classes:
    """Resolves bases across files, each class once."""

    def __init__(
        self, index: Index, may_hold: Callable[[Guards, Module], bool] = lambda *_: True
    ) -> None:
        """Start without any class.

        Args:
            index: the files.
            may_hold: returns whether the conditions of a base in a file are not known to fail.
        """
        self.index = index
        self._may_hold = may_hold
        self._orders: dict[ClassDef, Order] = {}
        self._open: set[ClassDef] = set()

    def order(self, definition: ClassDef) -> Order:
        """List a class and its bases in the method resolution order."""
        if definition not in self._orders:
            self._note_twins(definition)
            self._open.add(definition)
            self._orders[definition] = self._linear(definition)
            self._open.discard(definition)
        return self._orders[definition]

    def ancestors(self, owner: ClassDef, *, after: ClassDef | None = None) -> tuple[ClassDef, ...]:
        """List the tree's classes in a class's order, itself first, or those `after` one."""
        order = tuple(base for base in self.order(owner) if isinstance(base, ClassDef))
        return order if after is None else order[order.index(after) + 1 :]

    def definer(
        self, definition: ClassDef, name: str, *, after: ClassDef | None = None
    ) -> ClassDef | None:
        """Find the class that defines a class's method; `after` one, as `super()` does."""
        order = self.ancestors(definition, after=after)
        return next((base for base in order if name in base.methods), None)

    def descends(self, definition: ClassDef, root: str) -> bool:
        """Return whether a class is a subclass of the one at a dotted path."""
        return any(base.path == root for base in self.ancestors(definition)[1:])

    def _linear(self, definition: ClassDef) -> Order:
        bases = [base for node in definition.node.bases for base in self._base(definition, node)]
        orders = [self.order(base) if isinstance(base, ClassDef) else (base,) for base in bases]
        merged = _merged([list(order) for order in orders] + [list(bases)])
        if merged is None:
            self._note("engine-bases-inconsistent", definition)
            merged = list(dict.fromkeys(base for order in orders for base in order))
        return definition, *merged

    def _note(self, code: str, definition: ClassDef, **values: object) -> None:
        self.index.note(code, at=definition.at, name=definition.name, **values)

    def _note_twins(self, definition: ClassDef) -> None:
        twins = [each for each in definition.module.classes if each.path == definition.path]
        if len(twins) > 1 and any(each.guards for each in twins):
            others = ", ".join(f"line {each.node.lineno}" for each in twins[1:])
            self._note("engine-class-defined-twice", twins[0], others=others)

    def _base(self, definition: ClassDef, node: ast.expr) -> list[Base]:
        """Resolve one base; of several alternatives, the first that can be resolved counts."""
        module = definition.module
        names = {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
        around = [module.scope_in(function) for function in definition.functions]
        # A module may rebind a base's name after the class statement.
        scopes = around or [module.scope_before(definition.node.lineno, names)]
        if (outer := _class_around(definition)) is not None:
            scopes.insert(0, module.scope_of(outer.node.body))
        found = self.index.resolve(node, module, scopes)
        targets = [target for guards, target in found if self._may_hold(guards, module)]
        for target in targets:
            if isinstance(target, External):
                if target.path.partition(".")[0] == self.index.tree.package:
                    self._note("engine-base-not-found", definition, base=target.path)
                return [] if target.path == "builtins.object" else [target]
            if isinstance(target, ClassDef) and self._is_closed(target):
                return [target]
        is_circle = any(isinstance(target, ClassDef) for target in targets)
        code = "engine-base-dynamic" if targets else "engine-base-not-found"
        code = "engine-bases-inconsistent" if is_circle else code
        self._note(code, definition, base=ast.unparse(node))
        return []

    def _is_closed(self, definition: ClassDef) -> bool:
        """Return whether a class's bases are resolved, or can be without a circle."""
        if definition in self._orders:
            return len(self._orders[definition]) < _DEEPEST
        return definition not in self._open and len(self._open) < _DEEPEST


def _class_around(definition: ClassDef) -> ClassDef | None:
    """Return the class whose body has a class statement, and binds names for its bases."""
    others = definition.module.classes if definition.outer else ()
    return next((each for each in others if f"{each.outer}{each.name}." == definition.outer), None)


def _merged(orders: list[list[Base]]) -> list[Base] | None:
    """Merge the bases' orders by C3; None where there is no order."""
    merged: list[Base] = []
    while orders := [order for order in orders if order]:
        heads = (order[0] for order in orders)
        first = next((h for h in heads if not any(h in order[1:] for order in orders)), None)
        if first is None:
            return None
        merged.append(first)
        orders = [[base for base in order if base != first] for order in orders]
    return merged


def labels(classes: Sequence[tuple[str, ClassDef]], *, taken: Collection[str]) -> list[str]:
    """Label classes by name; namesakes by the shortest path that tells them apart.

    Args:
        classes: each with its dotted path.
        taken: labels that other records have.
    """
    spelled = [list(_spellings(path, definition)) for path, definition in classes]
    unique: dict[int, str] = {}
    for level in range(max(map(len, spelled), default=0)):
        names = [each[min(level, len(each) - 1)] for each in spelled]
        counts = Counter([*names, *taken])
        for at, name in enumerate(names):
            if counts[name] == 1:
                unique.setdefault(at, name)
    return [unique.get(at) or free_label(each[-1], taken) for at, each in enumerate(spelled)]


def free_label(label: str, taken: Collection[str]) -> str:
    """Append ` here` to a label until no other record has it."""
    while label in taken:
        label += " here"
    return label


def _spellings(path: str, definition: ClassDef) -> Iterator[str]:
    """List the labels that a class may get, from the shortest to a unique one."""
    *_, name = words = path.split(".")
    yield name
    yield f"{definition.module.name.rpartition('.')[2]}.{name}"
    yield where(name, definition.guards)
    yield from (".".join(words[at:]) for at in range(len(words) - 3, -1, -1))
    yield where(path, definition.guards)
    yield f"{path} at {definition.at}"


def is_none(value: ast.expr) -> bool:
    """Return whether a factory's return makes nothing: `None`, or a tuple that ends in it."""
    last = value.elts[-1] if isinstance(value, ast.Tuple) and value.elts else value
    return isinstance(last, ast.Constant) and last.value is None


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a value is, to resolve the names in it."""

    module: Module
    scope: Scope
    owner: ClassDef | None
    around: tuple[Function, ...]
    """The functions being followed, outermost first."""


class Factories:
    """Finds the classes whose instances a function returns."""

    def __init__(
        self, classes: Classes, tables: Mapping[str, Mapping[str, FunctionDef]] | None = None
    ) -> None:
        """Take the classes, and by name the tables of functions that code looks up by key."""
        self._classes = classes
        self._tables = tables or {}
        self._num_calls = 0

    def made(self, function: FunctionDef) -> list[Made]:
        """List the classes whose instances a function returns; those not found come last."""
        self._num_calls = 0
        every = self._of_function(function, ())
        distinct = {(condition(made.guards), made.value): made for made in every}
        return sorted(distinct.values(), key=lambda made: made.value is None)

    def _of_function(self, function: FunctionDef, around: tuple[Function, ...]) -> Iterator[Made]:
        """Follow what a function returns; a recursive call adds nothing."""
        if function.node in around:
            return
        self._num_calls += 1
        if len(around) > _DEEPEST_CALLS or self._num_calls > _MOST_CALLS:
            yield _LOST
            return
        scope = function.module.scope_in(function.node)
        place = _Place(function.module, scope, function.owner, (*around, function.node))
        cases = [case for case in returns(function.node) if not is_none(case.value)]
        by_case = [(case.guards, list(self._of_value(case.value, place))) for case in cases]
        for guards, every in by_case:
            if any(made for _, made in every):
                yield from under(guards, every)
            elif every:
                yield Guarded(guards, None)
        if (cases or around) and not any(every for _, every in by_case):
            yield _LOST

    def _of_value(self, value: ast.expr, place: _Place) -> Iterator[Made]:
        """Follow a returned value: a call, a name of one, or a tuple that ends in one."""
        match value:
            case ast.Tuple(elts=[*_, last]):
                yield from self._of_value(last, place)
            case ast.Call(func=ast.Attribute(value=ast.Name(id="self"), attr=name)) if (
                definer := place.owner and self._classes.definer(place.owner, name)
            ):
                method = FunctionDef(definer.module, definer.methods[name], place.owner)
                yield from self._of_function(method, place.around)
            case ast.Call(
                func=ast.Subscript(value=ast.Name(id=table), slice=ast.Constant(value=str(key)))
            ) if key in self._tables.get(table, {}):
                yield from self._of_function(self._tables[table][key], place.around)
            case ast.Call(func=called):
                yield from self._named(called, place, is_called=True)
            case ast.Name():
                yield from self._named(value, place, is_called=False)
            case _:
                yield _LOST

    def _named(self, expression: ast.expr, place: _Place, *, is_called: bool) -> Iterator[Made]:
        """Follow a name to what a call of it makes, or to the call that gives it its value."""
        targets = self._classes.index.resolve(expression, place.module, (place.scope,))
        if not targets:
            yield _LOST
        for guards, target in targets:
            found: Iterable[Made] = [_LOST]
            match target:
                case ClassDef():
                    found = [Guarded((), target)] if is_called else []
                case FunctionDef() if is_called:
                    # A function that gets `self` passed may call methods of the same class.
                    found = self._of_function(replace(target, owner=place.owner), place.around)
                case Value(node=ast.Name()) if is_called and len(targets) > 1:
                    continue  # `Name = Name` adds no meaning to the other targets
                case Value(module=module, node=ast.Call() as call) if not is_called:
                    scope = place.scope if module is place.module else {}
                    found = self._of_value(call, replace(place, module=module, scope=scope))
                case Value(node=ast.Constant(value=None)) if not is_called:
                    continue
            yield from under(guards, found)
