"""One parsed file: what its names mean, without running it."""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from backend_caps.engines.source.guards import Function, Guarded, Guards, guarded

_DEEPEST = 80
"""As deep may statements and expressions stand in one another; SGLang's and vLLM's have 40.

All that reads them recurses, and Python's stack has 1000 places.
"""
_FARTHEST = 4096
"""As far is read back to the start of a line."""
_LONGEST_LINE = 400
_MOST_BRACKETS = 40
_NO_BRACKETS = bytes(set(range(256)) - set(b"()[]{}"))
_TOO_DEEP = f"it is nested more than {_DEEPEST} deep"
Alternatives = Sequence[tuple[Guards, Function]]
"""The methods that a class may have under a name, and when."""


@dataclass(frozen=True, slots=True, eq=False)
class ClassDef:
    """A class statement."""

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


def methods_of(definition: ClassDef) -> Mapping[str, Function]:
    """List the methods that a class's own body defines; of several of a name, the last."""
    return {name: found[-1][1] for name, found in alternatives_of(definition).items()}


def alternatives_of(definition: ClassDef) -> Mapping[str, Alternatives]:
    """List the methods of each name: the last that always is, and those after it."""
    known = definition.module.alternatives
    if definition.node not in known:
        found: dict[str, list[tuple[Guards, Function]]] = {}
        for statement in definition.module.body_of(definition.node):
            node = statement.node
            if isinstance(node, Function) and not is_setter(node):
                if not statement.guards:
                    found[node.name] = []
                found.setdefault(node.name, []).append((statement.guards, node))
        known[definition.node] = found
    return known[definition.node]


def is_setter(function: Function) -> bool:
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
    line: int = 0


@dataclass(frozen=True, slots=True)
class Assigned:
    """A name that an expression gives its value."""

    value: ast.expr


Meaning = Import | Assigned | ClassDef | Function
Scope = Mapping[str, Sequence[tuple[Guards, Meaning]]]
"""What each name may mean, and under which conditions."""


def mentions(value: ast.expr, name: str) -> bool:
    """Return whether a value is made from what a name stands for."""
    return any(isinstance(node, ast.Name) and node.id == name for node in ast.walk(value))


def _standing(
    name: str, meanings: Sequence[tuple[Guards, Meaning]]
) -> Sequence[tuple[Guards, Meaning]]:
    """List what is left of a name's meanings: the last that it always has, and those after it.

    What is made of the name itself, such as `A = decorated(A)`, leaves the earlier ones standing.
    """
    always = [
        at
        for at, (guards, meaning) in enumerate(meanings)
        if not guards and not (isinstance(meaning, Assigned) and mentions(meaning.value, name))
    ]
    return meanings[always[-1] :] if always else meanings


def _line(meaning: Meaning) -> int:
    match meaning:
        case Import(line=line):
            return line
        case Assigned(value=value):
            return value.lineno
        case ClassDef(node=node):
            return node.lineno
    return meaning.lineno


def assigned(node: ast.Assign | ast.AnnAssign) -> Iterator[tuple[ast.expr, ast.expr]]:
    """List the targets of an assignment with their values: of an unpacked one, its item."""
    value = node.value
    if value is not None:
        for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
            yield from _unpacked(target, value)


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


class UnparsedError(Exception):
    """A text cannot be parsed as Python; the argument is the reason."""


