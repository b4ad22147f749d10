"""A plugin beside an engine, in one tree of files; nothing of either is imported."""

from __future__ import annotations

import ast
import builtins
import enum
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from functools import cached_property

from packaging.version import InvalidVersion, Version

from backend_caps.compatibility.instances import Instances
from backend_caps.compatibility.live_methods import LiveMethods
from backend_caps.compatibility.mentions import mentioned
from backend_caps.compatibility.nodes import dotted, walk
from backend_caps.compatibility.places import Place
from backend_caps.compatibility.plugin import Plugin
from backend_caps.compatibility.precedents import Precedents
from backend_caps.compatibility.reach import reached_files
from backend_caps.compatibility.replacements import Replacements
from backend_caps.compatibility.sites import Site, Sites, sites_of
from backend_caps.compatibility.text_search import TextSearch
from backend_caps.compatibility.versions import Conditions
from backend_caps.engines.source.classes import Classes
from backend_caps.engines.source.guards import Function, Guards, decided
from backend_caps.engines.source.index import External, FunctionDef, Index, Target
from backend_caps.engines.source.module import ClassDef, Module, Scope

_PLAIN_BASES = ("abc.", "typing.", "typing_extensions.", "enum.", "builtins.")
"""Bases outside of the tree whose members are known: those of the standard library."""
_OPEN = frozenset(
    f"{module}.{name}"
    for module in ("typing", "typing_extensions")
    for name in ("NamedTuple", "TypedDict", "Protocol")
)
"""Bases whose instances have members that no class states."""

_GETTERS = frozenset({"__getattr__", "__getattribute__"})


