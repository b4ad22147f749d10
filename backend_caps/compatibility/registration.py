"""Classes that reach an engine by registration, or by a path that a method returns."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from backend_caps.compatibility.bindings import made_by
from backend_caps.compatibility.constructors import constructor_of
from backend_caps.compatibility.contact import Contact, ContactKind, Verdict
from backend_caps.compatibility.decorators import is_property
from backend_caps.compatibility.nodes import walk
from backend_caps.compatibility.overrides import fits, supplied
from backend_caps.compatibility.pair import Pair
from backend_caps.compatibility.places import Place
from backend_caps.compatibility.signatures import Arguments, Signature, brief
from backend_caps.compatibility.sites import Site
from backend_caps.engines.source.guards import Function, returns
from backend_caps.engines.source.index import FunctionDef
from backend_caps.engines.source.module import ClassDef, Module


@dataclass
class Registrations:
    """The classes that a plugin gives an engine."""

    pair: Pair

    @cached_property
    def names(self) -> frozenset[str]:
        """The classes that stand in for one of the engine's, by their names or paths."""
        nodes = (node for module in self.pair.modules() for node in walk(module.tree))
        return frozenset(name for node in nodes for name in _registered(node))

    @cached_property
    def getters(self) -> Mapping[str, Sequence[str]]:
        """The methods that return a class or its path, by that path.

        They are of the plugin's classes that the engine gets; it calls no other's.
        """
        found = {
            path: dict.fromkeys(name for owner, name in methods if self._is_given(owner, ()))
            for path, methods in self._returning.items()
        }
        return {path: [*names] for path, names in found.items() if names}

    @cached_property
    def _returning(self) -> Mapping[str, Sequence[tuple[ClassDef, str]]]:
        """The methods of the plugin that return a class or its path, by that path."""
        found: dict[str, list[tuple[ClassDef, str]]] = defaultdict(list)
        for module in self.pair.modules():
            for definition in module.classes:
                for name, function in definition.methods.items():
                    for path in (*_paths(function), *self._returned(definition, function)):
                        found[path].append((definition, name))
        return found

    def _is_given(self, definition: ClassDef, around: tuple[ClassDef, ...]) -> bool:
        """Return whether the engine gets a class, or one below it.

        `around` are the classes that are being followed: getter functions may return each other's.
        """
        return definition not in around and any(
            self.pair.engine_bases(each)
            or not self.names.isdisjoint((each.name, each.path))
            or any(
                self._is_given(owner, (*around, definition))
                for owner, _ in self._returning.get(each.path, ())
            )
            for each in (definition, *self.pair.subclasses(definition))
        )

    @cached_property
    def _path_getters(self) -> frozenset[str]:
        """The methods of the plugin that return the path of a class as a text."""
        classes = (each for module in self.pair.modules() for each in module.classes)
        methods = (item for each in classes for item in each.methods.items())
        return frozenset(name for name, function in methods if any(_paths(function)))

    def _returned(self, definition: ClassDef, function: Function) -> Iterator[str]:
        """List the paths of the classes that a method returns."""
        place = Place(definition.module, function, functions=(function, *definition.functions))
        for case in returns(function):
            for target in self.pair.resolve(case.value, place):
                if isinstance(target, ClassDef):
                    yield target.path

    def constructors(self, definition: ClassDef) -> Iterator[Contact]:
        """Compare the constructor of a class with the engine's calls that make instances of it."""
        constructor = self.pair.own_methods(definition).get("__init__")
        signature = constructor_of(self.pair, definition)
        if constructor is None or signature is None:
            return
        fault, engine_at = None, None
        for module, call in self._constructions(definition):
            arguments = Arguments.of(call)
            fault = arguments.fault(signature)
            if fault is not None:
                engine_at = module.at(call)
                fault = f"{brief(signature)} {fault}; it is made with {brief(arguments)}"
                break
        yield Contact(
            kind=ContactKind.CONSTRUCTOR,
            verdict=Verdict.of(fault is None),
            what=f"{definition.name}.__init__",
            at=definition.module.at(constructor),
            why=fault or "",
            engine_at=engine_at,
        )

    def _constructions(self, definition: ClassDef) -> Iterator[tuple[Module, ast.Call]]:
        """List the engine's calls that construct a class of the plugin."""
        bases = self.pair.engine_bases(definition)
        if bases and definition.name in self.names:
            for path in self.pair.texts.constructing(bases[0].name):
                for site in self.pair.sites_in(path).get(bases[0].name, ()):
                    if bases[0] in self.pair.resolve(site.call.func, site.place):
                        yield site.module, site.call
        for getter in self.getters.get(definition.path, ()):
            own = bases[:1] or [*self._counterparts(getter), *self._given_back(getter)]
            for site in self.pair.sites(getter) if own else ():
                for call in (*_of_result(site), *_of_variable(site)):
                    # A call that a class of the engine's does not take is of others.
                    arguments = Arguments.of(call)
                    if all(self.pair.precedents.construct(each, arguments) for each in own):
                        yield site.module, call

    def members(self, definition: ClassDef) -> Iterator[Contact]:
        """Compare a class that has no class of the engine above it with what the engine calls.

        A method of the plugin returns its path; the engine's own methods of that name return
        paths of classes whose root has the methods that are called.
        """
        order = self.pair.classes.ancestors(definition)
        if self.pair.engine_bases(definition):
            return
        mixed_in = self._mixed_in(definition)
        own = {name for each in (*order, *mixed_in) for name in (*each.methods, *each.statements)}
        for getter in self.getters.get(definition.path, ()):
            yield from self._unset(definition, [*self._counterparts(getter)])
            is_path = getter in self._path_getters
            annotated = self._annotated(getter) if is_path else ()
            for root in dict.fromkeys((*self._roots(getter), *annotated)):
                for name, method in root.methods.items():
                    if name.startswith("_") or is_property(method):
                        continue
                    sites = self._calls(root, name)
                    definer = self.pair.classes.definer(definition, name)
                    if definer is not None:
                        own_method = FunctionDef(definer.module, definer.methods[name], definer)
                        sites = [each for each in sites if fits(self.pair, root, name, each)]
                        yield supplied(self.pair, f"{definition.name}.{name}", own_method, sites)
                    elif sites and name not in own:
                        yield _missing(definition, root, name, sites[0])

    def _mixed_in(self, definition: ClassDef) -> Iterator[ClassDef]:
        """List the classes of the plugin that a class's decorators name, and may copy from."""
        place = Place(definition.module, definition.node, functions=definition.functions)
        for node in definition.node.decorator_list:
            called = node.func if isinstance(node, ast.Call) else node
            for target in self.pair.resolve(called, place):
                if isinstance(target, FunctionDef):
                    around = Place(target.module, target.node, functions=(target.node,))
                    for name in [e for e in walk(target.node) if isinstance(e, ast.Name)]:
                        found = self.pair.resolve(name, around)
                        yield from (each for each in found if isinstance(each, ClassDef))

    def _calls(self, root: ClassDef, name: str) -> list[Site]:
        """List the calls of a method outside of its class, if no other family has its name."""
        if not self.pair.is_only_family(root, name):
            return []
        return [each for each in self.pair.sites(name) if each.owner is not root.node]

    def _unset(self, definition: ClassDef, counterparts: list[ClassDef]) -> Iterator[Contact]:
        """Find attributes that the engine reads, its own classes set, and a class lacks."""
        own = [base for each in counterparts for base in self.pair.classes.ancestors(each)]
        for name in self._common(counterparts):
            at = None
            if not name.startswith("_") and self.pair.has_member(definition, name) is False:
                at = self._read_outside(name, own)
            if at is not None:
                yield Contact(
                    kind=ContactKind.MEMBER,
                    verdict=Verdict.BREAKS,
                    what=f"{definition.name}.{name}",
                    at=definition.at,
                    why=f"the engine reads it; {own[0].name} sets it, and the class does not",
                    engine_at=at,
                    remedy=f"assign self.{name}",
                )

    def _common(self, counterparts: list[ClassDef]) -> list[str]:
        """List the attributes that instances of each of some classes have."""
        every = [
            {name for base in self.pair.classes.ancestors(each) for name in self.pair.members(base)}
            for each in counterparts
        ]
        return sorted(set.intersection(*every)) if every else []

    def _read_outside(self, name: str, family: list[ClassDef]) -> str | None:
        """Return where other code reads an attribute, if no class outside of a family has it."""
        found = None
        nodes = {each.node for each in family}
        for module in self.pair.index.modules(sorted(self.pair.texts.engine_files(name))):
            for each in module.classes:
                has = (
                    name in each.statements
                    or name in each.methods
                    or name in self.pair.members(each)
                )
                if has and each.node not in nodes:
                    return None
            for node in ast.walk(module.tree):
                match node:
                    case ast.Attribute(value=ast.Name(id="self" | "cls")):
                        continue
                    case ast.Attribute(attr=attr, ctx=ast.Load()) if attr == name:
                        found = found or module.at(node)
        return found

    def _roots(self, getter: str) -> Iterator[ClassDef]:
        """List the roots of the classes whose paths the engine's methods of a name return."""
        every = [self.pair.classes.ancestors(each)[-1] for each in self._counterparts(getter)]
        yield from dict.fromkeys(every)

    def _annotated(self, getter: str) -> Iterator[ClassDef]:
        """List the classes that functions which call a getter, and import its path, return."""
        for site in self.pair.sites(getter):
            match site.functions:
                case [function, *_]:
                    inner = made_by(function.returns)
                case _:
                    continue
            targets = [] if inner is None else self.pair.resolve(inner, Place(site.module, inner))
            yield from (each for each in targets if isinstance(each, ClassDef))

    def _counterparts(self, getter: str) -> Iterator[ClassDef]:
        """List the classes whose paths the engine's methods of a name return."""
        for module in self.pair.index.modules(self.pair.texts.defining.get(getter, ())):
            for definition in module.classes:
                function = definition.methods.get(getter)
                if function is None:
                    continue
                words = {e.value for e in walk(function) if isinstance(e, ast.Constant)}
                for path in sorted(each for each in words if isinstance(each, str)):
                    if (found := self.pair.class_at(path)) is not None:
                        yield found

    def _given_back(self, getter: str) -> Iterator[ClassDef]:
        """List the classes that the engine's methods of a name return."""
        for module in self.pair.index.modules(self.pair.texts.defining.get(getter, ())):
            for definition in module.classes:
                function = definition.methods.get(getter)
                paths = [] if function is None else self._returned(definition, function)
                yield from filter(None, map(self.pair.class_at, paths))


