"""The nearest statement of a name in a class's bases, and what can be declared of it."""

from __future__ import annotations

import ast
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from backend_caps.capability.backend import Reading
from backend_caps.capability.facts import Given
from backend_caps.capability.provenance import Origin
from backend_caps.engines.reading import Finding
from backend_caps.engines.source.classes import Classes
from backend_caps.engines.source.guards import Case, Function, Guards, condition, negated, where
from backend_caps.engines.source.module import ClassDef, Scope
from backend_caps.engines.source.statements import Stated, by_name, left_standing, statements

Values = Sequence[tuple[Guards, object]]
"""A capability's value for each case, in the order of the source."""


@dataclass(frozen=True)
class Answer(Stated):
    """What one class states under a name: the value of an attribute, or what a method returns.

    It has no slots: its texts are cached for all classes that inherit it.
    """

    @property
    def owner(self) -> ClassDef:
        """The class whose body states it."""
        return self.last.owner

    @cached_property
    def cases(self) -> tuple[Case, ...]:
        """Each value, and when it holds."""
        return tuple(case for each in self.statements for case in each.cases)

    @property
    def function(self) -> Function | None:
        """The method, where it is one."""
        return self.last.value if isinstance(self.last.value, Function) else None

    @property
    def only(self) -> ast.expr | None:
        """The value, where there is one and it always holds."""
        match self.cases:
            case [Case(value=value, guards=())]:
                return value
        return None

    @property
    def argument(self) -> str:
        """The method's first argument after `cls` or `self`; empty where it has none."""
        match self.function:
            case ast.FunctionDef(args=ast.arguments(args=[_, ast.arg(arg=name), *_])):
                return name
        return ""

    @property
    def cases_of_argument(self) -> list[Case]:
        """The cases but those for an argument of None."""
        is_none = f"{self.argument} is None"
        return [c for c in self.cases if all(ast.unparse(guard) != is_none for guard in c.guards)]

    @cached_property
    def text(self) -> str:
        """The statement in the source's words, without the conditions."""
        values = dict.fromkeys(ast.unparse(case.value) for case in self.cases)
        return f"{self._verb} {' or '.join(values) or 'nothing'}"

    @cached_property
    def text_in_full(self) -> str:
        """The statement in the source's words, each value with what of its condition is new.

        Left out is the opposite of every condition that an earlier value has.
        """
        texts: list[str] = []
        failed: set[str] = set()
        for case in self.cases:
            left = [guard for guard in case.guards if ast.unparse(guard) not in failed]
            texts.append(where(ast.unparse(case.value), left))
            failed.update(ast.unparse(negated(guard)) for guard in case.guards)
        return f"{self._verb} {'; else '.join(texts) or 'nothing'}"

    @property
    def _verb(self) -> str:
        return f"{self.last.name} =" if self.function is None else f"{self.last.name}() returns"

    @property
    def scopes(self) -> tuple[Scope, ...]:
        """What the functions around the values bind, innermost first."""
        module = self.owner.module
        return tuple(module.scope_of(function.body) for function in self._around)

    def binds(self, name: str) -> bool:
        """Return whether a function around the values binds a name."""
        nodes = (node for function in self._around for node in ast.walk(function))
        return any(
            (isinstance(node, ast.arg) and node.arg == name)
            or (isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id == name)
            for node in nodes
        )

    def reading(
        self, definition: ClassDef, *, origin: Origin, words: str, value: object = None
    ) -> Reading:
        """Write what it comes to for a class; of a base's, as inherited."""
        is_own = self.owner is definition
        return Reading(
            origin=origin if is_own else Origin.INHERITED,
            words=words,
            value=value,
            declared_at=self.last.at,
            inherited_from=None if is_own else self.owner.name,
        )

    @property
    def _around(self) -> tuple[Function, ...]:
        own = () if self.function is None else (self.function,)
        return (*own, *self.owner.functions)


def finding(
    definition: ClassDef, answer: Answer, values: Values, *, about: str = "", loss: str = ""
) -> Finding:
    """Return what can be declared of an answer.

    What a class has from a base of its own family, and does not state again, stays undeclared:
    its base's author did not speak of it. So does what cannot be read off, as a whole.

    Args:
        definition: the class.
        answer: what was found for it.
        values: what the cases come to; None is one that cannot be read off.
        about: whose words they are, where that is not the class.
        loss: what the value leaves out of the words.
    """
    if any(value is None for _, value in values):
        values = ()
    distinct = list(dict.fromkeys(value for _, value in values))
    only = distinct[0] if len(distinct) == 1 else None
    words = answer.text if distinct else answer.text_in_full
    stated = Origin.CONDITIONAL if only is None else Origin.DECLARED
    words = f"{about and f'{about}: '}{words}{loss and f' ({loss})'}"
    reading = answer.reading(definition, origin=stated, words=words, value=only)
    if answer.owner is not definition or not values:
        return Finding(reading=reading)
    if only is not None:
        return Finding(reading=reading, base=only)
    return conditional(reading, values)


def conditional(reading: Reading, values: Values) -> Finding:
    """Make the case that always holds the base, or the last one, which is what is left."""
    cases = [(condition(guards), value) for guards, value in values]
    always = next((number for number, (when, _) in enumerate(cases) if not when), -1)
    _, base = cases.pop(always)
    whens = [(Given(expression=when), value, reading.words) for when, value in cases]
    return Finding(reading=reading, base=base, conditions=whens)


class Lookup:
    """Finds what classes say, each class body read once."""

    def __init__(self, classes: Classes, roots: Collection[ClassDef]) -> None:
        """Take the root classes: their values are defaults, and count as undeclared."""
        self.roots = frozenset(roots)
        self._classes = classes
        self._stated: dict[ClassDef, Mapping[str, Answer]] = {}

    def nearest(
        self, definition: ClassDef, name: str, *, after: ClassDef | None = None
    ) -> Answer | None:
        """Find the statement of a class, or of its nearest base that has one, a root too.

        Args:
            definition: the class.
            name: of an attribute or a method.
            after: the class in whose method `super()` stands, if it does.
        """
        order = self._classes.ancestors(definition, after=after)
        return next((own[name] for own in map(self.stated, order) if name in own), None)

    def below_root(self, definition: ClassDef, name: str) -> Answer | None:
        """Find the statement of a class or a base; None where only a root has one."""
        below = (each for each in self._classes.ancestors(definition) if each not in self.roots)
        return next((own[name] for own in map(self.stated, below) if name in own), None)

    def stated(self, definition: ClassDef) -> Mapping[str, Answer]:
        """List what a class's body binds, and what its module gives it afterwards."""
        if definition not in self._stated:
            module = definition.module
            path = definition.path.removeprefix(f"{module.name}.")
            found = [*definition.given, *statements(definition, module.body, path)]
            own = by_name(each for each in found if each.operator is None)
            left = {name: left_standing(each) for name, each in own.items()}
            self._stated[definition] = {name: Answer(tuple(each)) for name, each in left.items()}
        return self._stated[definition]