@dataclass
class Pair:
    """A plugin and an engine."""

    index: Index
    """The files of both."""
    plugin: Plugin
    _scopes: dict[Function, Scope] = field(default_factory=dict)
    _resolved: dict[tuple[str, str, tuple[Function, ...]], list[Target]] = field(
        default_factory=dict
    )
    _sites: dict[str, Sites] = field(default_factory=dict)
    _families: dict[tuple[ClassDef, str], bool] = field(default_factory=dict)
    _members: dict[ClassDef, frozenset[str]] = field(default_factory=dict)
    _deciding: set[ast.expr] = field(default_factory=set)
    _subclasses: dict[tuple[ClassDef, str | None], list[ClassDef]] = field(default_factory=dict)

    @property
    def engine(self) -> str:
        """The engine's package, such as `vllm`."""
        return self.index.tree.package

    @cached_property
    def version(self) -> Version | None:
        """The engine's version; None where its source states none."""
        try:
            return Version(self.index.tree.version or "")
        except InvalidVersion:
            return None

    @cached_property
    def classes(self) -> Classes:
        """The bases of all classes."""
        return Classes(self.index, self._may_hold_in)

    @cached_property
    def conditions(self) -> Conditions:
        """What the engine decides of conditions."""
        return Conditions(self)

    @cached_property
    def instances(self) -> Instances:
        """What values are instances of."""
        return Instances(self)

    @cached_property
    def replacements(self) -> Replacements:
        """What the plugin puts in place of the engine's own."""
        return Replacements(self)

    @cached_property
    def live_methods(self) -> LiveMethods:
        """The methods that run for instances of classes."""
        return LiveMethods(self)

    @cached_property
    def precedents(self) -> Precedents:
        """What the engine's own classes do."""
        return Precedents(self)

    @cached_property
    def texts(self) -> TextSearch:
        """The text of both."""
        return TextSearch(self.index.tree.files, self.is_engines)

    def is_engines(self, path: str) -> bool:
        """Return whether a file is the engine's."""
        return path.startswith(f"{self.engine}/")

    @cached_property
    def reached(self) -> frozenset[str]:
        """The plugin's files that its entry points lead to; all of them where it states none."""
        return reached_files(self.index, self.plugin, self.conditions.truth)

    def modules(self) -> Iterator[Module]:
        """Parse those of the plugin's files that are reached.

        One that names no engine may derive from the plugin's own classes, which do.
        """
        return self.index.modules(sorted(self.reached))

    @cached_property
    def mentioned(self) -> frozenset[str]:
        """The names that the plugin calls, gives or returns; its entry points too."""
        return mentioned(self.modules()) | {each.attribute for each in self.plugin.entry_points}

    # Names

    def scope(self, module: Module, function: Function) -> Scope:
        """Return what the names of a function mean."""
        if function not in self._scopes:
            self._scopes[function] = module.scope_in(function)
        return self._scopes[function]

    def resolve(self, node: ast.expr, place: Place) -> list[Target]:
        """List what a name, or names joined by dots, may mean; nothing for another expression."""
        if (name := dotted(node)) is None:
            return []
        key = (place.module.path, name, place.functions)
        if key not in self._resolved:
            scopes = [self.scope(place.module, each) for each in place.functions]
            found = self.index.resolve(node, place.module, scopes)
            # A condition may name what it guards: without an answer yet, all meanings count.
            self._resolved[key] = [target for _, target in found]
            self._resolved[key] = [
                target for guards, target in found if self.may_hold(guards, place)
            ]
        return self._resolved[key]

    def may_hold(self, guards: Guards, place: Place) -> bool:
        """Return whether none of the conditions of a name or a definition is known to fail."""
        return all(
            decided(guard, lambda part: self.conditions.truth(part, place)) is not False
            for guard in guards
        )

    def _may_hold_in(self, guards: Guards, module: Module) -> bool:
        """Return whether a base of a class in a file may be the one that these conditions state.

        A condition may ask what a class has, whose bases are being looked for.
        """
        if not self._deciding.isdisjoint(guards):
            return True
        self._deciding.update(guards)
        found = self.may_hold(guards, Place(module, module.tree))
        self._deciding.difference_update(guards)
        return found

    def class_at(self, path: str) -> ClassDef | None:
        """Return the class of a dotted path, or one that the path's module imports."""
        source, _, name = path.rpartition(".")
        module = self.index.module(source)
        if module is None:
            return None
        found = self.index.resolve(ast.Name(id=name, ctx=ast.Load()), module)
        return next((each for _, each in found if isinstance(each, ClassDef)), None)

    def is_module(self, source: str) -> bool:
        """Return whether a dotted name is a module, or a folder with Python files."""
        return self.index.module(source) is not None or self._is_folder(source)

    def _is_folder(self, source: str) -> bool:
        prefix = f"{source.replace('.', '/')}/"
        return any(path.startswith(prefix) for path in self.index.tree.files)

    def has(self, source: str, name: str) -> bool | None:
        """Return whether a module of the engine has a name; None where only running code knows."""
        return self._has(source, name, ())

    def _has(self, source: str, name: str, around: tuple[str, ...]) -> bool | None:
        """Look for a name in a module, which those `around` it import by a star."""
        if self.index.module(f"{source}.{name}") is not None:
            return True
        module = self.index.module(source)
        if module is None:
            return None if self._is_folder(source) else False
        if name in module.scope or name in _globals(module):
            return True
        if "__getattr__" in module.scope and _may_make(module, name):
            return None
        # A star import from outside of the tree may bring any name; one in a circle, none more.
        around = (*around, source)
        starred = [
            self._has(star, name, around) if self.is_module(star) else None
            for star in module.stars
            if star not in around
        ]
        if True in starred:
            return True
        return self._is_folder(f"{source}.{name}") or (None if None in starred else False)

    def has_member(self, definition: ClassDef, name: str) -> bool | None:
        """Return whether a class has an attribute; None where only running code knows."""
        for base in self.classes.order(definition):
            if isinstance(base, External):
                # A protocol states what is needed; an object of it may have more.
                if not base.path.startswith(_PLAIN_BASES) or base.path in _OPEN:
                    return None
                if name in _members_of(base.path):
                    return True
            elif name in base.statements or name in base.methods or name in self.members(base):
                return True
            elif _is_rebound(base) or not base.methods.keys().isdisjoint(_GETTERS):
                return None
        return False if self.is_whole(definition) else None

    def is_whole(self, definition: ClassDef) -> bool:
        """Return whether all bases of a class, and theirs, were found."""
        return all(map(self._has_all_bases, self.classes.ancestors(definition)))

    def _has_all_bases(self, definition: ClassDef) -> bool:
        """Return whether each base of a class was found; one that was not has any attribute."""
        place = Place(definition.module, definition.node, functions=definition.functions)
        return all(
            isinstance(node, ast.Subscript)  # such as Generic[T], which has no attributes
            or any(map(self._is_found, self.resolve(node, place)))
            for node in definition.node.bases
        )

    def _is_found(self, base: Target) -> bool:
        """Return whether a base is a class of the tree, or of another package than the engine."""
        if isinstance(base, External):
            return not base.path.startswith(f"{self.engine}.")
        return isinstance(base, ClassDef)

    def members(self, definition: ClassDef) -> frozenset[str]:
        """List what the methods of a class assign to `self`, and what its body annotates."""
        if definition not in self._members:
            self._members[definition] = frozenset(_assigned(definition.node))
        return self._members[definition]

    # Classes

    def subclasses(self, definition: ClassDef, *, defining: str | None = None) -> list[ClassDef]:
        """List the classes that derive from a class.

        Args:
            definition: the class.
            defining: a method; of the engine's files those with one of the name are looked at. All
                files of both if None.
        """
        key = (definition, defining)
        if key not in self._subclasses:
            self._subclasses[key] = [*self.derived(definition, defining=defining)]
        return self._subclasses[key]

    def derived(self, definition: ClassDef, *, defining: str | None = None) -> Iterator[ClassDef]:
        """Find what `subclasses` lists, a file at a time."""
        files = self.index.heads.files_below([definition.name])
        if defining is not None:
            known = self.texts.defining.get(defining, ())
            files = [path for path in files if path in known]
        for each in self.index.classes_of(files):
            if each is not definition and definition in self.classes.ancestors(each):
                yield each

    def engine_bases(self, definition: ClassDef) -> list[ClassDef]:
        """List the engine's classes among the bases of a class, in the order of resolution."""
        bases = self.classes.ancestors(definition)[1:]
        return [each for each in bases if self.is_engines(each.module.path)]

    def engine_at(self, target: FunctionDef | ClassDef) -> str:
        """Return `file:line` of the engine's: of a plugin's class, its nearest base there."""
        if isinstance(target, ClassDef) and not self.is_engines(target.module.path):
            return next((each.at for each in self.engine_bases(target)), target.at)
        return target.at

    def plugin_classes(self, module: Module) -> Iterator[ClassDef]:
        """List the classes of a plugin's file that may be defined with this engine."""
        for each in module.classes:
            if self.may_hold(each.guards, Place(module, each.node)):
                yield each

    def own_methods(self, definition: ClassDef) -> dict[str, Function]:
        """Return the methods in a class's body that may be defined with this engine, the last."""
        place = Place(definition.module, definition.node, owner=definition.node)
        return {
            name: found[-1]
            for name, alternatives in definition.alternatives.items()
            if (found := [f for guards, f in alternatives if self.may_hold(guards, place)])
        }

    def is_only_family(self, root: ClassDef, name: str) -> bool:
        """Return whether every method or function of a name is of subclasses of one class."""
        key = (root, name)
        if key not in self._families:
            modules = self.index.modules(self.texts.defining.get(name, ()))
            self._families[key] = all(self._is_family(each, root, name) for each in modules)
        return self._families[key]

    def _is_family(self, module: Module, root: ClassDef, name: str) -> bool:
        owners = [each for each in module.classes if name in each.methods]
        is_derived = all(root in self.classes.ancestors(each) for each in owners)
        return is_derived and name not in module.scope

    # Calls

    def sites(self, name: str, only: Collection[str] | None = None) -> Iterator[Site]:
        """List the engine's calls of an attribute of a name.

        Args:
            name: of the attribute.
            only: the files to look at; all of them if None.
        """
        for path in self.texts.calling.get(name, ()):
            for site in self.sites_in(path).get(name, ()) if only is None or path in only else ():
                if isinstance(site.call.func, ast.Attribute):
                    yield site

    def sites_in(self, path: str) -> Sites:
        """List the calls in a file."""
        if path not in self._sites:
            module = self.index.parse(path)
            self._sites[path] = {} if module is None else sites_of(module)
        return self._sites[path]

    def method(
        self, owner: ClassDef, name: str, *, after: ClassDef | None = None
    ) -> FunctionDef | None:
        """Return the engine's method of a class; None where the class, or the plugin, has it."""
        definer = self.classes.definer(owner, name, after=after)
        if definer is None or not self.is_engines(definer.module.path):
            return None
        return FunctionDef(definer.module, definer.methods[name], definer)


