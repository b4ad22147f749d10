"""One parsed file: what its names mean, without running it."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import accumulate, pairwise
from typing import TypeVar

from backend_caps.engines.source.guards import (
    Case,
    Function,
    Guarded,
    Guards,
    branches,
    guarded,
    negated,
    returns,
    spans,
    where,
)

_IN_PLACE: dict[type[ast.operator], bool] = {ast.BitOr: True, ast.BitAnd: False}
"""The value that `|=` and `&=` give where their right side holds, or does not."""
_SIGNS: dict[type[ast.operator], str] = {ast.BitOr: "|", ast.BitAnd: "&"}
_Item = TypeVar("_Item")


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
    def body(self) -> Sequence[Guarded]:
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
    def alternatives(self) -> Mapping[str, Sequence[tuple[Guards, Function]]]:
        """The methods that it may have by each name: the last that always is, and those after."""
        found = grouped(
            (each.name, (each.guards, each.value))
            for each in self.given
            if isinstance(each.value, Function)
        )
        return {name: standing(own, lambda one: not one[0]) for name, own in found.items()}

    @cached_property
    def methods(self) -> Mapping[str, Function]:
        """The methods that its own body defines; of several of a name, the last."""
        return {name: found[-1][1] for name, found in self.alternatives.items()}


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
        """The statement as the source has it, with its condition."""
        if not isinstance(self.value, ast.expr):
            return where(f"def {self.name}", self.guards)
        sign = "=" if self.operator is None else f"{_SIGNS.get(self.operator, '?')}="
        return where(f"{self.name} {sign} {ast.unparse(self.value)}", self.guards)

    @property
    def is_certain(self) -> bool:
        """Whether it always runs, and leaves nothing of what the name had."""
        return not self.guards and self.operator is None

    @property
    def cases(self) -> list[Case]:
        """Its values, and when they hold; of a method or a property, what it returns.

        `|=` is a case in which the value is true, `&=` one in which it is false; the branches of
        a conditional expression are cases of their own.
        """
        if isinstance(self.value, Function):
            return [Case(case.value, self.guards + case.guards) for case in returns(self.value)]
        if self.operator is None:
            return branches(self.value, self.guards)
        value = _IN_PLACE.get(self.operator)
        if value is None:
            return []
        held = self.value if value else negated(self.value)
        return branches(ast.Constant(value=value), (*self.guards, held))


def statements(owner: ClassDef, body: Iterable[Guarded], of: str = "") -> Iterator[Statement]:
    """List what a class is given by statements: by plain names, or by attributes `of` a name."""
    for each in body:
        for target, value, operator in bound(each.node):
            holder, name = attribute(target)
            if holder == of:
                yield Statement(name, owner, value, each.guards, each.node.lineno, operator)


def by_name(found: Iterable[Statement]) -> Mapping[str, list[Statement]]:
    """Sort statements by what they give a value."""
    return grouped((each.name, each) for each in found)


def grouped(pairs: Iterable[tuple[str, _Item]]) -> dict[str, list[_Item]]:
    """List under each name what comes with it."""
    found: dict[str, list[_Item]] = {}
    for name, item in pairs:
        found.setdefault(name, []).append(item)
    return found


def standing(items: Iterable[_Item], is_certain: Callable[[_Item], bool]) -> list[_Item]:
    """List what is left of what a name is given: the last that is certain, and those after it."""
    left: list[_Item] = []
    for each in items:
        if is_certain(each):
            left = []
        left.append(each)
    return left


_Bound = tuple[ast.expr, ast.expr | Function, type[ast.operator] | None]


def bound(node: ast.AST) -> Iterator[_Bound]:
    """List the targets that a statement gives a value, and by which operator, if by one."""
    match node:
        case ast.Assign(targets=targets, value=value):
            yield from ((*pair, None) for each in targets for pair in _unpacked(each, value))
        case ast.AnnAssign(target=target, value=ast.expr() as value):
            yield target, value, None
        case ast.AugAssign(target=target, op=operator, value=value):
            yield target, value, type(operator)
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) if not _is_setter(node):
            yield ast.Name(id=name, ctx=ast.Store()), node, None


def attribute(target: ast.expr) -> tuple[str, str]:
    """Read `self` and `x` of `self.x`; a plain name is an attribute of nothing."""
    match target:
        case ast.Name(id=name):
            return "", name
        case ast.Attribute(value=value, attr=name):
            return ast.unparse(value), name
    return ast.unparse(target), ""


def _is_setter(function: Function) -> bool:
    """Return whether a function sets or deletes the property that has its name."""
    return any(
        isinstance(each, ast.Attribute) and each.attr in {"setter", "deleter"}
        for each in function.decorator_list
    )


@dataclass(frozen=True, slots=True)
class Import:
    """A name that comes from another module, or is one."""

    module: str
    attribute: str | None
    """None where the name is the module itself."""
    lineno: int = 0


Meaning = Import | ast.expr | ClassDef | Function
Meanings = Sequence[tuple[Guards, Meaning]]
Scope = Mapping[str, Meanings]
"""What each name may mean, and under which conditions."""


def mentions(value: ast.expr, name: str) -> bool:
    """Return whether a value is made from what a name stands for."""
    return any(isinstance(node, ast.Name) and node.id == name for node in ast.walk(value))


def _left(scope: Scope) -> Scope:
    """List what is left of each name's meanings once they have all run.

    What is made of the name itself, such as `A = decorated(A)`, leaves the earlier ones standing.
    """

    def replaces(name: str, one: tuple[Guards, Meaning]) -> bool:
        guards, meaning = one
        return not guards and not (isinstance(meaning, ast.expr) and mentions(meaning, name))

    return {name: standing(own, partial(replaces, name)) for name, own in scope.items() if own}


def _unpacked(target: ast.expr, value: ast.expr) -> Iterator[tuple[ast.expr, ast.expr]]:
    match target, value:
        case ast.Tuple(elts=targets) | ast.List(elts=targets), ast.Tuple(elts=values) | ast.List(
            elts=values
        ) if len(targets) == len(values) and not any(
            isinstance(each, ast.Starred) for each in [*targets, *values]
        ):
            for one, own in zip(targets, values, strict=True):
                yield from _unpacked(one, own)
        case ast.Tuple(elts=targets) | ast.List(elts=targets), _:
            for at, one in enumerate(targets):
                place = ast.copy_location(ast.Constant(value=at), value)
                item = ast.Subscript(value=value, slice=place, ctx=ast.Load())
                inner = one.value if isinstance(one, ast.Starred) else one
                yield from _unpacked(inner, ast.copy_location(item, value))
        case _:
            yield target, value


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
    def body(self) -> Sequence[Guarded]:
        """Its statements, each with its guards."""
        return guarded(self.tree.body)

    def at(self, node: ast.stmt | ast.expr) -> str:
        """Return the place of a node, as `file:line`."""
        return f"{self.path}:{node.lineno}"

    @cached_property
    def stars(self) -> list[str]:
        """The modules whose every name is imported."""
        return [
            self.absolute(statement.node)
            for statement in self.body
            if isinstance(statement.node, ast.ImportFrom)
            and any(alias.name == "*" for alias in statement.node.names)
        ]

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
        given = {name: [((), ast.Name(id=name, ctx=ast.Load()))] for name in taken}
        return {**given, **self.scope_of(function.body)}

    def scope_before(self, line: int, names: Collection[str]) -> Scope:
        """Return the meanings of some module names when control comes to a line."""
        own = {name: self.bound.get(name, ()) for name in names}
        return _left(
            {name: [one for one in every if one[1].lineno < line] for name, every in own.items()}
        )

    def _bindings(self, body: Iterable[Guarded]) -> Scope:
        return grouped(
            (name, (each.guards, meaning))
            for each in body
            for name, meaning in self._bound(each.node)
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
        body: Iterable[Guarded],
        around: Guards,
        outer: str,
        functions: tuple[Function, ...] = (),
    ) -> Iterator[ClassDef]:
        """List class statements, also in functions and classes."""
        for statement in body:
            guards = around + statement.guards
            match statement.node:
                case ast.ClassDef(name=name) as node:
                    own = ClassDef(self, node, guards, outer, functions)
                    yield own
                    yield from self._classes(own.body, guards, f"{outer}{name}.", functions)
                case (
                    ast.FunctionDef(name=name, body=inner)
                    | ast.AsyncFunctionDef(name=name, body=inner)
                ) as node if spans(node, self.lines(["class"])):
                    within = (node, *functions)
                    yield from self._classes(guarded(inner), guards, f"{outer}{name}.", within)
