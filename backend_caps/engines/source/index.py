"""Find and follow names in a tree of files: only what is asked for is parsed."""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from backend_caps.capability.status import Problem
from backend_caps.engines import problems
from backend_caps.engines.source.guards import Guards, negated
from backend_caps.engines.source.module import Assigned, ClassDef, Function, Import, Module, Scope
from backend_caps.engines.source.tree import Tree

_HEAD = re.compile(rb"class[ \t]+(\w+)[ \t]*\(([^)]*)\)")
_INNER = re.compile(rb"class[ \t]+\w")
_LAST_WORD = re.compile(rb"(\w+)[ \t\r\n]*(?:\[|$)")
_NEVER_RENAMED = frozenset(
    {"ABC", "BaseModel", "Enum", "Exception", "IntEnum", "Module", "NamedTuple", "Protocol", "str"}
)
"""The bases that most classes outside the tree's own have; no file renames them."""
_PARSE_ERRORS = (SyntaxError, ValueError, RecursionError, MemoryError)


@dataclass(frozen=True, slots=True)
class FunctionDef:
    """A function, and the file it stands in."""

    module: Module
    node: Function

    @property
    def at(self) -> str:
        """`file:line`."""
        return self.module.at(self.node)


@dataclass(frozen=True, slots=True)
class External:
    """What is not in the tree, by its dotted name."""

    path: str


@dataclass(frozen=True, slots=True)
class Value:
    """An expression that a name stands for, and the file it stands in."""

    module: Module
    node: ast.expr


Target = ClassDef | FunctionDef | External | Value | Module
Targets = list[tuple[Guards, Target]]


