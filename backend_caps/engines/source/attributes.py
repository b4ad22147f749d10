"""What a class, and its instances once made, hold under a name: by statements, not by running.

The statements are followed in the order in which Python would run them: the class bodies by the
method resolution order, then `__init__`, where `super().__init__()` stands for the next one's.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from backend_caps.engines.source.classes import Classes
from backend_caps.engines.source.elsewhere import Elsewhere
from backend_caps.engines.source.guards import Guards, condition, met, negated
from backend_caps.engines.source.index import Index
from backend_caps.engines.source.making import Making
from backend_caps.engines.source.methods import Methods
from backend_caps.engines.source.module import ClassDef, Function, methods_of
from backend_caps.engines.source.statements import Statement, bound, named, standing

_IN_PLACE: dict[type[ast.operator], bool] = {ast.BitOr: True, ast.BitAnd: False}
"""The value that `|=` and `&=` give where their right side holds, or does not."""


@dataclass(frozen=True, slots=True)
class Stated:
    """What is left standing of a name: the last statement that always runs, and those after it."""

    statements: tuple[Statement, ...]

    @property
    def base(self) -> Statement | None:
        """The one that always runs."""
        first = self.statements[0]
        return first if first.is_certain else None

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


class Attributes:
    """Follows some names through classes."""

    def __init__(self, index: Index, classes: Classes, names: Collection[str]) -> None:
        self._classes = classes
        self._methods = Methods(index, names)
        self._elsewhere = Elsewhere(self._methods)
        self._bodies: dict[ClassDef, dict[str, list[Statement]]] = {}
        self._instances: dict[ClassDef, dict[str, list[Statement]]] = {}

    def stated(self, definition: ClassDef, name: str) -> Stated | None:
        """Say what stands under a name; None where nothing of the tree states it."""
        of_instance = self._instance(definition).get(name, ())
        left = standing([*self._of_body(definition, name), *of_instance])
        left += self._elsewhere.statements(self._classes.ancestors(definition), name)
        return Stated(tuple(left)) if left else None

    def method(self, definition: ClassDef, name: str) -> tuple[ClassDef, Function] | None:
        """Find the method that a class has under a name."""
        return _method(self._classes.ancestors(definition), name)

    def method_after(
        self, definition: ClassDef, owner: ClassDef, name: str
    ) -> tuple[ClassDef, Function] | None:
        """Find what `super()` finds, in a class of `owner`'s, of the order of `definition`."""
        order = self._classes.ancestors(definition)
        return _method(order[order.index(owner) + 1 :], name)

    def _of_body(self, definition: ClassDef, name: str) -> list[Statement]:
        """List what class bodies say, from the base that always says it down to the class."""
        found: list[Statement] = []
        for base in self._classes.ancestors(definition):
            own = self._body(base).get(name, [])
            found = [*own, *found]
            if any(each.is_certain for each in own):
                break
        return found

    def _body(self, definition: ClassDef) -> dict[str, list[Statement]]:
        if definition not in self._bodies:
            found: dict[str, list[Statement]] = {}
            has_names = self._methods.mentions(definition, definition.node)
            body = definition.module.body_of(definition.node) if has_names else ()
            for statement in body:
                node, guards = statement.node, statement.guards
                for name, value, operator in bound(node, named):
                    if name in self._methods.names:
                        own = Statement(name, definition, value, guards, node.lineno, operator)
                        found.setdefault(name, []).append(own)
            self._bodies[definition] = found
        return self._bodies[definition]

    def _instance(self, definition: ClassDef) -> Mapping[str, list[Statement]]:
        """List what instances are given, by name, in the order in which it runs."""
        if definition not in self._instances:
            found: dict[str, list[Statement]] = {}
            for statement in Making(self._methods, self._classes, definition).statements():
                found.setdefault(statement.name, []).append(statement)
            self._instances[definition] = found
        return self._instances[definition]


def _method(order: tuple[ClassDef, ...], name: str) -> tuple[ClassDef, Function] | None:
    found = ((base, methods_of(base).get(name)) for base in order)
    return next(((base, method) for base, method in found if method is not None), None)


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
