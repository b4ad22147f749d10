"""The values of names in a class and its instances, from statements, without running any.

Statements count in the order in which Python would run them: class bodies by the method
resolution order, then `__init__`, where `super().__init__()` stands for the next one's.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial

from backend_caps.engines.source.classes import Classes
from backend_caps.engines.source.guards import (
    Function,
    Guarded,
    Guards,
    all_of,
    as_expression,
    guarded,
    negated,
    spans,
)
from backend_caps.engines.source.index import External
from backend_caps.engines.source.module import ClassDef, Module
from backend_caps.engines.source.statements import (
    Stated,
    Statement,
    attribute,
    bound,
    by_name,
    left_standing,
    statements,
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
_Step = Guarded[Statement | ast.Call]
"""What a method does, and when: it gives a name its value, or calls what may."""
_Setter = tuple[Guards, Function, Sequence[Statement]]
"""A method that gives names their values, and when the class has it."""


class Attributes:
    """Finds the values of some names in classes; each method is read once."""

    def __init__(self, classes: Classes, names: Collection[str]) -> None:
        self.classes = classes
        self.names = frozenset(names)
        self.steps = cache(self._steps)
        self.setters = cache(self._setters)
        self._of_instance = cache(self._instance_statements)
        self._settings = cache(partial(_settings, wanted=self.names))

    def stated(self, definition: ClassDef, name: str) -> Stated | None:
        """Return the statements that give a name its value; None where the tree has none."""
        order = self.classes.ancestors(definition)
        of_bodies: list[Statement] = []
        for base in order:
            own = base.statements.get(name, ())
            of_bodies = [*own, *of_bodies]
            if any(each.is_certain for each in own):
                break
        left = left_standing([*of_bodies, *self._of_instance(definition).get(name, ())])
        left += self._set_elsewhere(order, name)
        return Stated(tuple(left)) if left else None

    def _instance_statements(self, definition: ClassDef) -> Mapping[str, list[Statement]]:
        return by_name(_InstanceRun(self, definition).statements())

    def _set_elsewhere(self, order: tuple[ClassDef, ...], name: str) -> Iterator[Statement]:
        """List what other statements of the files of an order may set to true."""
        firsts = {base.module: base for base in reversed(order)}
        for module, first in reversed(firsts.items()):
            lines = self._settings(module)
            for base in order if lines else ():
                owners: tuple[_Owner, ...] = (base, base.name, *((None,) if base is first else ()))
                for line in filter(None, (lines.get((name, owner)) for owner in owners)):
                    when = as_expression(f"it is set elsewhere ({module.path}:{line})")
                    yield Statement(name, base, ast.Constant(value=True), (when,), line)

    def _steps(self, owner: ClassDef, method: Function) -> Sequence[_Step]:
        """List what a method does that may give one of the names a value, in its order."""
        found: list[_Step] = []
        has_names = self._mentions(owner, method)
        for guards, node in guarded(method.body):
            match node:
                case (
                    ast.Expr(value=ast.Call() as call)
                    | ast.Assign(value=ast.Call() as call)
                    | ast.AnnAssign(value=ast.Call() as call)
                    | ast.Return(value=ast.Call() as call)
                ):
                    found.append(Guarded(guards, call))
            given = statements(owner, [Guarded(guards, node)], "self") if has_names else ()
            found += (Guarded(guards, each) for each in given if each.name in self.names)
        return found

    def _setters(self, owner: ClassDef) -> Sequence[_Setter]:
        """List the methods of a class that themselves give one of the names a value."""
        every = owner.alternatives.values() if self._mentions(owner, owner.node) else ()
        methods = (one for own in every for one in own if self._mentions(owner, one[1]))
        found = (
            (guards, method, [s for _, s in self.steps(owner, method) if isinstance(s, Statement)])
            for guards, method in methods
        )
        return [each for each in found if each[2]]

    def _mentions(self, owner: ClassDef, node: ast.stmt) -> bool:
        """Return whether the text of a class or function has one of the names in it."""
        return spans(node, owner.module.lines(self.names))


class _InstanceRun:
    """Follows the calls of one class's constructor."""

    def __init__(self, attributes: Attributes, definition: ClassDef) -> None:
        self._attributes = attributes
        self._order = attributes.classes.ancestors(definition)
        self._seen: set[Function] = set()
        self._running: list[Function] = []
        self._followed: set[ast.expr] = set()
        """What calls call that were followed, as `super().__init__`."""
        self._alive: dict[Function, bool] = {}
        self._num_calls = 0

    def statements(self) -> Iterator[Statement]:
        """List what making an instance runs, and then what its methods may do later."""
        if any(map(self._attributes.setters, self._order)):
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
            for guards, method, own in self._attributes.setters(owner):
                if not self._may_run(method, at):
                    continue
                lines = {(each.owner, each.line) for each in own}
                for each in own:
                    is_over = method.name != "__init__" and not left.get(each.name, lines) <= lines
                    if method not in self._seen or is_over:
                        when = as_expression(f"once {method.name}() has run")
                        yield replace(each, guards=(when, *guards, *each.guards))

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
            for piece, around in _pieces(owner.node, owner.module.lines([name]))
            for node in ast.walk(piece)
        )

    def _called(self, name: str, places: Iterable[int], guards: Guards) -> Iterator[Statement]:
        """List what the first method of a name runs, of those at some places in the order.

        Where a condition chooses it, what comes after runs where that does not hold.
        """
        for at in places:
            alternatives = self._order[at].alternatives.get(name, ())
            for own, method in alternatives:
                yield from self._function(at, method, guards + own)
            if any(not own for own, _ in alternatives):
                return
            guards += tuple(negated(all_of(own)) for own, _ in alternatives)

    def _function(self, at: int, function: Function, guards: Guards) -> Iterator[Statement]:
        self._num_calls += 1
        is_endless = len(self._running) > _DEEPEST or self._num_calls > _MOST_CALLS
        if is_endless or function in self._running:
            return
        self._seen.add(function)
        self._running.append(function)
        for own, step in self._attributes.steps(self._order[at], function):
            if isinstance(step, Statement):
                yield replace(step, guards=(*guards, *own)) if guards else step
            else:
                yield from self._call(at, step, (*guards, *own))
        self._running.pop()

    def _call(self, at: int, call: ast.Call, guards: Guards) -> Iterator[Statement]:
        """Follow a call of a method by `self`, `super()` or its class."""
        places: Sequence[int]
        place: int | None = 0
        match call:
            case ast.Call(func=ast.Attribute(attr=name, value=ast.Name(id="self"))):
                places = range(len(self._order))
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
                inherited = (
                    each for base in own for each in self._attributes.classes.ancestors(base)
                )
                places = [self._order.index(each) for each in inherited]
            case _:
                return
        if place is not None:
            self._followed.add(call.func)
            yield from self._called(name, places, guards)

    def _place(self, base: ast.expr, at: int, start: int) -> int | None:
        """Find a class in the order by its name; past its end if it is outside.

        None where the source does not say which class it is.
        """
        match base:
            case ast.Name(id="__class__"):
                return at
            case ast.Call(func=ast.Name(id="type")) | ast.Attribute(attr="__class__"):
                return 0
        name = ast.unparse(base).rpartition(".")[2]
        for place, each in enumerate(self._order[start:], start):
            if each.name == name:
                return place
        module = self._order[at].module
        scope = module.scope_in(self._running[-1])
        match self._attributes.classes.index.resolve(base, module, (scope,)):
            case [(_, External())]:
                return len(self._order)
            case [(_, ClassDef() as found)] if found in self._order:
                return self._order.index(found)
        return None


