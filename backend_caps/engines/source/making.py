"""The statements that making an instance of a class runs, and those that may run later."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import replace

from backend_caps.engines.source.classes import Classes
from backend_caps.engines.source.guards import Guards, in_method, negated
from backend_caps.engines.source.methods import Methods, pieces
from backend_caps.engines.source.module import ClassDef, Function, alternatives_of
from backend_caps.engines.source.statements import Statement, standing
from backend_caps.engines.source.truth import all_of

_DEEPEST = 60
"""As many calls are followed one into another; each takes several places on Python's stack."""
_MOST_CALLS = 2000
"""As many calls are followed for one class."""


class Making:
    """Follows the calls of one class's constructor."""

    def __init__(self, methods: Methods, classes: Classes, definition: ClassDef) -> None:
        self._methods = methods
        self._classes = classes
        self._order = classes.ancestors(definition)
        self._names = methods.leading(self._order)
        self._seen: set[Function] = set()
        self._running: list[Function] = []
        self._placed: set[ast.expr] = set()
        """What calls call that were followed, as `super().__init__`."""
        self._alive: dict[Function, bool] = {}
        self._num_calls = 0

    def statements(self) -> list[Statement]:
        """List what making an instance runs, and then what its methods may do later."""
        if not self._names:
            return []
        made = list(self._called("__init__", self._from(0), ()))
        return [*made, *self._late(made)]

    def _late(self, made: list[Statement]) -> Iterator[Statement]:
        """List what methods do that may run once the instance is made."""
        left = _left(made)
        for at, owner in enumerate(self._order):
            for guards, method, own in self._methods.giving(owner):
                if not self._may_run(method, at):
                    continue
                lines = {(each.owner, each.line) for each in own}
                is_made = method in self._seen
                for each in own:
                    is_over = method.name != "__init__" and not left.get(each.name, lines) <= lines
                    if not is_made or is_over:
                        when = (in_method(method.name), *guards, *each.guards)
                        yield replace(each, guards=when)

    def _may_run(self, method: Function, at: int) -> bool:
        """Tell whether a method is not hidden, or is called by a class that hides it."""
        if method in self._seen:
            return True
        if method not in self._alive:
            hides = (alternatives_of(each).get(method.name, ()) for each in self._order[:at])
            is_hidden = any(not guards for own in hides for guards, _ in own)
            self._alive[method] = not is_hidden or self._is_called(method.name, at)
        return self._alive[method]

    def _is_called(self, name: str, until: int) -> bool:
        """Tell whether the classes before a place have a call that was not followed."""
        return any(
            isinstance(node, ast.Attribute)
            and node.attr == name
            and node not in self._placed
            and not (isinstance(node.value, ast.Name) and node.value.id == "self")
            and all(self._may_run(each, at) for each in around[:1] if isinstance(each, Function))
            for at, owner in enumerate(self._order[:until])
            for piece, around in pieces(owner.node, self._methods.lines(owner.module, {name}))
            for node in ast.walk(piece)
        )

    def _from(self, start: int) -> Iterable[int]:
        return range(start, len(self._order))

    def _called(self, name: str, places: Iterable[int], guards: Guards) -> Iterator[Statement]:
        """List what the first method of a name runs, of those at some places in the order.

        Where a condition chooses it, what comes after runs where that does not hold.
        """
        if name not in self._names:
            return
        found: list[tuple[int, Guards, Function]] = []
        others: Guards = ()
        for at in places:
            alternatives = alternatives_of(self._order[at]).get(name, ())
            found += [(at, others + own, method) for own, method in alternatives]
            if any(not own for own, _ in alternatives):
                break
            others += tuple(negated(all_of(own)) for own, _ in alternatives)
        for at, own, method in found:
            yield from self._function(at, method, guards + own)

    def _function(self, at: int, function: Function, guards: Guards) -> Iterator[Statement]:
        self._num_calls += 1
        is_endless = len(self._running) > _DEEPEST or self._num_calls > _MOST_CALLS
        if is_endless or function in self._running:
            return
        self._seen.add(function)
        self._running.append(function)
        for own, step in self._methods.steps(self._order[at], function):
            if isinstance(step, Statement):
                yield replace(step, guards=(*guards, *own)) if guards else step
            else:
                yield from self._call(at, step, (*guards, *own))
        self._running.pop()

    def _call(self, at: int, call: ast.Call, guards: Guards) -> Iterator[Statement]:
        match call:
            case ast.Call(func=ast.Attribute(attr=name, value=ast.Name(id="self"))):
                yield from self._called(name, self._from(0), guards)
            case ast.Call(
                func=ast.Attribute(attr=name, value=ast.Call(func=ast.Name(id="super"), args=of))
            ):
                place = self._place(of[0], at, 0) if of else at
                if place is not None:
                    self._placed.add(call.func)
                    yield from self._called(name, self._from(place + 1), guards)
            case ast.Call(
                func=ast.Attribute(attr=name, value=base), args=[ast.Name(id="self"), *_]
            ):
                place = self._place(base, at, at + 1)
                if place is not None:
                    self._placed.add(call.func)
                    yield from self._called(name, self._own(place), guards)

    def _place(self, base: ast.expr, at: int, start: int) -> int | None:
        """Find a class in the order by what it is called; past its end if it is outside.

        None where it cannot be told which it is.
        """
        match base:
            case ast.Name(id="__class__"):
                return at
            case ast.Call(func=ast.Name(id="type")) | ast.Attribute(attr="__class__"):
                return 0
        name = ast.unparse(base).rpartition(".")[2]
        places = (n for n, each in enumerate(self._order) if each.name == name and n >= start)
        place = next(places, None)
        if place is not None:
            return place
        try:
            found = self._methods.base(base, self._order[at], self._running[-1])
        except LookupError:
            return None
        if found is None:
            return len(self._order)
        return self._order.index(found) if found in self._order else None

    def _own(self, place: int) -> Iterable[int]:
        """List the places of a class and its bases, by its own order."""
        for base in self._order[place : place + 1]:
            yield from (self._order.index(each) for each in self._classes.ancestors(base))


def _left(made: list[Statement]) -> dict[str, set[tuple[ClassDef, int]]]:
    """List, by name, the places of the statements that are left standing."""
    return {
        name: {(s.owner, s.line) for s in standing(each for each in made if each.name == name)}
        for name in {each.name for each in made}
    }
