"""One parsed file: what its names mean, without running it."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import accumulate, pairwise

from backend_caps.engines.source.guards import Function, Guarded, Guards, grouped, guarded, spans
from backend_caps.engines.source.statements import Statement, bound, by_name, standing, statements


@dataclass(frozen=True, eq=False)
class ClassDef:
    """A class statement. It has no slots: what its body has is cached."""

    module: Module
    node: ast.ClassDef
    guards: Guards
    """When the statement runs."""
    outer: str = ""
    """The functions and classes that it stands in, each with a dot."""
    functions: tuple[Function, ...] = ()
    """The functions that it stands in, innermost first."""

    @property
    def name(self) -> str:
        """The class's own name."""
        return self.node.name

    @property
    def path(self) -> str:
        """`package.module.Class`."""
        return f"{self.module.name}.{self.outer}{self.name}"

    @property
    def at(self) -> str:
        """`file:line`."""
        return self.module.at(self.node)

    @property
    def lineno(self) -> int:
        """The line of the statement."""
        return self.node.lineno

    @cached_property
    def body(self) -> Sequence[Guarded[ast.stmt]]:
        """The statements of its body, each with its guards."""
        return guarded(self.node.body)

    @cached_property
    def given(self) -> Sequence[Statement]:
        """What its body gives names."""
        return list(statements(self, self.body))

    @cached_property
    def statements(self) -> Mapping[str, Sequence[Statement]]:
        """The same, by name."""
        return by_name(self.given)

    @cached_property
    def alternatives(self) -> Mapping[str, Sequence[Guarded[Function]]]:
        """The methods that a name may stand for: the last unconditional one, and later ones."""
        methods = grouped(
            (each.name, Guarded(each.guards, each.value))
            for each in self.given
            if isinstance(each.value, Function)
        )
        return {name: standing(each, lambda one: not one.guards) for name, each in methods.items()}

    @cached_property
    def methods(self) -> Mapping[str, Function]:
        """The methods that its own body defines; of several of a name, the last."""
        return {name: found[-1].value for name, found in self.alternatives.items()}


@dataclass(frozen=True, slots=True)
class Import:
    """A name that comes from another module, or is one."""

    module: str
    attribute: str | None
    """None where the name is the module itself."""
    lineno: int = 0


Meaning = Import | ast.expr | ClassDef | Function
Meanings = Sequence[Guarded[Meaning]]
Scope = Mapping[str, Meanings]
"""What each name may mean, and under which conditions."""


def mentions(meaning: Meaning, name: str) -> bool:
    """Return whether a value is made from what a name stands for."""
    nodes = ast.walk(meaning) if isinstance(meaning, ast.expr) else ()
    return any(isinstance(node, ast.Name) and node.id == name for node in nodes)


def _left(scope: Scope) -> Scope:
    """List what is left of each name's meanings once they have all run.

    What is made of the name itself, such as `A = decorated(A)`, leaves the earlier ones standing.
    """

    def replaces(name: str, one: Guarded[Meaning]) -> bool:
        return not one.guards and not mentions(one.value, name)

    return {name: standing(own, partial(replaces, name)) for name, own in scope.items() if own}


