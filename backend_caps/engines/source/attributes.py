"""What a class, and its instances once made, hold under a name: by statements, not by running.

The statements are followed in the order in which Python would run them: the class bodies by the
method resolution order, then `__init__`, where `super().__init__()` stands for the next one's.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace

from backend_caps.engines.source.classes import Classes
from backend_caps.engines.source.guards import Guards, condition, guarded, in_method, met, negated
from backend_caps.engines.source.index import Index
from backend_caps.engines.source.module import ClassDef, Function, assigned, is_setter, methods_of

_SIGNS: dict[type[ast.operator], str] = {ast.BitOr: "|", ast.BitAnd: "&"}
_IN_PLACE: dict[type[ast.operator], bool] = {ast.BitOr: True, ast.BitAnd: False}
"""The value that `|=` and `&=` give where their right side holds, or does not."""


@dataclass(frozen=True, slots=True)
class Statement:
    """One statement that gives a name its value."""

    name: str
    owner: ClassDef
    """The class whose body, or whose method, it stands in."""
    value: ast.expr | Function
    """A function where a method or a property has the name."""
    guards: Guards
    line: int
    operator: type[ast.operator] | None = None
    """Of `|=` and the like."""

    @property
    def at(self) -> str:
        """`file:line`."""
        return f"{self.owner.module.path}:{self.line}"

    @property
    def text(self) -> str:
        """The statement as the source has it, its condition aside."""
        if not isinstance(self.value, ast.expr):
            return f"def {self.name}"
        sign = "=" if self.operator is None else f"{_SIGNS.get(self.operator, '?')}="
        return f"{self.name} {sign} {ast.unparse(self.value)}"


@dataclass(frozen=True, slots=True)
class Stated:
    """What is left standing of a name: the last statement that always runs, and those after it."""

    statements: tuple[Statement, ...]

    @property
    def base(self) -> Statement | None:
        """The one that always runs."""
        first = self.statements[0]
        return None if first.guards or first.operator else first

    @property
    def last(self) -> Statement:
        """The one that decides."""
        return self.statements[-1]

    @property
    def words(self) -> str:
        """The statements in the source's words."""
        return "; ".join(_words(statement) for statement in self.statements)


def _words(statement: Statement) -> str:
    when = condition(statement.guards)
    return f"{statement.text} where {when}" if when else statement.text


_DEEPEST = 60
"""As many calls are followed one into another; each takes several places on Python's stack."""
_MOST_CALLS = 2000
"""As many calls are followed for one class."""
_Step = tuple[Guards, Statement | ast.Call]
"""What a method does, and when: it gives a name its value, or calls what may."""


