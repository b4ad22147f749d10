"""What a plugin supplies in place of an engine's own, beside how the engine calls it."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from backend_caps.compatibility.calls import instances
from backend_caps.compatibility.contact import Contact, Verdict
from backend_caps.compatibility.names import function_of
from backend_caps.compatibility.pair import Pair, Site
from backend_caps.compatibility.places import Place
from backend_caps.compatibility.signatures import (
    Arguments,
    Signature,
    is_decorated,
    is_property,
    is_static,
    lengths_of_results,
    signature_of_class,
)
from backend_caps.engines.source.guards import Function, returns
from backend_caps.engines.source.index import FunctionDef
from backend_caps.engines.source.module import ClassDef, Module

_SCALARS = frozenset({"None", "float", "int", "bool", "str"})


def overrides(pair: Pair, definition: ClassDef) -> Iterator[Contact]:
    """Compare the methods of a plugin's class with the engine's calls of its bases' ones."""
    bases = [e for e in pair.classes.ancestors(definition)[1:] if pair.is_engines(e.module.path)]
    if not bases:
        return
    for name, function in definition.methods.items():
        owners = [base for base in bases if name in base.methods]
        if owners and not name.startswith("__") and not is_property(function):
            sites = [*sites_of_method(pair, definition, bases, name)]
            method = FunctionDef(definition.module, function, definition)
            yield from _supplied(f"{definition.name}.{name}", method, sites)
            yield from _result(pair, definition, owners[0], name, function, sites)


def _supplied(what: str, function: FunctionDef, sites: Iterable[Site]) -> Iterator[Contact]:
    if is_decorated(function.node):
        yield Contact(verdict=Verdict.NOT_CHECKED, what=what, at=function.at, why="a decorator")
        return
    is_bound = function.owner is not None and not is_static(function.node)
    signature = Signature.of(function.node, is_bound=is_bound)
    for site in sites:
        fault = Arguments.of(site.call).fault(signature)
        if fault is not None and not site.asks_signature:
            yield Contact(
                verdict=Verdict.BREAKS,
                what=what,
                at=function.at,
                why=f"{signature} {fault}",
                engine_at=site.at,
            )
            return
    yield Contact(verdict=Verdict.HOLDS, what=what, at=function.at, is_override=True)


def _result(
    pair: Pair,
    definition: ClassDef,
    base: ClassDef,
    name: str,
    function: Function,
    sites: Iterable[Site],
) -> Iterator[Contact]:
    """Compare what a method returns with what the engine does with it."""
    at = definition.module.at(function)
    method = FunctionDef(definition.module, function, definition)
    yield from _unpacked(f"{definition.name}.{name}", method, sites)
    own, wanted = function.returns, base.methods[name].returns
    if own is None or wanted is None:
        return
    is_used = pair.is_named(name) or any(not isinstance(s.parent, ast.Expr) for s in sites)
    if is_used and _is_other(ast.unparse(own), ast.unparse(wanted)):
        yield Contact(
            verdict=Verdict.BREAKS,
            what=f"result of {definition.name}.{name}",
            at=at,
            why=f"returns {ast.unparse(own)}; the engine takes {ast.unparse(wanted)}",
            engine_at=base.module.at(base.methods[name]),
        )


def _unpacked(what: str, function: FunctionDef, sites: Iterable[Site]) -> Iterator[Contact]:
    """Compare how many values a function returns with how many the engine unpacks."""
    lengths = lengths_of_results(function.node)
    for site in sites if lengths else ():
        match site.parent:
            case ast.Assign(targets=[ast.Tuple(elts=names)]) if not any(
                isinstance(each, ast.Starred) for each in names
            ):
                if len(names) not in lengths:
                    words = " or ".join(map(str, sorted(lengths)))
                    yield Contact(
                        verdict=Verdict.BREAKS,
                        what=f"result of {what}",
                        at=function.at,
                        why=f"returns {words} values; {len(names)} are unpacked",
                        engine_at=site.at,
                    )
                    return