@dataclass(eq=False)
class Module:
    """A file of the tree."""

    name: str
    path: str
    tree: ast.Module
    text: bytes
    _lines: dict[frozenset[str], Sequence[int]] = field(default_factory=dict)

    def lines(self, words: Collection[str]) -> Sequence[int]:
        """List the lines of the text that have one of some words, in their order."""
        key = frozenset(words)
        if key not in self._lines:
            sought = "|".join(map(re.escape, sorted(key))).encode()
            starts = [0, *(match.start() for match in re.finditer(sought, self.text))]
            ends = (self.text.count(b"\n", *places) for places in pairwise(starts))
            self._lines[key] = [1 + passed for passed in accumulate(ends)]
        return self._lines[key]

    @cached_property
    def classes(self) -> Sequence[ClassDef]:
        """Every class statement of the file, inner ones too."""
        return list(self._classes(self.body, (), ""))

    @cached_property
    def definitions(self) -> Mapping[ast.ClassDef, ClassDef]:
        """The class of each statement that may run."""
        return {each.node: each for each in self.classes}

    @cached_property
    def body(self) -> Sequence[Guarded[ast.stmt]]:
        """Its statements, each with its guards."""
        return guarded(self.tree.body)

    def at(self, node: ast.stmt | ast.expr) -> str:
        """Return the place of a node, as `file:line`."""
        return f"{self.path}:{node.lineno}"

    @cached_property
    def stars(self) -> list[str]:
        """The modules whose every name is imported."""
        return [star.module for _, star in self.bound.get("*", ()) if isinstance(star, Import)]

    @cached_property
    def bound(self) -> Scope:
        """Everything that the module's own names are bound to, in the order of the text."""
        return self._bindings(self.body)

    @cached_property
    def scope(self) -> Scope:
        """What the module's own names mean once it has run."""
        return _left(self.bound)

    def scope_of(self, body: Sequence[ast.stmt]) -> Scope:
        """Return the meanings of the names that a body binds."""
        return _left(self._bindings(guarded(body)))

    def scope_in(self, function: Function) -> Scope:
        """Return the meanings of names in a function; an argument stands for itself."""
        taken = (node.arg for node in ast.walk(function.args) if isinstance(node, ast.arg))
        given = {name: [Guarded((), ast.Name(id=name, ctx=ast.Load()))] for name in taken}
        return {**given, **self.scope_of(function.body)}

    def scope_before(self, line: int, names: Collection[str]) -> Scope:
        """Return the meanings of some module names when control comes to a line."""
        own = {name: self.bound.get(name, ()) for name in names}
        return _left(
            {name: [one for one in every if one.value.lineno < line] for name, every in own.items()}
        )

    def _bindings(self, body: Iterable[Guarded[ast.stmt]]) -> Scope:
        return grouped(
            (name, Guarded(guards, meaning))
            for guards, node in body
            for name, meaning in self._bound(node)
        )

    def absolute(self, statement: ast.ImportFrom) -> str:
        """Write the module that an import names in full."""
        if not statement.level:
            return statement.module or ""
        parts = self.name.split(".")
        kept = len(parts) - statement.level + self.path.endswith("/__init__.py")
        base = ".".join(parts[: max(kept, 0)])
        return ".".join(part for part in (base, statement.module) if part)

    def _bound(self, node: ast.stmt) -> Iterator[tuple[str, Meaning]]:
        match node:
            case ast.Import() | ast.ImportFrom():
                yield from self._imported(node)
            case ast.ClassDef(name=name) if node in self.definitions:
                yield name, self.definitions[node]
            case _:
                for target, value, operator in bound(node):
                    if isinstance(target, ast.Name) and operator is None:
                        yield target.id, value

    def _imported(self, node: ast.Import | ast.ImportFrom) -> Iterator[tuple[str, Import]]:
        for alias in node.names:
            if isinstance(node, ast.ImportFrom):
                source, name, attribute = self.absolute(node), alias.name, alias.name
            else:
                name, attribute = alias.name.partition(".")[0], None
                source = alias.name if alias.asname else name
            yield alias.asname or name, Import(source, attribute, node.lineno)

    def _classes(
        self,
        body: Iterable[Guarded[ast.stmt]],
        around: Guards,
        outer: str,
        functions: tuple[Function, ...] = (),
    ) -> Iterator[ClassDef]:
        """List class statements, also in functions and classes."""
        for inner_guards, node in body:
            guards = around + inner_guards
            if isinstance(node, ast.ClassDef):
                own = ClassDef(self, node, guards, outer, functions)
                yield own
                yield from self._classes(own.body, guards, f"{outer}{node.name}.", functions)
            elif isinstance(node, Function) and spans(node, self.lines(["class"])):
                inner, within = guarded(node.body), (node, *functions)
                yield from self._classes(inner, guards, f"{outer}{node.name}.", within)