class Attributes:
    """Follows some names through classes."""

    def __init__(self, index: Index, classes: Classes, names: Collection[str]) -> None:
        self._index = index
        self._classes = classes
        self._names = frozenset(names)
        alternatives = "|".join(sorted(map(re.escape, names)))
        self._assigned = re.compile(
            rf"self\.(?:{alternatives})\b(?:[ \t]*(?:[:|&]|,\s*\n)|[^\n=]*=(?!=))".encode()
        )
        self._bodies: dict[ClassDef, dict[str, list[Statement]]] = {}
        self._methods: dict[ClassDef, Mapping[str, Function]] = {}
        self._instances: dict[ClassDef, dict[str, list[Statement]]] = {}
        self._steps: dict[Function, list[_Step]] = {}
        self._lines: dict[str, list[int]] = {}

    def stated(self, definition: ClassDef, name: str) -> Stated | None:
        """Say what stands under a name; None where nothing of the tree states it."""
        standing: list[Statement] = []
        of_instance = self._instance(definition).get(name, ())
        for statement in (*self._of_body(definition, name), *of_instance):
            if not statement.guards and statement.operator is None:
                standing = []
            standing.append(statement)
        return Stated(tuple(standing)) if standing else None

    def method(self, definition: ClassDef, name: str) -> tuple[ClassDef, Function] | None:
        """Find the method that a class has under a name."""
        return self._method(self._classes.ancestors(definition), name)

    def method_after(
        self, definition: ClassDef, owner: ClassDef, name: str
    ) -> tuple[ClassDef, Function] | None:
        """Find what `super()` finds, in a class of `owner`'s, of the order of `definition`."""
        order = self._classes.ancestors(definition)
        return self._method(order[order.index(owner) + 1 :], name)

    def _method(self, order: tuple[ClassDef, ...], name: str) -> tuple[ClassDef, Function] | None:
        found = ((base, self.methods(base).get(name)) for base in order)
        return next(((base, method) for base, method in found if method is not None), None)

    def methods(self, definition: ClassDef) -> Mapping[str, Function]:
        """List the methods that a class's own body defines."""
        if definition not in self._methods:
            self._methods[definition] = methods_of(definition)
        return self._methods[definition]

    def _of_body(self, definition: ClassDef, name: str) -> list[Statement]:
        """List what class bodies say, from the base that always says it down to the class."""
        found: list[Statement] = []
        for base in self._classes.ancestors(definition):
            own = self._body(base).get(name, [])
            found = [*own, *found]
            if any(not each.guards and each.operator is None for each in own):
                break
        return found

    def _body(self, definition: ClassDef) -> dict[str, list[Statement]]:
        if definition not in self._bodies:
            found: dict[str, list[Statement]] = {}
            for statement in guarded(definition.node.body):
                node, guards = statement.node, statement.guards
                for name, value, operator in _bound(node, _named):
                    if name in self._names:
                        own = Statement(name, definition, value, guards, node.lineno, operator)
                        found.setdefault(name, []).append(own)
            self._bodies[definition] = found
        return self._bodies[definition]

    def _instance(self, definition: ClassDef) -> Mapping[str, list[Statement]]:
        """List what instances are given, by name, in the order in which it runs."""
        if definition not in self._instances:
            found: dict[str, list[Statement]] = {}
            order = self._classes.ancestors(definition)
            if any(self.assigns(base, base.node) for base in order):
                run = _Run(self, order)
                for statement in (*run.constructor(), *run.not_seen()):
                    found.setdefault(statement.name, []).append(statement)
            self._instances[definition] = found
        return self._instances[definition]

    def steps(self, owner: ClassDef, function: Function) -> list[_Step]:
        """List what a method does that may give one of the names a value, in its order."""
        if function not in self._steps:
            self._steps[function] = list(self._read_steps(owner, function))
        return self._steps[function]

    def _read_steps(self, owner: ClassDef, function: Function) -> Iterator[_Step]:
        for statement in guarded(function.body):
            node, guards = statement.node, statement.guards
            match node:
                case (
                    ast.Expr(value=ast.Call() as call)
                    | ast.Assign(value=ast.Call() as call)
                    | ast.AnnAssign(value=ast.Call() as call)
                    | ast.Return(value=ast.Call() as call)
                ):
                    yield guards, call
            for name, value, operator in _bound(node, _of_self):
                if name in self._names:
                    yield guards, Statement(name, owner, value, guards, node.lineno, operator)

    def assigns(self, definition: ClassDef, node: ast.stmt) -> bool:
        """Tell whether the text of a class or function assigns one of the names to `self`."""
        path = definition.module.path
        if path not in self._lines:
            text = self._index.tree.files[path]
            found = self._assigned.finditer(text)
            self._lines[path] = [text.count(b"\n", 0, match.start()) + 1 for match in found]
        end = node.end_lineno or node.lineno
        return any(node.lineno <= line <= end for line in self._lines[path])