def _missing(definition: ClassDef, root: ClassDef, name: str, site: Site) -> Contact:
    signature = Signature.of(root.methods[name], is_bound=False)
    return Contact(
        kind=ContactKind.MEMBER,
        verdict=Verdict.BREAKS,
        what=f"{definition.name}.{name}",
        at=definition.at,
        why=f"{site.caller} calls it; the class has none, and no {root.name} to inherit it from",
        engine_at=site.at,
        remedy=f"define {name}{signature}, or derive from {root.name}",
    )


def _registered(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.ClassDef(name=name, decorator_list=decorators):
            if any("register" in ast.unparse(each) for each in decorators):
                yield name
        case ast.Call(func=ast.Attribute(attr=attr)) if "register" in attr:
            for each in walk(node):
                match each:
                    case ast.Name(id=word) | ast.Constant(value=str(word)):
                        yield word
        case ast.Assign(targets=[ast.Attribute()], value=ast.Name(id=name)):
            yield name


def _paths(function: Function) -> Iterator[str]:
    for case in returns(function):
        match case.value:
            case ast.Constant(value=str(path)) if "." in path:
                yield path


def _of_result(site: Site) -> Iterator[ast.Call]:
    """List the call of a call's result."""
    match site.parent:
        case ast.Call(func=func) if func is site.call:
            yield site.parent


def _of_variable(site: Site) -> Iterator[ast.Call]:
    """List the calls of a variable that a call's result, or what is made of it, is assigned to."""
    if not site.functions:
        return
    nodes = [*walk(site.functions[0])]
    names: set[str] = set()
    for node in nodes:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                inner = [*walk(value)]
                mentioned = {each.id for each in inner if isinstance(each, ast.Name)}
                if site.call in inner or not mentioned.isdisjoint(names):
                    names.add(name)
    for node in nodes:
        match node:
            case ast.Call(func=ast.Name(id=name)) if name in names:
                yield node
