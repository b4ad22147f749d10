"""Find and follow names in a tree of files: only what is asked for is parsed."""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from backend_caps.capability.status import Problem
from backend_caps.engines import problems
from backend_caps.engines.source.guards import Guards, negated
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

_HEAD = re.compile(
    rb"class[ \t]+([\w\x80-\xff]+)[ \t]*(?:\[[^\]\n]*\][ \t]*)?\(([^()#]{0,4096})([()#])"
)
_IN_BASES = re.compile(rb"#[^\n]*|[()]|[^()#]+")
_INNER = re.compile(rb"class[ \t]+\w")
_WORD = re.compile(rb"[\w\x80-\xff]+")
_FARTHEST = 4096
"""As far is read for the end of a class statement's bases, or back to the start of its line."""
_LONGEST_TRAIL = 60
"""As many names are followed one into another; each takes several places on Python's stack."""
_MOST_STEPS = 2000
"""As many names are followed for one expression, on all the ways that conditions open."""
_NEVER_RENAMED = frozenset(
    {"ABC", "BaseModel", "Enum", "Exception", "IntEnum", "Module", "NamedTuple", "Protocol", "str"}
)
"""The bases that most classes outside the tree's own have; no file renames them."""


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


class _Head(NamedTuple):
    """A class statement, as the text has it."""

    name: str
    bases: frozenset[str]
    """The last words of its bases."""
    at: int
    """Where it begins in the text."""


class Index:
    """A tree whose files are parsed on demand, each once."""

    def __init__(self, tree: Tree) -> None:
        self.tree = tree
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

    @cached_property
    def _heads(self) -> Mapping[str, list[_Head]]:
        """By file, the class statements as the text has them."""
        found = {path: list(_heads_of(text)) for path, text in self.tree.files.items()}
        return {path: heads for path, heads in found.items() if heads}

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
            lost = {head.name for head in self._heads.get(path, ())}
            self.tell(problems.unparsed(path, str(error), lost))
            return None
        lines = [line for line, before in lines_of(text, _INNER) if before.isspace()]
        is_package = path.endswith("/__init__.py")
        return Module(_module_name(path), path, tree, is_package, lines)

    def containing(self, *texts: bytes) -> list[str]:
        """List the files whose text has one of these."""
        found = (p for p, text in self.tree.files.items() if any(each in text for each in texts))
        return sorted(found)

    def files_of_descendants(self, roots: Collection[str]) -> list[str]:
        """List the files whose text has a class below one of these names, at any distance."""
        names = self.names_below(roots)
        return sorted(p for p, heads in self._heads.items() if any(h.name in names for h in heads))

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
        known = frozenset(head.name for heads in self._heads.values() for head in heads)
        below: dict[str, list[str]] = {}
        for path, heads in self._heads.items():
            by_base: dict[str, list[str]] = {}
            until: dict[str, int] = {}
            for head in heads:
                for base in head.bases:
                    by_base.setdefault(base, []).append(head.name)
                    until.setdefault(base, head.at)
            for base, names in by_base.items():
                renamed = self._renamed(path, base, until[base], is_class=base in known)
                for real in (base, *renamed):
                    below.setdefault(real, []).extend(names)
        return below

    def _renamed(self, path: str, name: str, until: int, *, is_class: bool) -> list[str]:
        """List what a file calls `name` before a place in it, by its text."""
        if name in _NEVER_RENAMED:
            return []
        text, word = self.tree.files[path], name.encode()
        found: list[bytes] = []
        if text.find(b" as " + word, 0, until) >= 0:
            found += re.findall(rb"(\w{1,200}) as " + re.escape(word) + rb"\b", text)
        if not is_class and text.find(word + b" = ", 0, until) >= 0:
            found += re.findall(rb"\b" + re.escape(word) + rb" = (?:\w+\.)*(\w+)", text)
        return [each.decode() for each in found]

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
            case Import(module=source, attribute=None):
                yield (), self.module(source) or External(source)
            case Import(module=source, attribute=str(attribute)):
                yield from self._imported(source, attribute, trail)

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


def _heads_of(text: bytes) -> Iterator[_Head]:
    for match in _HEAD.finditer(text):
        name, bases, end = match.groups()
        if end != b")":
            bases += _rest_of_bases(text, match.start(3))
        yield _Head(name.decode(errors="replace"), _base_names(bases), match.start())


def _rest_of_bases(text: bytes, start: int) -> bytes:
    """Read on to where the bases end, comments aside; what a call among them takes are bases."""
    found, depth = [], 1
    for token in _IN_BASES.findall(text, start, start + _FARTHEST):
        depth += {b"(": 1, b")": -1}.get(token, 0)
        if not depth:
            break
        if not token.startswith(b"#"):
            found.append(b"," if token in b"()" else token)
    return b"".join(found)


def _base_names(bases: bytes) -> frozenset[str]:
    """List the last words of the bases that a class statement's text has."""
    return frozenset(word for base in bases.split(b",") if (word := _last_word(base)))


def _last_word(base: bytes) -> str:
    """Read a base from its end, so that no text makes it slow."""
    word = _WORD.match(base.partition(b"[")[0].rstrip()[::-1])
    return word[0][::-1].decode(errors="replace") if word else ""
