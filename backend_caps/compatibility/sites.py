"""The calls of an engine, by the attribute or the class that is called."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from backend_caps.compatibility.nodes import children, walk
from backend_caps.compatibility.places import Place, caught_by
from backend_caps.engines.source.guards import Function, conditions
from backend_caps.engines.source.module import Module

_COMPARES_SIGNATURES = ("signature(", "supports_kw(", ".parameters")
"""Texts of a function that looks at a signature before it calls, as for an older form."""


@dataclass(frozen=True, slots=True)
class Site:
    """A call in the engine."""

    module: Module
    call: ast.Call
    parent: ast.AST
    """The node around the call."""
    owner: ast.ClassDef | None
    """The class around it."""
    functions: tuple[Function, ...]
    """The functions around it, innermost first, up to the class."""

    @property
    def at(self) -> str:
        """`file:line`."""
        return self.module.at(self.call)

    @property
    def place(self) -> Place:
        """Where it is."""
        return Place(self.module, self.call, functions=self.functions, owner=self.owner)

    @property
    def receiver(self) -> str | None:
        """The name of what an attribute is called of; None for another expression."""
        match self.call.func:
            case ast.Attribute(value=ast.Name(id=name)):
                return name
        return None

    @property
    def caller(self) -> str:
        """The method or function around it, for a reader; the module outside of all."""
        names = [each.name for each in self.functions[-1:]]
        if self.owner is not None:
            names.insert(0, self.owner.name)
        return ".".join(names) or self.module.name

    @property
    def caller_at(self) -> str | None:
        """`file:line` of the method or function around it; None outside of all."""
        return self.module.at(self.functions[-1]) if self.functions else None

    @property
    def permissions(self) -> Iterator[str]:
        """List the attributes of what a method is called of that have to be true for the call."""
        match self.call.func:
            case ast.Attribute(value=receiver) if self.functions:
                words = ast.unparse(receiver)
            case _:
                return
        for node in walk(self.functions[-1]):
            if isinstance(node, ast.If) and any(self.call in walk(each) for each in node.body):
                for test in conditions([node.test]):
                    match test:
                        case ast.Attribute(value=value, attr=name) if ast.unparse(value) == words:
                            yield name

    @property
    def compares_signatures(self) -> bool:
        """Whether the function around it looks at a signature first, or catches a misfit."""
        if not self.functions:
            return False
        text = ast.unparse(self.functions[-1])
        return any(words in text for words in _COMPARES_SIGNATURES) or self._is_tried

    @property
    def _is_tried(self) -> bool:
        """Whether a handler of `TypeError` around it calls another form of the same name."""
        name = ast.unparse(self.call.func)
        for node in walk(self.functions[-1]):
            if isinstance(node, ast.Try) and any(self.call in walk(e) for e in node.body):
                for handler in node.handlers:
                    called = (e.func for e in walk(handler) if isinstance(e, ast.Call))
                    if "TypeError" in caught_by(handler) and name in map(ast.unparse, called):
                        return True
        return False

    @property
    def unpacked(self) -> int | None:
        """How many names the result is assigned to; None where it is not unpacked."""
        match self.parent:
            case ast.Assign(targets=[ast.Tuple(elts=names)]) if not any(
                isinstance(each, ast.Starred) for each in names
            ):
                return len(names)
        return None

    @property
    def is_used(self) -> bool:
        """Whether something is done with the result."""
        return not isinstance(self.parent, ast.Expr)


Sites = Mapping[str, Sequence[Site]]
"""By the name of the attribute, or of what is called by its bare name."""


def sites_of(module: Module) -> Sites:
    """List the calls in a file."""
    found: dict[str, list[Site]] = defaultdict(list)
    for site in _walked(module):
        match site.call.func:
            case ast.Attribute(attr=name) | ast.Name(id=name):
                found[name].append(site)
    return found


def _walked(module: Module) -> Iterator[Site]:
    tree = module.tree
    pending: list[tuple[ast.AST, ast.AST, ast.ClassDef | None, tuple[Function, ...]]]
    pending = [(tree, tree, None, ())]
    while pending:
        node, parent, owner, functions = pending.pop()
        match node:
            case ast.Call():
                yield Site(module, node, parent, owner, functions)
            case ast.ClassDef():
                owner, functions = node, ()
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                functions = (node, *functions)
        around = parent if isinstance(node, ast.Await) else node
        pending += [(child, around, owner, functions) for child in children(node)]
