"""The values of names in a class and its instances, from statements, without running any.

Statements count in the order in which Python would run them: class bodies by the method
resolution order, then `__init__`, with the next class's where it calls `super().__init__()`.
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
    live_statements,
    statements,
)

_DEEPEST = 60
"""The longest chain of calls that is followed; each call takes several frames of Python's."""
_MOST_CALLS = 2000
"""The most calls that are followed for one class."""
_SETS = frozenset({"setattr", "delattr", "__setattr__", "__delattr__", "__setitem__", "update"})
"""Functions that set the attribute which a string or a keyword names."""
_SETTERS = (ast.Attribute, ast.Name, ast.Subscript, ast.Call)
_Owner = ClassDef | str | None
"""The class around a setting; else the name of the class that it sets; None for any class."""
_Step = Guarded[Statement | ast.Call]
"""A statement of a method that sets a name, or a call that may run one."""
_Setter = tuple[Guards, Function, Sequence[Statement]]
"""A method with its statements that set names, and when the class has the method."""


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
        """Return the statements that decide a name; None where the tree has none."""
        order = self.classes.ancestors(definition)
        of_bodies: list[Statement] = []
        for base in order:
            of_body = base.statements.get(name, ())
            of_bodies = [*of_body, *of_bodies]
            if any(each.is_certain for each in of_body):
                break
        of_instance = self._of_instance(definition).get(name, ())
        deciding = live_statements([*of_bodies, *of_instance])
        deciding += self._set_elsewhere(order, name)
        return Stated(tuple(deciding)) if deciding else None

    def _instance_statements(self, definition: ClassDef) -> Mapping[str, list[Statement]]:
        return by_name(_InstanceRun(self, definition).statements())

    def _set_elsewhere(self, order: tuple[ClassDef, ...], name: str) -> Iterator[Statement]:
        """List settings outside class bodies and `self`; each may set the name to true."""
        firsts = {base.module: base for base in reversed(order)}
        for module, first in reversed(firsts.items()):
            # A setting of an unknown class counts once, for the first base of the module.
            lines = self._settings(module)
            for base in order if lines else ():
                owners: tuple[_Owner, ...] = (base, base.name, *((None,) if base is first else ()))
                for line in filter(None, (lines.get((name, owner)) for owner in owners)):
                    when = as_expression(f"it is set elsewhere ({module.path}:{line})")
                    yield Statement(name, base, ast.Constant(value=True), (when,), line)

    def _steps(self, owner: ClassDef, method: Function) -> Sequence[_Step]:
        """List the statements and calls of a method that may set one of the names."""
        steps: list[_Step] = []
        has_names = self._mentions(owner, method)
        for guards, node in guarded(method.body):
            match node:
                case (
                    ast.Expr(value=ast.Call() as call)
                    | ast.Assign(value=ast.Call() as call)
                    | ast.AnnAssign(value=ast.Call() as call)
                    | ast.Return(value=ast.Call() as call)
                ):
                    steps.append(Guarded(guards, call))
            of_self = statements(owner, [Guarded(guards, node)], "self") if has_names else ()
            steps += (Guarded(guards, each) for each in of_self if each.name in self.names)
        return steps

    def _setters(self, owner: ClassDef) -> Sequence[_Setter]:
        """List the methods of a class that set one of the names, not just call such a one."""
        by_method = owner.alternatives.values() if self._mentions(owner, owner.node) else ()
        methods = (each for alternatives in by_method for each in alternatives)
        setters = (
            (guards, method, [s for _, s in self.steps(owner, method) if isinstance(s, Statement)])
            for guards, method in methods
            if self._mentions(owner, method)
        )
        return [setter for setter in setters if setter[2]]

    def _mentions(self, owner: ClassDef, node: ast.stmt) -> bool:
        """Return whether the text of a class or function contains one of the names."""
        return spans(node, owner.module.lines(self.names))


