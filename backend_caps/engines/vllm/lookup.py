"""What a class says under a name: the nearest statement in the order of its bases."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from backend_caps.engines.source.attributes import Case, branches
from backend_caps.engines.source.classes import Classes
from backend_caps.engines.source.guards import Guarded, condition, guarded, negated
from backend_caps.engines.source.module import ClassDef, Function, Module, Scope
from backend_caps.engines.source.returns import returns


@dataclass(frozen=True)
class Answer:
    """What one class says under a name: the value of an attribute, or what a method returns.

    It has no slots: the texts are written once for all classes that inherit what it says.
    """

    owner: ClassDef
    """The class whose body says it."""
    name: str
    line: int
    cases: tuple[Case, ...]
    """Each value, and when it holds."""
    function: Function | None
    """The method, where it is one."""

    @property
    def at(self) -> str:
        """`file:line`."""
        return f"{self.owner.module.path}:{self.line}"

    @property
    def only(self) -> ast.expr | None:
        """The value, where there is one and it always holds."""
        match self.cases:
            case [Case(value=value, guards=())]:
                return value
        return None

    @property
    def argument(self) -> str | None:
        """The method's first argument after `cls` or `self`."""
        match self.function:
            case ast.FunctionDef(args=ast.arguments(args=[_, ast.arg(arg=name), *_])):
                return name
        return None

    @cached_property
    def text(self) -> str:
        """What it says, in the source's words, without the conditions."""
        values = dict.fromkeys(ast.unparse(case.value) for case in self.cases)
        return f"{self._verb} {' or '.join(values) or 'nothing'}"

    @cached_property
    def text_in_full(self) -> str:
        """What it says, in the source's words, each value with its condition."""
        return f"{self._verb} {'; else '.join(_in_turn(self.cases)) or 'nothing'}"

    @property
    def _verb(self) -> str:
        return f"{self.name} =" if self.function is None else f"{self.name}() returns"

    @property
    def scopes(self) -> tuple[Scope, ...]:
        """What the functions around the values bind, innermost first."""
        module = self.owner.module
        return tuple(module.scope_of(function.body) for function in self._around)

    @property
    def local_names(self) -> frozenset[str]:
        """Every name that the functions around the values bind."""
        return frozenset(name for function in self._around for name in _names_bound(function))

    @property
    def _around(self) -> tuple[Function, ...]:
        return (*(() if self.function is None else (self.function,)), *self.owner.functions)


class Lookup:
    """Finds what classes say, each class body read once."""

    def __init__(self, classes: Classes, roots: Collection[ClassDef]) -> None:
        """Take the roots of the families: what they say are defaults, nobody's statements."""
        self.roots = frozenset(roots)
        self._classes = classes
        self._bodies: dict[ClassDef, dict[str, list[Guarded]]] = {}
        self._modules: dict[Module, dict[str, list[tuple[str, Guarded]]]] = {}
        self._below_roots: dict[ClassDef, list[ClassDef]] = {}
        self._answers: dict[tuple[ClassDef, str], Answer] = {}

    def nearest(
        self, definition: ClassDef, name: str, *, after: ClassDef | None = None
    ) -> Answer | None:
        """Find what a class says, or its nearest base that says anything, a root too.

        Args:
            definition: the class.
            name: of an attribute or a method.
            after: the class in whose method `super()` stands, if it does.
        """
        order = self._classes.ancestors(definition)
        return self._first(order[0 if after is None else order.index(after) + 1 :], name)

    def below_root(self, definition: ClassDef, name: str) -> Answer | None:
        """Find what a class or a base says; nothing where only a root does."""
        if definition not in self._below_roots:
            order = self._classes.ancestors(definition)
            self._below_roots[definition] = [each for each in order if each not in self.roots]
        return self._first(self._below_roots[definition], name)

    def _first(self, order: Iterable[ClassDef], name: str) -> Answer | None:
        for owner in order:
            if statements := self._body(owner).get(name):
                if (owner, name) not in self._answers:
                    self._answers[owner, name] = _answer(owner, name, statements)
                return self._answers[owner, name]
        return None

    def names_of(self, definition: ClassDef) -> dict[str, bool]:
        """List the names that a class's own body binds, and which of them are methods."""
        body = self._body(definition)
        return {name: isinstance(said[-1].node, ast.FunctionDef) for name, said in body.items()}

    def _body(self, definition: ClassDef) -> dict[str, list[Guarded]]:
        if definition not in self._bodies:
            found: dict[str, list[Guarded]] = {}
            for statement in guarded(definition.node.body):
                for name in _bound(statement.node):
                    found.setdefault(name, []).append(statement)
            for name, statement in self._patches(definition.module).get(definition.path, ()):
                found.setdefault(name, []).append(statement)
            self._bodies[definition] = found
        return self._bodies[definition]

    def _patches(self, module: Module) -> dict[str, list[tuple[str, Guarded]]]:
        """List what a module gives its classes after their bodies, by the path of the class."""
        if module not in self._modules:
            found: dict[str, list[tuple[str, Guarded]]] = {}
            for statement in guarded(module.tree.body):
                for owner, name in _patched(statement.node):
                    path = f"{module.name}.{owner}"
                    found.setdefault(path, []).append((name, statement))
            self._modules[module] = found
        return self._modules[module]


def _bound(node: ast.stmt) -> list[str]:
    match node:
        case ast.Assign(targets=targets):
            return [target.id for target in targets if isinstance(target, ast.Name)]
        case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr()):
            return [name]
        case ast.FunctionDef(name=name):
            return [name]
    return []


def _patched(node: ast.stmt) -> list[tuple[str, str]]:
    match node:
        case ast.Assign(targets=targets):
            return [
                (owner, name)
                for target in targets
                for owner, _, name in [ast.unparse(target).rpartition(".")]
                if isinstance(target, ast.Attribute)
            ]
    return []


def _answer(owner: ClassDef, name: str, statements: Sequence[Guarded]) -> Answer:
    """Take what stands: the last statement that always runs, and those after it."""
    always = [number for number, each in enumerate(statements) if not each.guards]
    standing = statements[always[-1] :] if always else statements
    last = standing[-1].node
    return Answer(
        owner=owner,
        name=name,
        line=last.lineno,
        cases=tuple(case for statement in standing for case in _cases(statement)),
        function=last if isinstance(last, ast.FunctionDef) else None,
    )


def _cases(statement: Guarded) -> list[Case]:
    match statement.node:
        case ast.Assign(value=value) | ast.AnnAssign(value=ast.expr() as value):
            return branches(value, statement.guards)
    assert isinstance(statement.node, ast.FunctionDef), "only these bind a name, as _bound says"
    found = returns(statement.node)
    return [Case(case.value, (*statement.guards, *case.guards)) for case in found]


def _in_turn(cases: Iterable[Case]) -> Iterator[str]:
    """Write cases of which the first that holds counts: what has failed is not said again."""
    failed: set[str] = set()
    spelled: dict[int, tuple[str, str]] = {}
    for case in cases:
        for guard in case.guards:
            if id(guard) not in spelled:  # cases share the guards of the branches around them
                spelled[id(guard)] = ast.unparse(guard), ast.unparse(negated(guard))
        when = condition(guard for guard in case.guards if spelled[id(guard)][0] not in failed)
        yield f"{ast.unparse(case.value)} where {when}" if when else ast.unparse(case.value)
        failed.update(spelled[id(guard)][1] for guard in case.guards)


def _names_bound(function: Function) -> Iterator[str]:
    for node in ast.walk(function):
        match node:
            case ast.arg(arg=name) | ast.Name(id=name, ctx=ast.Store()):
                yield name