def parsed(text: bytes) -> ast.Module:
    """Parse a text, without the interpreter's warnings.

    Raises:
        UnparsedError: it cannot be parsed, or is nested too deep.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(text)
    except (RecursionError, MemoryError) as error:
        raise UnparsedError(_TOO_DEEP) from error
    except (SyntaxError, ValueError) as error:
        raise UnparsedError(f"{type(error).__name__}: {error}") from error
    if _may_be_deep(text) and _is_deep(tree):
        raise UnparsedError(_TOO_DEEP)
    return tree


def _may_be_deep(text: bytes) -> bool:
    """Return whether a text has what deep nesting is written with; most have not.

    Looking into every tree would take a fifth of the time that parsing does.
    """
    if text.count(b"elif ") > _DEEPEST or text.count(b"\\\n") > _DEEPEST:
        return True
    if max(map(len, text.split(b"\n"))) > _LONGEST_LINE:
        return True
    left = text.translate(None, _NO_BRACKETS)
    for _ in range(_MOST_BRACKETS):
        inner = left.replace(b"()", b"").replace(b"[]", b"").replace(b"{}", b"")
        if inner == left:
            return False
        left = inner
    return True


def _is_deep(tree: ast.Module) -> bool:
    level: list[ast.AST] = [tree]
    for _ in range(_DEEPEST):
        level = [inner for node in level for inner in ast.iter_child_nodes(node)]
        if not level:
            return False
    return True


def lines_of(text: bytes, pattern: re.Pattern[bytes]) -> Iterator[tuple[int, bytes]]:
    """List the lines on which a pattern is found, each with what stands before it there."""
    number, past = 1, 0
    for match in pattern.finditer(text):
        number += text.count(b"\n", past, match.start())
        past = match.start()
        nearest = max(past - _FARTHEST, 0)
        start = max(text.rfind(b"\n", nearest, past) + 1, nearest)
        yield number, text[start:past]


@dataclass(eq=False)
class Module:
    """A file of the tree."""

    name: str
    path: str
    tree: ast.Module
    is_package: bool
    class_lines: Sequence[int] = ()
    """The lines on which the text has the word `class` with an indent before it."""
    classes: list[ClassDef] = field(default_factory=list)
    """Every class statement of the file, inner ones too."""
    alternatives: dict[ast.ClassDef, Mapping[str, Alternatives]] = field(default_factory=dict)
    """The methods of each class, cached by `alternatives_of`."""
    _own: dict[ast.ClassDef, ClassDef] = field(default_factory=dict)
    _bodies: dict[ast.ClassDef, Sequence[Guarded]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.classes = list(self._classes(guarded(self.tree.body), (), ""))
        self._own = {each.node: each for each in self.classes}

    def close(self) -> None:
        """Let go of the classes, which hold the module."""
        self.classes.clear()
        self._own.clear()
        self._bodies.clear()
        self.alternatives.clear()
        for name in ("bound", "by_path", "scope"):
            self.__dict__.pop(name, None)

    def body_of(self, node: ast.ClassDef) -> Sequence[Guarded]:
        """List the statements of a class's body, each with its guards."""
        if node not in self._bodies:
            self._bodies[node] = list(guarded(node.body))
        return self._bodies[node]

    def definition_of(self, node: ast.ClassDef) -> ClassDef | None:
        """Find the class of a statement; None of one that never runs."""
        return self._own.get(node)

    def at(self, node: ast.stmt | ast.expr) -> str:
        """Return the place of a node, as `file:line`."""
        return f"{self.path}:{node.lineno}"

    @cached_property
    def by_path(self) -> Mapping[str, Sequence[ClassDef]]:
        """The class statements of each dotted path."""
        found: dict[str, list[ClassDef]] = {}
        for each in self.classes:
            found.setdefault(each.path, []).append(each)
        return found

    @cached_property
    def stars(self) -> list[str]:
        """The modules whose every name is imported."""
        return [
            self.absolute(statement.node)
            for statement in guarded(self.tree.body)
            if isinstance(statement.node, ast.ImportFrom)
            and any(alias.name == "*" for alias in statement.node.names)
        ]

    @cached_property
    def bound(self) -> Scope:
        """Everything that the module's own names are bound to, in the order of the text."""
        return self._bindings(self.tree.body)

    @cached_property
    def scope(self) -> Scope:
        """What the module's own names mean once it has run."""
        return {name: _standing(name, meanings) for name, meanings in self.bound.items()}

    def scope_of(self, body: Sequence[ast.stmt]) -> Scope:
        """Return the meanings of the names that a body binds."""
        return {name: _standing(name, meanings) for name, meanings in self._bindings(body).items()}

    def scope_in(self, function: Function) -> Scope:
        """Return the meanings of names in a function; an argument stands for itself."""
        taken = (node.arg for node in ast.walk(function.args) if isinstance(node, ast.arg))
        given = {name: [((), Assigned(ast.Name(id=name, ctx=ast.Load())))] for name in taken}
        return {**given, **self.scope_of(function.body)}

    def scope_before(self, line: int, names: Collection[str]) -> Scope:
        """Return the meanings of some module names when control comes to a line."""
        found = {}
        for name in names:
            before = [each for each in self.bound.get(name, ()) if _line(each[1]) < line]
            if before:
                found[name] = _standing(name, before)
        return found

    def _bindings(self, body: Sequence[ast.stmt]) -> Mapping[str, list[tuple[Guards, Meaning]]]:
        found: dict[str, list[tuple[Guards, Meaning]]] = {}
        for statement in guarded(body):
            for name, meaning in self._bound(statement.node):
                found.setdefault(name, []).append((statement.guards, meaning))
        return found

    def absolute(self, statement: ast.ImportFrom) -> str:
        """Write the module that an import names in full."""
        if not statement.level:
            return statement.module or ""
        parts = self.name.split(".")
        kept = len(parts) - statement.level + (1 if self.is_package else 0)
        base = ".".join(parts[: max(kept, 0)])
        return ".".join(part for part in (base, statement.module) if part)

    def _bound(self, node: ast.stmt) -> Iterator[tuple[str, Meaning]]:
        match node:
            case ast.Import() | ast.ImportFrom():
                yield from self._imported(node)
            case ast.ClassDef(name=name) if node in self._own:
                yield name, self._own[node]
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield name, node
            case ast.Assign() | ast.AnnAssign():
                for target, value in assigned(node):
                    if isinstance(target, ast.Name):
                        yield target.id, Assigned(value)

    def _imported(self, node: ast.Import | ast.ImportFrom) -> Iterator[tuple[str, Import]]:
        for alias in node.names:
            if isinstance(node, ast.ImportFrom):
                yield (
                    alias.asname or alias.name,
                    Import(self.absolute(node), alias.name, node.lineno),
                )
            else:
                module = alias.name if alias.asname else alias.name.partition(".")[0]
                yield alias.asname or module, Import(module, None, node.lineno)

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
                    yield ClassDef(self, node, guards, outer, functions)
                    inside = self.body_of(node)
                    yield from self._classes(inside, guards, f"{outer}{name}.", functions)
                case (
                    ast.FunctionDef(name=name, body=inner)
                    | ast.AsyncFunctionDef(name=name, body=inner)
                ) as node if self._has_class(node):
                    within = (node, *functions)
                    own = guarded(inner)
                    yield from self._classes(own, guards, f"{outer}{name}.", within)

    def _has_class(self, node: ast.stmt) -> bool:
        end = node.end_lineno or node.lineno
        return any(node.lineno < line <= end for line in self.class_lines)