class _InstanceRun:
    """Follows the calls of one class's constructor."""

    def __init__(self, attributes: Attributes, definition: ClassDef) -> None:
        self._attributes = attributes
        self._classes = attributes.classes
        self._order = self._classes.ancestors(definition)
        self._seen: set[Function] = set()
        self._running: list[Function] = []
        self._followed: set[ast.expr] = set()
        """The functions of the calls that were followed, such as `super().__init__`."""
        self._alive: dict[Function, bool] = {}
        self._num_calls = 0

    def statements(self) -> Iterator[Statement]:
        """List what the constructor runs, then what methods may run on the instance."""
        if any(map(self._attributes.setters, self._order)):
            initial = list(self._called("__init__", range(len(self._order)), ()))
            yield from initial
            yield from self._later(initial)

    def _later(self, initial: list[Statement]) -> Iterator[Statement]:
        """List the statements of methods that may run after the constructor."""
        last = {
            name: {(each.owner, each.line) for each in live_statements(every)}
            for name, every in by_name(initial).items()
        }
        for at, owner in enumerate(self._order):
            for guards, method, own in self._attributes.setters(owner):
                if not self._may_run(method, at):
                    continue
                lines = {(each.owner, each.line) for each in own}
                for each in own:
                    # The constructor ran the method, and then other statements set the name.
                    is_last = method.name == "__init__" or last.get(each.name, lines) <= lines
                    if method not in self._seen or not is_last:
                        when = as_expression(f"once {method.name}() has run")
                        yield replace(each, guards=(when, *guards, *each.guards))

    def _may_run(self, method: Function, at: int) -> bool:
        """Return whether no class overrides a method, or one that does calls it."""
        if method in self._seen:
            return True
        if method not in self._alive:
            overrides = (each.alternatives.get(method.name, ()) for each in self._order[:at])
            is_overridden = any(not guards for own in overrides for guards, _ in own)
            self._alive[method] = not is_overridden or self._is_called(method.name, at)
        return self._alive[method]

    def _is_called(self, name: str, until: int) -> bool:
        """Return whether the classes before a place call a method, by no followed call."""
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
        """List what the first method of a name runs, by some places of the order.

        If its class has the method by a condition, the next one runs where that fails.
        """
        for at in places:
            alternatives = self._order[at].alternatives.get(name, ())
            for conditions, method in alternatives:
                yield from self._function(at, method, guards + conditions)
            if any(not conditions for conditions, _ in alternatives):
                return
            guards += tuple(negated(all_of(conditions)) for conditions, _ in alternatives)

    def _function(self, at: int, function: Function, guards: Guards) -> Iterator[Statement]:
        self._num_calls += 1
        is_endless = len(self._running) > _DEEPEST or self._num_calls > _MOST_CALLS
        if is_endless or function in self._running:
            return
        self._seen.add(function)
        self._running.append(function)
        for step_guards, step in self._attributes.steps(self._order[at], function):
            if isinstance(step, Statement):
                yield replace(step, guards=guards + step_guards) if guards else step
            else:
                yield from self._call(at, step, guards + step_guards)
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
                inherited = (each for base in own for each in self._classes.ancestors(base))
                places = [self._order.index(each) for each in inherited]
            case _:
                return
        if place is not None:
            self._followed.add(call.func)
            yield from self._called(name, places, guards)

    def _place(self, base: ast.expr, at: int, start: int) -> int | None:
        """Find the place of a class in the order; the order's length if it is outside.

        None where only running code knows which class `base` is.
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
        match self._classes.index.resolve(base, module, (scope,)):
            case [(_, External())]:
                return len(self._order)
            case [(_, ClassDef() as found)] if found in self._order:
                return self._order.index(found)
        return None


def _settings(module: Module, wanted: frozenset[str]) -> Mapping[tuple[str, _Owner], int]:
    """List the first line of each setting outside class bodies and `self`."""
    first_lines: dict[tuple[str, _Owner], int] = {}
    classes = {each.name for each in module.classes}
    for piece, around in _pieces(module.tree, module.lines(wanted)):
        inner = next((each for each in reversed(around) if isinstance(each, ast.ClassDef)), None)
        owner = None if inner is None else module.definitions.get(inner)
        if inner is not None and owner is None:  # the class statement never runs
            continue
        if isinstance(piece, ast.AnnAssign) and piece.value is None:
            continue
        holder = _holder(owner, around)
        own = [target for target, *_ in bound(piece) if attribute(target)[0] == holder]
        in_class = bool(around) and isinstance(around[-1], ast.ClassDef)
        for node in ast.walk(piece):
            if isinstance(node, _SETTERS) and node not in own:
                names, of = _names_set(node, in_class=in_class)
                for name in sorted(names & wanted):
                    key = name, owner or (of if of in classes else None)
                    first_lines.setdefault(key, node.lineno)
    return first_lines


def _names_set(node: ast.expr, *, in_class: bool) -> tuple[set[str], str | None]:
    """Return the names that a node may set, and the name of the object it sets them on."""
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


def _holder(owner: ClassDef | None, around: tuple[ast.stmt, ...]) -> str | None:
    """Return the holder of the attributes that `statements` lists: `self`, or "" in a body."""
    match around:
        case _ if owner is None:
            return None
        case [*_, ast.ClassDef()]:
            return ""
        case [*_, ast.ClassDef(), ast.FunctionDef() | ast.AsyncFunctionDef() as function]:
            # A function that its decorator keeps from the class, as a setter, is no method.
            methods = owner.alternatives.get(function.name, ())
            if not function.decorator_list or any(function is each for _, each in methods):
                return "self"
    return None


def _pieces(
    node: ast.AST, lines: Sequence[int], around: tuple[ast.stmt, ...] = ()
) -> Iterator[tuple[ast.AST, tuple[ast.stmt, ...]]]:
    """List the simple statements, and heads of compound ones, that span any of `lines`.

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