def _may_make(module: Module, name: str) -> bool:
    """Return whether the `__getattr__` of a module may know a name.

    One that raises for other names has them in the module, as the keys of a dictionary.
    """
    for _, meaning in module.scope["__getattr__"]:
        match meaning:
            case ast.FunctionDef(args=ast.arguments(args=[ast.arg(arg=asked)])) as function:
                pass
            case _:
                return True
        words = [
            ast.unparse(each) for each in walk(function) if isinstance(each, ast.Raise | ast.Call)
        ]
        raises = any(each.startswith("raise AttributeError") for each in words)
        passes_on = any(each.startswith("getattr(") and f", {asked}" in each for each in words)
        if not raises or passes_on:
            return True
    return re.search(rf"\b{name}\b".encode(), module.text) is not None


def _members_of(path: str) -> set[str]:
    """List the attributes of a class of the standard library."""
    name = path.rpartition(".")[2]
    if path.startswith("enum."):
        return {"name", "value", *dir(getattr(enum, name, enum.Enum)), *dir(str)}
    return set(dir(getattr(builtins, name, object)))


def _is_rebound(definition: ClassDef) -> bool:
    """Return whether a class's name is assigned something else later, as what is made of it."""
    meanings = definition.module.scope.get(definition.name, ())
    return not definition.outer and any(isinstance(each, ast.expr) for _, each in meanings)


def _globals(module: Module) -> set[str]:
    """List the names that the functions of a module declare global."""
    if b"global " not in module.text:
        return set()
    nodes = walk(module.tree)
    return {name for node in nodes if isinstance(node, ast.Global) for name in node.names}


def _assigned(node: ast.ClassDef) -> Iterator[str]:
    for inner in walk(node):
        match inner:
            case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=name, ctx=ast.Store()):
                yield name
            case ast.AnnAssign(target=ast.Name(id=name)) | ast.ClassDef(name=name):
                yield name
