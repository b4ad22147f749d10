"""What a class, and its instances once made, hold under a name: by statements, not by running.

They are followed in the order in which Python would run them: class bodies by the method
resolution order, then `__init__`, where `super().__init__()` stands for the next one's.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from backend_caps.engines.source.classes import Classes
from backend_caps.engines.source.guards import Function, Guards, all_of, negated, words
from backend_caps.engines.source.index import External
from backend_caps.engines.source.methods import Methods, Stated, left_standing, pieces
from backend_caps.engines.source.module import (
    ClassDef,
    Module,
    Statement,
    attribute,
    bound,
    by_name,
)

_DEEPEST = 60
"""As many calls are followed one into another; each takes several places on Python's stack."""
_MOST_CALLS = 2000
"""As many calls are followed for one class."""
_SETS = frozenset({"setattr", "delattr", "__setattr__", "__delattr__", "__setitem__", "update"})
"""Calls that set what a string, or a keyword, names."""
_SETTERS = (ast.Attribute, ast.Name, ast.Subscript, ast.Call)
_Owner = ClassDef | str | None
"""The class that a setting stands in; else the name of the class that is set; or any class."""


class Attributes:
    """Follows some names through classes."""

    def __init__(self, classes: Classes, names: Collection[str]) -> None:
        self._classes = classes
        self._methods = Methods(names)
        self._instances: dict[ClassDef, Mapping[str, list[Statement]]] = {}
        self._elsewhere: dict[str, Mapping[tuple[str, _Owner], int]] = {}

    def stated(self, definition: ClassDef, name: str) -> Stated | None:
        """Return what stands under a name; None where nothing of the tree states it."""
        if definition not in self._instances:
            run = InstanceRun(self._methods, self._classes, definition)
            self._instances[definition] = by_name(run.statements())
        order = self._classes.ancestors(definition)
        of_bodies: list[Statement] = []
        for base in order:
            own = base.statements.get(name, ())
            of_bodies = [*own, *of_bodies]
            if any(each.is_certain for each in own):
                break
        left = left_standing([*of_bodies, *self._instances[definition].get(name, ())])
        left += self._set_elsewhere(order, name)
        return Stated(tuple(left)) if left else None

    def _set_elsewhere(self, order: tuple[ClassDef, ...], name: str) -> Iterator[Statement]:
        """List what may be set by other statements of the files of an order: that it is true."""
        firsts = {base.module: base for base in reversed(order)}
        for module, first in reversed(firsts.items()):
            if module.path not in self._elsewhere:
                self._elsewhere[module.path] = _settings(module, self._methods)
            lines = self._elsewhere[module.path]
            for base in order if lines else ():
                owners: tuple[_Owner, ...] = (base, base.name, *((None,) if base is first else ()))
                for line in filter(None, (lines.get((name, owner)) for owner in owners)):
                    when = words(f"it is set elsewhere ({module.path}:{line})")
                    yield Statement(name, base, ast.Constant(value=True), (when,), line)