def _settings(module: Module, wanted: frozenset[str]) -> Mapping[tuple[str, _Owner], int]:
    """List the first lines that set a name but are no statements of a class body or on `self`."""
    found: dict[tuple[str, _Owner], int] = {}
    classes = {each.name for each in module.classes}
    for piece, around in _pieces(module.tree, module.lines(wanted)):
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
                for name in sorted(names & wanted):
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
    """Return the holder of attributes that are read as the class's: `self`, or "" in its body."""
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


def _pieces(
    node: ast.AST, lines: Sequence[int], around: tuple[ast.stmt, ...] = ()
) -> Iterator[tuple[ast.AST, tuple[ast.stmt, ...]]]:
    """List the smallest statements, and heads of larger ones, that stand on some lines.

    Each comes with the functions and classes around it, outermost first.
    """
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt):
            if not spans(child, lines):
                continue
            if isinstance(child, ast.ClassDef | Function):
                yield from ((each, around) for each in child.decorator_list)
                yield from _pieces(child, lines, (*around, child))
            elif hasattr(child, "body") or isinstance(child, ast.Match):
                yield from _pieces(child, lines, around)
            else:
                yield child, around
        elif isinstance(child, ast.ExceptHandler | ast.match_case):
            yield from _pieces(child, lines, around)
        elif not isinstance(node, ast.Module) and spans(child, lines):
            yield child, around