def _is_other(own: str, wanted: str) -> bool:
    """Return whether one annotation is a plain value, and the other one something else."""
    own, wanted = own.strip("'\""), wanted.strip("'\"")
    if own == wanted or "Any" in {own, wanted}:
        return False
    parts = {each.strip() for each in wanted.split("|")}
    if own in _SCALARS:
        return own not in parts and "object" not in parts and not wanted.startswith("Optional")
    return _arity(own) is not None and _arity(wanted) not in {None, _arity(own)}


def _arity(annotation: str) -> int | None:
    node = ast.parse(annotation, mode="eval").body
    match node:
        case ast.Subscript(value=ast.Name(id="tuple" | "Tuple"), slice=ast.Tuple(elts=parts)):
            if any(isinstance(each, ast.Constant) and each.value is ... for each in parts):
                return None
            return len(parts)
    return None


def sites_of_method(
    pair: Pair, definition: ClassDef, bases: list[ClassDef], name: str
) -> Iterator[Site]:
    """List the calls of the engine that may be of a method of a plugin's class."""
    root = [base for base in bases if name in base.methods][-1]
    nodes = {each.node: each for each in bases}
    for site in pair.sites(name):
        match site.receiver:
            case ast.Name(id="self" | "cls"):
                owner = nodes.get(site.owner) if site.owner is not None else None
                around = site.functions[-1].name if site.functions else ""
                if owner is not None and pair.is_live(definition, owner, around):
                    yield site
            case ast.Call(func=ast.Name(id="super")):
                continue
            case ast.Name(id=own) | ast.Attribute(attr=own) if own[:1].isupper():
                continue  # a class of the engine's, by its name
            case _ if pair.has_family(root, name):
                yield site
            case receiver:
                for each in instances(pair, receiver, site.place):
                    if each in bases or root in pair.classes.ancestors(each):
                        yield site
                        break


def compared(
    pair: Pair, function: FunctionDef, owner: Module | ClassDef, name: str
) -> Iterator[Contact]:
    """Compare a function with the engine's calls of the one that it is put in place of."""
    before = function_of(pair, owner, name)
    if before is None:
        return
    if isinstance(owner, ClassDef):
        order = pair.classes.ancestors(owner)
        bases = [each for each in order if pair.is_engines(each.module.path)]
        sites = [*sites_of_method(pair, owner, bases, name)]
        is_bound = not is_static(before)
        method = FunctionDef(function.module, function.node, owner if is_bound else None)
        yield from _supplied(f"patch of {owner.name}.{name}", method, sites)
        yield from _unpacked(f"patch of {owner.name}.{name}", method, sites)
        return
    calls = [*_calls_of(pair, owner, name)]
    plain = FunctionDef(function.module, function.node)
    yield from _supplied(f"patch of {owner.name}.{name}", plain, calls)
    yield from _unpacked(f"patch of {owner.name}.{name}", plain, calls)


def _calls_of(pair: Pair, owner: Module, name: str) -> Iterator[Site]:
    """List the engine's calls of a function, by its name in any file that has it."""
    for path in pair.naming(f"{name}("):
        module = pair.index.parse(path)
        for node in ast.walk(module.tree) if module is not None else ():
            match node:
                case ast.Call(func=ast.Name(id=own)) if own == name and module is not None:
                    found = pair.resolve(node.func, Place(module, node))
                    if any(isinstance(e, FunctionDef) and e.module is owner for e in found):
                        yield Site(module, node, node, None, ())


def constructors(pair: Pair, definition: ClassDef) -> Iterator[Contact]:
    """Compare the constructor of a class with the engine's calls of what it stands in for."""
    if "__init__" not in definition.methods:
        return
    signature = signature_of_class(pair.classes, definition)
    if signature is None:
        return
    for module, call in _constructions(pair, definition):
        fault = Arguments.of(call).fault(signature)
        if fault is not None:
            yield Contact(
                verdict=Verdict.BREAKS,
                what=f"{definition.name}.__init__",
                at=definition.module.at(definition.methods["__init__"]),
                why=f"{signature} {fault}",
                engine_at=module.at(call),
            )
            return
    yield Contact(
        verdict=Verdict.HOLDS,
        what=f"{definition.name}.__init__",
        at=definition.module.at(definition.methods["__init__"]),
    )