class Index:
    """A tree whose files are parsed on demand, each once."""

    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        self._modules: dict[str, Module | None] = {}
        self._problems: dict[Problem, None] = dict.fromkeys(tree.problems)

    @property
    def problems(self) -> tuple[Problem, ...]:
        """What could not be read or followed so far, each once."""
        return tuple(self._problems)

    @property
    def num_parsed(self) -> int:
        """The files that were parsed so far."""
        return sum(module is not None for module in self._modules.values())

    def close(self) -> None:
        """Let go of what was parsed: modules and classes hold each other, and are large."""
        for module in self._modules.values():
            if module is not None:
                module.close()
        self._modules.clear()

    def tell(self, problem: Problem) -> None:
        """Keep a problem that was met."""
        self._problems.setdefault(problem)

    @cached_property
    def _paths(self) -> Mapping[str, str]:
        """The file of each module name."""
        return {_module_name(path): path for path in self.tree.files}

    @cached_property
    def _heads(self) -> Mapping[str, list[tuple[str, frozenset[str]]]]:
        """By file, the class statements as the text has them: each name, with its bases'."""
        found = {}
        for path, text in self.tree.files.items():
            if heads := _HEAD.findall(text):
                found[path] = [(name.decode(), _base_names(bases)) for name, bases in heads]
        return found

    def module(self, name: str) -> Module | None:
        """Parse the module of a dotted name; None where the tree has none, or it is broken."""
        path = self._paths.get(name)
        return None if path is None else self.parse(path)

    def parse(self, path: str) -> Module | None:
        """Parse a file; None, and a problem, where it cannot be parsed."""
        if path not in self._modules:
            self._modules[path] = self._parsed(path)
        return self._modules[path]

    def _parsed(self, path: str) -> Module | None:
        text = self.tree.files[path]
        try:
            tree = ast.parse(text)
        except _PARSE_ERRORS as error:
            lost = [name for name, _ in self._heads.get(path, ())]
            self.tell(problems.unparsed(path, f"{type(error).__name__}: {error}", lost))
            return None
        lines = [line for line, before in _lines_of(text, _INNER) if before.isspace()]
        is_package = path.endswith("/__init__.py")
        return Module(_module_name(path), path, tree, is_package, lines)

    def containing(self, *texts: bytes) -> list[str]:
        """List the files whose text has one of these."""
        found = (p for p, text in self.tree.files.items() if any(each in text for each in texts))
        return sorted(found)

    def files_of_descendants(self, roots: Collection[str]) -> list[str]:
        """List the files whose text has a class below one of these names, at any distance."""
        names = self.names_below(roots)
        return sorted(p for p, heads in self._heads.items() if any(n in names for n, _ in heads))

    def names_below(self, roots: Collection[str]) -> frozenset[str]:
        """List the names of the classes that the text puts below some, those included."""
        names = set(roots)
        fresh = list(roots)
        while fresh:
            below = {name for base in fresh for name in self._below.get(base, ())}
            fresh = sorted(below - names)
            names |= below
        return frozenset(names)

    @cached_property
    def _below(self) -> Mapping[str, list[str]]:
        """By name of a base, the classes that the text puts directly below it."""
        known = frozenset(name for heads in self._heads.values() for name, _ in heads)
        below: dict[str, list[str]] = {}
        for path, heads in self._heads.items():
            for name, bases in heads:
                for base in bases:
                    real = base if base in known else self._renamed(path, base)
                    below.setdefault(real, []).append(name)
        return below

    def _renamed(self, path: str, name: str) -> str:
        """Return what a file imports as `name`, by its text."""
        if name in _NEVER_RENAMED:
            return name
        text = self.tree.files[path]
        alias = b" as " + name.encode()
        found = re.search(rb"(\w+)" + re.escape(alias) + rb"\b", text) if alias in text else None
        return found[1].decode() if found else name

    def resolve(self, expression: ast.expr, module: Module, local: Iterable[Scope] = ()) -> Targets:
        """Say what an expression names; what only running code knows comes as its expression.

        Args:
            expression: a name, or names joined by dots.
            module: the file it stands in.
            local: what the functions around it bind, innermost first.
        """
        return list(self._resolved(expression, module, tuple(local), ()))

    def _resolved(
        self, expression: ast.expr, module: Module, local: tuple[Scope, ...], trail: tuple[str, ...]
    ) -> Iterator[tuple[Guards, Target]]:
        match expression:
            case ast.Name(id=name):
                scope = next((own for own in local if name in own), None)
                if scope is None:
                    yield from self._named(name, module, trail)
                    return
                for guards, meaning in scope[name]:
                    found = self._meant(meaning, name, module, local, trail)
                    yield from ((guards + more, target) for more, target in found)
            case ast.Attribute(value=value, attr=attribute):
                for guards, owner in self._resolved(value, module, local, trail):
                    found = self._attribute(owner, attribute, expression, module, trail)
                    yield from ((guards + more, target) for more, target in found)
            case ast.Subscript(value=value):
                yield from self._resolved(value, module, local, trail)
            case ast.IfExp(test=test, body=then, orelse=orelse):
                for guard, branch in ((test, then), (negated(test), orelse)):
                    for guards, target in self._resolved(branch, module, local, trail):
                        yield (guard, *guards), target
            case _:
                yield (), Value(module, expression)

    def _named(
        self, name: str, module: Module, trail: tuple[str, ...]
    ) -> Iterator[tuple[Guards, Target]]:
        """Follow a name of a module to where it comes from."""
        step = f"{module.name}.{name}"
        if step in trail:
            circle = [each.rpartition(".")[0] for each in (*trail[trail.index(step) :], step)]
            self.tell(problems.import_circle(module.path, name, circle))
            return
        if name in module.scope:
            for guards, meaning in module.scope[name]:
                found = self._meant(meaning, name, module, (), (*trail, step))
                yield from ((guards + more, target) for more, target in found)
        elif hasattr(builtins, name):
            yield (), External(f"builtins.{name}")
        else:
            yield from self._starred(name, module, (*trail, step))

    def _starred(
        self, name: str, module: Module, trail: tuple[str, ...]
    ) -> Iterator[tuple[Guards, Target]]:
        for star in module.stars:
            other = self.module(star)
            if other is None:
                self.tell(problems.star_import(module.path, name, star))
            elif found := list(self._named(name, other, trail)):
                yield from found
                return

    def _meant(
        self,
        meaning: Import | Assigned | ClassDef | Function,
        name: str,
        module: Module,
        local: tuple[Scope, ...],
        trail: tuple[str, ...],
    ) -> Iterator[tuple[Guards, Target]]:
        match meaning:
            case ClassDef():
                yield (), meaning
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                yield (), FunctionDef(module, meaning)
            case Assigned(value=value):
                if _mentions(value, name):
                    yield (), Value(module, value)
                else:
                    yield from self._resolved(value, module, local, trail)
            case Import(module=source, attribute=None):
                yield (), self.module(source) or External(source)
            case Import(module=source, attribute=str(attribute)):
                yield from self._imported(source, attribute, trail)

    def _imported(
        self, source: str, attribute: str, trail: tuple[str, ...]
    ) -> Iterator[tuple[Guards, Target]]:
        whole = f"{source}.{attribute}"
        module = self.module(source)
        found = [] if module is None else list(self._named(attribute, module, trail))
        if found:
            yield from found
        else:
            yield (), self.module(whole) or External(whole)

    def _attribute(
        self,
        owner: Target,
        attribute: str,
        expression: ast.expr,
        module: Module,
        trail: tuple[str, ...],
    ) -> Iterator[tuple[Guards, Target]]:
        match owner:
            case Module():
                found = list(self._named(attribute, owner, trail))
                whole = f"{owner.name}.{attribute}"
                yield from found or [((), self.module(whole) or External(whole))]
            case External(path=path):
                yield (), External(f"{path}.{attribute}")
            case _:
                yield (), Value(module, expression)


def _lines_of(text: bytes, pattern: re.Pattern[bytes]) -> Iterator[tuple[int, bytes]]:
    """List the lines on which a pattern is found, each with what stands before it there."""
    number, past = 1, 0
    for match in pattern.finditer(text):
        number += text.count(b"\n", past, match.start())
        past = match.start()
        yield number, text[text.rfind(b"\n", 0, past) + 1 : past]


def _module_name(path: str) -> str:
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def _base_names(bases: bytes) -> frozenset[str]:
    """List the last words of the bases that a class statement's text has."""
    words = (_LAST_WORD.search(base.strip()) for base in bases.split(b","))
    return frozenset(word[1].decode() for word in words if word)


def _mentions(value: ast.expr, name: str) -> bool:
    return any(isinstance(node, ast.Name) and node.id == name for node in ast.walk(value))
