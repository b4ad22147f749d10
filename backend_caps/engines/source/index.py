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
from backend_caps.engines.source.heads import Heads
from backend_caps.engines.source.module import (
    Assigned,
    ClassDef,
    Function,
    Import,
    Meaning,
    Module,
    Scope,
    mentions,
)
from backend_caps.engines.source.parsing import UnparsedError, parsed
from backend_caps.engines.source.tree import Tree

_INNER = re.compile(rb"class[ \t]+\w")
_FARTHEST = 4096
"""As far is read back to the start of a line."""
_LONGEST_TRAIL = 60
"""As many names are followed one into another; each takes several places on Python's stack."""
_MOST_STEPS = 2000
"""As many names are followed for one expression, on all the ways that conditions open."""


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
        self._heads = Heads(tree.files)
        self._modules: dict[str, Module | None] = {}
        self._problems: dict[Problem, None] = dict.fromkeys(tree.problems)
        self._num_steps = 0

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
        """The file of each module name; of a package and a module, the package."""
        files = sorted(self.tree.files, key=lambda path: path.endswith("/__init__.py"))
        return {_module_name(path): path for path in files}

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
            tree = parsed(text)
        except UnparsedError as error:
            lost = {head.name for head in self._heads.by_file.get(path, ())}
            self.tell(problems.unparsed(path, str(error), lost))
            return None
        lines = [line for line, before in lines_of(text, _INNER) if before.isspace()]
        is_package = path.endswith("/__init__.py")
        return Module(_module_name(path), path, tree, is_package, lines)

    def containing(self, *texts: bytes) -> list[str]:
        """List the files whose text has one of these."""
        files = self.tree.files.items()
        return sorted({path for each in texts for path, text in files if each in text})

    def files_of_descendants(self, roots: Collection[str]) -> list[str]:
        """List the files whose text has a class below one of these names, at any distance."""
        return self._heads.files_below(roots)

    def names_below(self, roots: Collection[str]) -> frozenset[str]:
        """List the names of the classes that the text puts below some, those included."""
        return self._heads.names_below(roots)

    def resolve(self, expression: ast.expr, module: Module, local: Iterable[Scope] = ()) -> Targets:
        """Say what an expression names; what only running code knows comes as its expression.

        Args:
            expression: a name, or names joined by dots.
            module: the file it stands in.
            local: what the functions around it bind, innermost first.
        """
        self._num_steps = 0
        return list(self._resolved(expression, module, tuple(local), ()))

    def _resolved(
        self, expression: ast.expr, module: Module, local: tuple[Scope, ...], trail: tuple[str, ...]
    ) -> Iterator[tuple[Guards, Target]]:
        match expression:
            case ast.Name(id=name):
                scope = next((own for own in local if name in own), None)
                step = f"{module.name}:{name}"
                if scope is None:
                    yield from self._named(name, module, trail)
                elif step in trail:
                    yield (), Value(module, expression)
                else:
                    yield from self._of_meanings(scope[name], name, module, local, (*trail, step))
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
        self._num_steps += 1
        if len(trail) > _LONGEST_TRAIL or self._num_steps > _MOST_STEPS:
            yield (), Value(module, ast.Name(id=name, ctx=ast.Load()))
        elif step in trail:
            steps = (each for each in (*trail[trail.index(step) :], step) if ":" not in each)
            circle = [each.rpartition(".")[0] for each in steps]
            self.tell(problems.import_circle(module.path, name, circle))
        elif name in module.scope:
            yield from self._of_meanings(module.scope[name], name, module, (), (*trail, step))
        elif hasattr(builtins, name):
            yield (), External(f"builtins.{name}")
        else:
            yield from self._starred(name, module, (*trail, step))

    def _starred(
        self, name: str, module: Module, trail: tuple[str, ...]
    ) -> Iterator[tuple[Guards, Target]]:
        for star in reversed(module.stars):
            other = self.module(star)
            if other is None:
                self.tell(problems.star_import(module.path, name, star))
            elif f"{star}.{name}" in trail:
                continue
            elif found := list(self._named(name, other, trail)):
                yield from found
                return

    def _of_meanings(
        self,
        meanings: Iterable[tuple[Guards, Meaning]],
        name: str,
        module: Module,
        local: tuple[Scope, ...],
        trail: tuple[str, ...],
    ) -> Iterator[tuple[Guards, Target]]:
        for guards, meaning in meanings:
            for more, target in self._meant(meaning, name, module, local, trail):
                yield guards + more, target

    def _meant(
        self,
        meaning: Meaning,
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
                if mentions(value, name):
                    yield (), Value(module, value)
                else:
                    yield from self._resolved(value, module, local, trail)
            case Import(module=source, attribute=str(attribute)):
                yield from self._imported(source, attribute, trail)
            case _:
                yield (), self.module(meaning.module) or External(meaning.module)

    def _imported(
        self, source: str, attribute: str, trail: tuple[str, ...]
    ) -> Iterator[tuple[Guards, Target]]:
        whole = f"{source}.{attribute}"
        module = self.module(source)
        is_own_part = whole in trail and whole in self._paths
        if module is not None and not is_own_part:
            found = list(self._named(attribute, module, trail))
            if found:
                yield from found
                return
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
                whole = f"{path}.{attribute}"
                yield (), self.module(whole) or External(whole)
            case _:
                yield (), Value(module, expression)


def lines_of(text: bytes, pattern: re.Pattern[bytes]) -> Iterator[tuple[int, bytes]]:
    """List the lines on which a pattern is found, each with what stands before it there."""
    number, past = 1, 0
    for match in pattern.finditer(text):
        number += text.count(b"\n", past, match.start())
        past = match.start()
        nearest = max(past - _FARTHEST, 0)
        start = max(text.rfind(b"\n", nearest, past) + 1, nearest)
        yield number, text[start:past]


def _module_name(path: str) -> str:
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
