"""Follows names through a tree of files, which are parsed on demand."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from backend_caps.capability.backend import Backend
from backend_caps.capability.provenance import Problem, Source
from backend_caps.engines.reading import EngineReading, LaunchQuery, problem
from backend_caps.engines.source.files import Tree, UnparsedError, parsed
from backend_caps.engines.source.guards import Function, Guarded, as_expression, negated, under
from backend_caps.engines.source.module import (
    ClassDef,
    Heads,
    Import,
    Meanings,
    Module,
    Scope,
    mentions,
)
from backend_caps.resolution.engine import Engine
from backend_caps.resolution.launch import Launch
from backend_caps.resolution.rules import RuleSet

_LONGEST_TRAIL = 60
"""The longest chain of names that is followed; each takes several frames of Python's stack."""
_MOST_STEPS = 2000
"""The most names that are followed for one expression, in all branches together."""


@dataclass(frozen=True, slots=True)
class FunctionDef:
    """A function with its module."""

    module: Module
    node: Function
    owner: ClassDef | None = None
    """The class that `self` is an instance of, in a method."""

    @property
    def at(self) -> str:
        """`file:line`."""
        return self.module.at(self.node)


@dataclass(frozen=True, slots=True)
class External:
    """A dotted name that the tree does not define."""

    path: str


@dataclass(frozen=True, slots=True)
class Value:
    """An expression that a name is bound to, with its module."""

    module: Module
    node: ast.expr


Target = ClassDef | FunctionDef | External | Value | Module
Found = Guarded[Target]
"""One of the objects that an expression may name, and when it does."""
Targets = list[Found]
_Trail = tuple[str, ...]
"""The names that were followed, to detect circles."""


@dataclass(frozen=True, slots=True)
class _Place:
    """Where an expression is, to resolve the names in it."""

    module: Module
    local: tuple[Scope, ...]
    trail: _Trail