class _Run:
    """The statements that making an instance of one class runs."""

    def __init__(self, attributes: Attributes, order: tuple[ClassDef, ...]) -> None:
        self._attributes = attributes
        self._order = order
        self._seen: set[Function] = set()
        self._running: list[Function] = []
        self._num_calls = 0

    def constructor(self) -> Iterator[Statement]:
        """List what making an instance runs."""
        yield from self._called("__init__", 0, ())

    def not_seen(self) -> Iterator[Statement]:
        """List what methods assign that nothing seen here calls."""
        reached: set[str] = set()
        for at, owner in enumerate(self._order):
            for name, method in self._attributes.methods(owner).items():
                is_hidden = name in reached or method in self._seen
                if name != "__init__" and not is_hidden and self._attributes.assigns(owner, method):
                    yield from self._function(at, method, (in_method(name),))
            reached |= self._attributes.methods(owner).keys()

    def _called(self, name: str, start: int, guards: Guards) -> Iterator[Statement]:
        """List what the first method of a name runs, from a place in the order on."""
        for at in range(start, len(self._order)):
            method = self._attributes.methods(self._order[at]).get(name)
            if method is not None:
                yield from self._function(at, method, guards)
                return

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
        match call:
            case ast.Call(func=ast.Attribute(attr=name, value=ast.Name(id="self"))):
                yield from self._called(name, 0, guards)
            case ast.Call(
                func=ast.Attribute(attr=name, value=ast.Call(func=ast.Name(id="super"), args=of))
            ):
                start = self._place(of[0], 0) if of else at
                yield from self._called(name, start + 1, guards)
            case ast.Call(
                func=ast.Attribute(attr=name, value=base), args=[ast.Name(id="self"), *_]
            ):
                yield from self._called_of(self._place(base, at + 1), name, guards)

    def _place(self, base: ast.expr, start: int) -> int:
        """Find a class in the order by the name it is called; past its end if it is not there."""
        name = ast.unparse(base).rpartition(".")[2]
        places = (n for n, each in enumerate(self._order) if each.name == name and n >= start)
        return next(places, len(self._order))

    def _called_of(self, at: int, name: str, guards: Guards) -> Iterator[Statement]:
        """List what `Base.method(self)` runs: the method is found by the base's own order."""
        for definition in self._order[at : at + 1]:
            found = self._attributes.method(definition, name)
            if found is not None:
                yield from self._function(self._order.index(found[0]), found[1], guards)


_Bound = tuple[str, ast.expr | Function, type[ast.operator] | None]


def _bound(node: ast.stmt, name_of: Callable[[ast.expr], str | None]) -> Iterator[_Bound]:
    """List what a statement binds to names, or to attributes of `self`."""
    match node:
        case ast.Assign() | ast.AnnAssign():
            for target, value in assigned(node):
                if name := name_of(target):
                    yield name, value, None
        case ast.AugAssign(target=target, op=operator, value=value):
            if name := name_of(target):
                yield name, value, type(operator)
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
            if name_of is _named and not is_setter(node):
                yield name, node, None


def _named(target: ast.expr) -> str | None:
    return target.id if isinstance(target, ast.Name) else None


def _of_self(target: ast.expr) -> str | None:
    match target:
        case ast.Attribute(value=ast.Name(id="self"), attr=name):
            return name
    return None


@dataclass(frozen=True, slots=True)
class Case:
    """A value, and when it holds; always, without guards."""

    value: ast.expr
    guards: Guards


def cases_of(stated: Stated) -> tuple[Case, ...]:
    """Write statements as cases: of those that hold the last one counts.

    `|=` is a case in which the value is true, `&=` one in which it is false; the branches of a
    conditional expression are cases of their own.
    """
    cases: list[Case] = []
    for statement in stated.statements:
        if not isinstance(statement.value, ast.expr):
            continue
        if statement.operator is None:
            cases += branches(statement.value, statement.guards)
            continue
        value = _IN_PLACE.get(statement.operator)
        if value is not None:
            held = statement.value if value else negated(statement.value)
            cases += branches(ast.Constant(value=value), (*statement.guards, held))
    always = [at for at, case in enumerate(cases) if not case.guards]
    return tuple(cases[always[-1] :] if always else cases)


def branches(value: ast.expr, guards: Guards) -> list[Case]:
    """Take conditional expressions apart; what never holds is no case."""
    held = met(guards)
    if held is None:
        return []
    if not isinstance(value, ast.IfExp):
        return [Case(value, held)]
    return [
        *branches(value.body, (*held, value.test)),
        *branches(value.orelse, (*held, negated(value.test))),
    ]


def truth_cases(cases: tuple[Case, ...]) -> tuple[Case, ...]:
    """Write the cases of a flag with constants alone: an expression is a case of its truth.

    Where its guards hold and it does not, the flag is false.
    """
    constant: list[Case] = []
    for case in cases:
        if isinstance(case.value, ast.Constant):
            constant.append(case)
        else:
            constant.append(replace(case, value=ast.Constant(value=False)))
            constant.append(Case(ast.Constant(value=True), (*case.guards, case.value)))
    return tuple(constant)