class InstanceRun:
    """Follows the calls of one class's constructor."""

    def __init__(self, methods: Methods, classes: Classes, definition: ClassDef) -> None:
        self._methods = methods
        self._classes = classes
        self._order = classes.ancestors(definition)
        self._seen: set[Function] = set()
        self._running: list[Function] = []
        self._followed: set[ast.expr] = set()
        """What calls call that were followed, as `super().__init__`."""
        self._alive: dict[Function, bool] = {}
        self._num_calls = 0

    def statements(self) -> Iterator[Statement]:
        """List what making an instance runs, and then what its methods may do later."""
        if any(map(self._methods.setters, self._order)):
            made = list(self._called("__init__", range(len(self._order)), ()))
            yield from made
            yield from self._later(made)

    def _later(self, made: list[Statement]) -> Iterator[Statement]:
        """List what methods do that may run once the instance is made."""
        left = {
            name: {(each.owner, each.line) for each in left_standing(own)}
            for name, own in by_name(made).items()
        }
        for at, owner in enumerate(self._order):
            for guards, method, own in self._methods.setters(owner):
                if not self._may_run(method, at):
                    continue
                lines = {(each.owner, each.line) for each in own}
                for each in own:
                    is_over = method.name != "__init__" and not left.get(each.name, lines) <= lines
                    if method not in self._seen or is_over:
                        when = (words(f"once {method.name}() has run"), *guards, *each.guards)
                        yield replace(each, guards=when)

    def _may_run(self, method: Function, at: int) -> bool:
        """Return whether a method is not hidden, or is called by a class that hides it."""
        if method in self._seen:
            return True
        if method not in self._alive:
            hides = (each.alternatives.get(method.name, ()) for each in self._order[:at])
            is_hidden = any(not guards for own in hides for guards, _ in own)
            self._alive[method] = not is_hidden or self._is_called(method.name, at)
        return self._alive[method]

    def _is_called(self, name: str, until: int) -> bool:
        """Return whether the classes before a place have a call that was not followed."""
        return any(
            isinstance(node, ast.Attribute)
            and node.attr == name
            and node not in self._followed
            and not (isinstance(node.value, ast.Name) and node.value.id == "self")
            and all(self._may_run(each, at) for each in around[:1] if isinstance(each, Function))
            for at, owner in enumerate(self._order[:until])
            for piece, around in pieces(owner.node, owner.module.lines([name]))
            for node in ast.walk(piece)
        )

    def _called(self, name: str, places: Iterable[int], guards: Guards) -> Iterator[Statement]:
        """List what the first method of a name runs, of those at some places in the order.

        Where a condition chooses it, what comes after runs where that does not hold.
        """
        found: list[tuple[int, Guards, Function]] = []
        others: Guards = ()
        for at in places:
            alternatives = self._order[at].alternatives.get(name, ())
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
        places: Sequence[int]
        match call:
            case ast.Call(func=ast.Attribute(attr=name, value=ast.Name(id="self"))):
                yield from self._called(name, range(len(self._order)), guards)
                return
            case ast.Call(
                func=ast.Attribute(attr=name, value=ast.Call(func=ast.Name(id="super"), args=of))
            ):
                place = self._place(of[0], at, 0) if of else at
                places = () if place is None else range(place + 1, len(self._order))
            case ast.Call(
                func=ast.Attribute(attr=name, value=base), args=[ast.Name(id="self"), *_]
            ):
                place = self._place(base, at, at + 1)
                own = () if place is None else self._order[place : place + 1]
                inherited = (each for base in own for each in self._classes.ancestors(base))
                places = [self._order.index(each) for each in inherited]
            case _:
                return
        if place is not None:
            self._followed.add(call.func)
            yield from self._called(name, places, guards)

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
        module = self._order[at].module
        match self._classes.index.resolve(base, module, (module.scope_in(self._running[-1]),)):
            case [(_, External())]:
                return len(self._order)
            case [(_, ClassDef() as found)] if found in self._order:
                return self._order.index(found)
        return None


def _settings(module: Module, methods: Methods) -> Mapping[tuple[str, _Owner], int]:
    """List the first lines that set a name but are no statements of a class body or on `self`."""
    found: dict[tuple[str, _Owner], int] = {}
    classes = {each.name for each in module.classes}
    for piece, around in pieces(module.tree, module.lines(methods.names)):
        inner = next((each for each in reversed(around) if isinstance(each, ast.ClassDef)), None)
        owner = None if inner is None else module.definitions.get(inner)
        if inner is not None and owner is None:  # a class statement that never runs
            continue
        if isinstance(piece, ast.AnnAssign) and piece.value is None:
            continue
        holder = _read_from(owner, around)
        read = [target for target, *_ in bound(piece) if attribute(target)[0] == holder]
        in_class = bool(around) and isinstance(around[-1], ast.ClassDef)
        for node in ast.walk(piece):
            if isinstance(node, _SETTERS) and node not in read:
                names, of = _names_set(node, in_class=in_class)
                for name in sorted(names & methods.names):
                    key = name, owner or (of if of in classes else None)
                    found.setdefault(key, node.lineno)
    return found


def _names_set(node: ast.expr, *, in_class: bool) -> tuple[set[str], str | None]:
    """List the names that a node may set, and the name of what it sets them of."""
    match node:
        case ast.Attribute(attr=name, value=of, ctx=ast.Store() | ast.Del()):
            names = {name}
        case ast.Name(id=name, ctx=ast.Store() | ast.Del()) if in_class:
            names, of = {name}, node
        case ast.Subscript(value=of, slice=ast.Constant(value=str(name)), ctx=ast.Store()):
            names = {name}
        case (
            ast.Call(func=ast.Attribute(attr=called, value=of))
            | ast.Call(func=ast.Name(id=called), args=[of, *_])
        ) if called in _SETS:
            strings = (n.value for n in ast.walk(node) if isinstance(n, ast.Constant))
            keywords = (keyword.arg for keyword in node.keywords)
            names = {each for each in (*strings, *keywords) if isinstance(each, str)}
        case _:
            return set(), None
    while isinstance(of, ast.Attribute):  # `B` of `B.__dict__["x"]`
        of = of.value
    return names, of.id if isinstance(of, ast.Name) else None


def _read_from(owner: ClassDef | None, around: tuple[ast.stmt, ...]) -> str | None:
    """Return what a statement's targets are attributes of where a class is read by it."""
    match around:
        case _ if owner is None:
            return None
        case [*_, ast.ClassDef()]:
            return ""
        case [*_, ast.ClassDef(), ast.FunctionDef() | ast.AsyncFunctionDef() as function]:
            # A function that a decorator gives away, such as a setter, is not read as a method.
            own = owner.alternatives.get(function.name, ())
            if not function.decorator_list or any(function is each for _, each in own):
                return "self"
    return None