def _constructions(pair: Pair, definition: ClassDef) -> Iterator[tuple[Module, ast.Call]]:
    """List the engine's calls that construct a class of the plugin."""
    bases = [e for e in pair.classes.ancestors(definition)[1:] if pair.is_engines(e.module.path)]
    if bases and pair.is_registered(definition):
        for path in pair.constructing.get(bases[0].name, ()):
            module = pair.index.parse(path)
            for node in ast.walk(module.tree) if module is not None else ():
                match node:
                    case ast.Call(func=ast.Name(id=name)) if name == bases[0].name:
                        assert module is not None, "it was parsed"
                        yield module, node
    for getter in pair.getters.get(definition.path, ()):
        for site in pair.sites(getter):
            yield from ((site.module, call) for call in _by_variable(site))


def _by_variable(site: Site) -> Iterator[ast.Call]:
    """List the calls of a variable to which the result of a call is assigned, or its import."""
    function = site.functions[0] if site.functions else None
    names: set[str] = set()
    for node in ast.walk(function) if function is not None else ():
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                mentioned = {e.id for e in ast.walk(value) if isinstance(e, ast.Name)}
                if any(each is site.call for each in ast.walk(value)) or mentioned & names:
                    names.add(name)
    for node in ast.walk(function) if function is not None else ():
        match node:
            case ast.Call(func=ast.Name(id=name)) if name in names:
                yield node


def hooks(pair: Pair, definition: ClassDef) -> Iterator[Contact]:
    """Find methods that the engine calls, and a class neither has nor inherits an answer for."""
    order = pair.classes.ancestors(definition)
    bases = [each for each in order[1:] if pair.is_engines(each.module.path)]
    seen: set[str] = set()
    for base in bases:
        for name, method in base.methods.items():
            if name in seen or name.startswith("__"):
                continue
            seen.add(name)
            definer = pair.classes.definer(definition, name)
            if definer is base and _only_raises(method):
                site = next(iter(sites_of_method(pair, definition, bases, name)), None)
                if site is not None:
                    yield Contact(
                        verdict=Verdict.CHANGED,
                        what=f"{definition.name}.{name}",
                        at=definition.at,
                        why=f"is not there, and {base.name}.{name} only raises",
                        engine_at=site.at,
                    )


def _only_raises(function: Function) -> bool:
    body = [
        each
        for each in function.body
        if not (isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant))
    ]
    if [*map(type, body)] == [ast.Raise]:
        return True
    is_abstract = any("abstractmethod" in ast.unparse(each) for each in function.decorator_list)
    return is_abstract and not returns(function)


def duck_typed(pair: Pair, definition: ClassDef) -> Iterator[Contact]:
    """Find what the engine calls of a class by its path, which has no class of the engine's above.

    A getter of the plugin returns the path; what the engine's own getter returns a path of has the
    methods that are called.
    """
    order = pair.classes.ancestors(definition)
    if any(pair.is_engines(each.module.path) for each in order):
        return
    for getter in dict.fromkeys(pair.getters.get(definition.path, ())):
        for root in pair.contracts(getter):
            for name, method in root.methods.items():
                if name.startswith("_") or any(name in each.methods for each in order):
                    continue
                for site in pair.sites(name):
                    own = site.owner is not None and site.owner is root.node
                    if not own and pair.has_family(root, name) and not is_property(method):
                        yield Contact(
                            verdict=Verdict.BREAKS,
                            what=f"{definition.name}.{name}",
                            at=definition.at,
                            why=f"is not there; it has no {root.name} to inherit it from",
                            engine_at=site.at,
                        )
                        break