class Index:
    """A tree whose files are parsed on demand, each once."""

    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        self.heads = Heads(tree.files)
        """The class statements in the text of all files, parsed or not."""
        self._modules: dict[str, Module | None] = {}
        self._problems: dict[Problem, None] = {}
        self._num_steps = 0

    @property
    def problems(self) -> tuple[Problem, ...]:
        """The distinct problems so far, those of opening files first."""
        return tuple(dict.fromkeys((*self.tree.problems, *self._problems)))

    def reading(
        self,
        backends: Iterable[Backend],
        rules: RuleSet | None = None,
        command_line: Engine | None = None,
        launches: Callable[[LaunchQuery], Sequence[Launch]] | None = None,
    ) -> EngineReading:
        """Return the reading of the tree with these records."""
        return EngineReading(
            engine=self.tree.package,
            version=self.tree.version,
            source=self.tree.source,
            backends=tuple(backends),
            rules=rules,
            command_line=command_line,
            problems=self.problems,
            num_files=sum(map(self._is_engines, self.tree.files)),
            num_parsed=sum(map(self._is_engines, filter(self._modules.get, self._modules))),
            launches=launches,
        )

    def _is_engines(self, path: str) -> bool:
        """Return whether a file is of the engine itself, and not of a plugin beside it."""
        return path.startswith(f"{self.tree.package}/")

    def source(self, at: str | None = None) -> Source:
        """Return the source of one of the engine's records."""
        package, version = self.tree.package, self.tree.version
        return Source(distribution=package, version=version, declared_at=at)

    def note_unless_known(self, versions: Sequence[str]) -> bool:
        """Record a problem unless the tree's version is one that the reader was checked with."""
        is_known = self.tree.version in versions
        if not is_known:
            self.note_of_version("engine-version-unknown", known=", ".join(versions))
        return is_known

    @property
    def label(self) -> str:
        """The engine with its version, as `ENGINES` names it."""
        return f"{self.tree.package}-{self.tree.version or 'unknown'}"

    def add(self, problem: Problem) -> None:
        """Record a problem; one already recorded keeps its place."""
        self._problems.setdefault(problem)

    def note(self, code: str, **values: object) -> None:
        """Record a problem by its code."""
        self.add(problem(code, **values))

    def note_of_version(self, code: str, **values: object) -> None:
        """Record a problem whose text begins with the engine and its version."""
        version = self.tree.version or "of unknown version"
        self.note(code, engine=self.tree.package, version=version, **values)

    def note_missing(self, what: str, module: str) -> None:
        """Record that a module or a file lacks what it has in known versions."""
        path = module if "/" in module else f"{module.replace('.', '/')}.py"
        self.note_of_version("engine-anchor-missing", what=what, path=path)

    def classes_of(self, paths: Iterable[str]) -> Iterator[ClassDef]:
        """List the class statements of the files that can be parsed."""
        return (each for module in self.modules(paths) for each in module.classes)

    def class_in(self, module: str, name: str) -> ClassDef | None:
        """Find a class in its module of known versions; record a problem if it is missing."""
        classes = self.classes_of([self._paths.get(module, "")])
        definition = next((each for each in classes if each.name == name), None)
        if definition is None:
            self.note_missing(f"class {name}", module)
        return definition

    @cached_property
    def _paths(self) -> Mapping[str, str]:
        """The file of each module name; Python prefers a package to a module of its name."""
        files = sorted(self.tree.files, key=lambda path: path.endswith("/__init__.py"))
        return {_module_name(path): path for path in files}

    def module(self, name: str) -> Module | None:
        """Parse the module of a dotted name; None if it is missing or cannot be parsed."""
        return self.parse(self._paths.get(name, ""))

    @property
    def parsed(self) -> list[str]:
        """The paths of the files that were parsed so far, or could not be."""
        return [*self._modules]

    def parse(self, path: str) -> Module | None:
        """Parse a file; None if it is missing or, with a problem, cannot be parsed."""
        if path not in self._modules:
            self._modules[path] = self._parsed(path) if path in self.tree.files else None
        return self._modules[path]

    def _parsed(self, path: str) -> Module | None:
        text = self.tree.files[path]
        try:
            tree = parsed(text)
        except UnparsedError as error:
            classes = sorted({head.name for head in self.heads.by_file.get(path, ())})
            lost = f" Not read: {', '.join(classes)}." if classes else ""
            self.note("engine-file-not-parsed", path=path, error=error, lost=lost)
            return None
        return Module(_module_name(path), path, tree, text)

    def modules(self, paths: Iterable[str]) -> Iterator[Module]:
        """Parse files, without those that cannot be parsed."""
        return filter(None, map(self.parse, paths))

    def containing(self, word: bytes, under: str = "") -> list[str]:
        """List the files, those of one folder or all, whose text contains a word."""
        files = self.tree.files
        return sorted(path for path in files if path.startswith(under) and word in files[path])

    def resolve(self, expression: ast.expr, module: Module, local: Iterable[Scope] = ()) -> Targets:
        """Resolve what an expression names; a `Value` where only running code knows it.

        Args:
            expression: a name, or names joined by dots.
            module: the file that contains it.
            local: the scopes of the functions around it, innermost first.
        """
        self._num_steps = 0
        return list(self._resolved(expression, _Place(module, tuple(local), ())))

    def _resolved(self, expression: ast.expr, place: _Place) -> Iterator[Found]:
        match expression:
            case ast.Name(id=name):
                scope = next((scope for scope in place.local if name in scope), None)
                step = f"{place.module.name}:{name}"
                if scope is None:
                    yield from self._named(name, place.module, place.trail)
                elif step in place.trail:
                    yield Guarded((), Value(place.module, expression))
                else:
                    inner = replace(place, trail=(*place.trail, step))
                    yield from self._meant(scope[name], name, inner)
            case ast.Attribute(value=value):
                for guards, owner in self._resolved(value, place):
                    yield from under(guards, self._attribute(owner, expression, place))
            case ast.Subscript(value=value):
                yield from self._resolved(value, place)
            case ast.IfExp(test=test, body=then, orelse=orelse):
                for guard, branch in ((test, then), (negated(test), orelse)):
                    yield from under((guard,), self._resolved(branch, place))
            case _:
                yield Guarded((), Value(place.module, expression))

    def _named(self, name: str, module: Module, trail: _Trail) -> Iterator[Found]:
        """Follow a name of a module to its definition, through imports."""
        step = f"{module.name}.{name}"
        self._num_steps += 1
        if len(trail) > _LONGEST_TRAIL or self._num_steps > _MOST_STEPS:
            yield Guarded((), Value(module, as_expression(name)))
        elif step in trail:
            steps = (each for each in (*trail[trail.index(step) :], step) if ":" not in each)
            circle = " -> ".join(each.rpartition(".")[0] for each in steps)
            self.note("engine-import-circle", path=module.path, name=name, circle=circle)
        elif name in module.scope:
            yield from self._meant(module.scope[name], name, _Place(module, (), (*trail, step)))
        elif hasattr(builtins, name):
            yield Guarded((), External(f"builtins.{name}"))
        else:
            yield from self._starred(name, module, (*trail, step))

    def _starred(self, name: str, module: Module, trail: _Trail) -> Iterator[Found]:
        for star in reversed(module.stars):
            other = self.module(star)
            if other is None:
                self.note("engine-star-import", path=module.path, name=name, module=star)
            elif f"{star}.{name}" in trail:
                continue
            elif found := list(self._named(name, other, trail)):
                yield from found
                return

    def _meant(self, meanings: Meanings, name: str, place: _Place) -> Iterator[Found]:
        found: Iterable[Found]
        for guards, meaning in meanings:
            match meaning:
                case ClassDef():
                    found = [Guarded((), meaning)]
                case ast.FunctionDef() | ast.AsyncFunctionDef():
                    found = [Guarded((), FunctionDef(place.module, meaning))]
                case ast.expr() if mentions(meaning, name):
                    found = [Guarded((), Value(place.module, meaning))]
                case ast.expr():
                    found = self._resolved(meaning, place)
                case Import(module=source, attribute=str(attribute)):
                    found = self._imported(source, attribute, place.trail)
                case _:
                    found = self._whole(meaning.module)
            yield from under(guards, found)

    def _imported(self, source: str, attribute: str, trail: _Trail) -> Iterator[Found]:
        whole = f"{source}.{attribute}"
        module = self.module(source)
        # `from . import part` in a package's `__init__` names the submodule, not itself again.
        is_own_part = whole in trail and whole in self._paths
        found = list(self._named(attribute, module, trail)) if module and not is_own_part else []
        yield from found or self._whole(whole)

    def _attribute(self, owner: Target, node: ast.Attribute, place: _Place) -> Iterable[Found]:
        match owner:
            case Module(name=source):
                return self._imported(source, node.attr, place.trail)
            case External(path=path):
                return self._whole(f"{path}.{node.attr}")
        return [Guarded((), Value(place.module, node))]

    def _whole(self, name: str) -> Targets:
        """Return the module of a dotted name, or the name as one outside the tree."""
        return [Guarded((), self.module(name) or External(name))]


def _module_name(path: str) -> str:
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
