"""The files of a plugin that its entry points lead to, by imports and by paths in texts."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator

from backend_caps.compatibility.nodes import children
from backend_caps.compatibility.places import Place
from backend_caps.compatibility.plugin import Plugin
from backend_caps.engines.source.guards import decided
from backend_caps.engines.source.index import Index
from backend_caps.engines.source.module import Module

_DOTTED = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+")
_LOADERS = frozenset({"import_module", "resolve_obj_by_qualname", "__import__"})
"""Functions that import a module by a text."""


def reached_files(
    index: Index, plugin: Plugin, truth: Callable[[ast.expr, Place], bool | None]
) -> frozenset[str]:
    """List the files that are loaded, or may be, once the engine loads the plugin.

    Args:
        index: the files of both.
        plugin: what is loaded.
        truth: returns whether a condition holds; None where only running code knows.

    Returns:
        All of its files where it states no entry point, where one of the files cannot be parsed,
        and where a module is imported by a name that only running code knows.
    """
    reach = _Reach(index, plugin, truth)
    for each in plugin.entry_points:
        reach.add(each.module)
    for name in _named_by_engine(index, plugin):
        reach.add(name)
    is_whole = reach.is_open or not plugin.entry_points or not reach.files
    return frozenset(plugin.files) if is_whole else reach.files


def _named_by_engine(index: Index, plugin: Plugin) -> Iterator[str]:
    """List the dotted names of the plugin's that the engine has, as those of known platforms."""
    for package in sorted(plugin.packages):
        pattern = re.compile(rf"\b{package}(?:\.\w+)+".encode())
        for path, text in index.tree.files.items():
            if path not in plugin.files and package.encode() in text:
                yield from (name.decode() for name in pattern.findall(text))


class _Reach:
    def __init__(
        self, index: Index, plugin: Plugin, truth: Callable[[ast.expr, Place], bool | None]
    ) -> None:
        self._index, self._plugin, self._truth = index, plugin, truth
        self._packages = plugin.packages
        self._seen: set[str] = set()
        self._files: set[str] = set()
        self.is_open = False

    @property
    def files(self) -> frozenset[str]:
        return frozenset(self._files)

    def add(self, name: str) -> None:
        """Follow a dotted name: its module, the packages around it, and what these import."""
        pending = [name]
        while pending:
            words = pending.pop().split(".")
            for end in range(1, len(words) + 1):
                part = ".".join(words[:end])
                if part in self._seen or words[0] not in self._packages:
                    continue
                self._seen.add(part)
                module = self._index.module(part)
                if module is not None:
                    self._files.add(module.path)
                    pending += self._named(module)
                self.is_open |= module is None and self._has(part)

    def _has(self, name: str) -> bool:
        """Return whether the plugin has the file of a module, which may be no Python."""
        base = name.replace(".", "/")
        return not self._plugin.files.keys().isdisjoint({f"{base}.py", f"{base}/__init__.py"})

    def _named(self, module: Module) -> Iterator[str]:
        """List the dotted names of modules that a module imports, or has as texts."""
        for node in self._running(module):
            match node:
                case ast.ImportFrom():
                    source = module.absolute(node)
                    yield source
                    yield from (f"{source}.{alias.name}" for alias in node.names)
                case ast.Import():
                    yield from (alias.name for alias in node.names)
                case ast.Constant(value=str(text)) if "." in text:
                    yield from _DOTTED.findall(text)
                case ast.Call(func=func, args=[first, *_]) if (
                    ast.unparse(func).rpartition(".")[2] in _LOADERS
                ):
                    self.is_open |= isinstance(first, ast.JoinedStr | ast.BinOp)
                    if isinstance(first, ast.Constant) and str(first.value).startswith("."):
                        yield _absolute(module, str(first.value))

    def _running(self, module: Module) -> Iterator[ast.AST]:
        """List the nodes of a module, without the branches of conditions that are decided."""
        pending: list[ast.AST] = [module.tree]
        while pending:
            node = pending.pop()
            yield node
            if isinstance(node, ast.If):
                place = Place(module, node)
                holds = decided(node.test, lambda part, at=place: self._truth(part, at))  # type: ignore[misc]
                pending += [] if holds else node.orelse
                pending += [] if holds is False else node.body
                pending.append(node.test)
            else:
                pending += children(node)


def _absolute(module: Module, name: str) -> str:
    """Return the whole name of a module that is named from the package around a file."""
    relative = name.lstrip(".")
    return module.absolute(ast.ImportFrom(relative, [], level=len(name) - len(relative)))
