"""Imports of an interpreted program: of modules of its tree, and of names outside of it."""

from __future__ import annotations

import ast
from abc import abstractmethod
from collections.abc import Iterable, Mapping

from backend_caps.engines.source.calls import NotFollowedError, Run
from backend_caps.engines.source.control_flow import ControlFlow
from backend_caps.engines.source.index import Index
from backend_caps.engines.source.module import Module
from backend_caps.engines.source.values import (
    ABSENT,
    MISSING,
    External,
    Frame,
    Lazy,
    ModuleValue,
    Native,
    Raised,
    Unknown,
)


class Imports(ControlFlow):
    """What an interpreter does with the modules of a tree."""

    def __init__(self, index: Index, natives: Mapping[str, object]) -> None:
        """Start with nothing imported; `Interpreter` has what the arguments are."""
        super().__init__(natives)
        self.index = index
        self._running: set[str] = set()
        """Modules whose import has begun and not ended."""
        self.natives.setdefault("sys.modules", self.modules)

    @abstractmethod
    def _compiled(self, node: ast.stmt) -> Run:
        """Return what runs a statement."""

    @abstractmethod
    def _forget(self, body: Iterable[ast.stmt], frame: Frame, why: str) -> None:
        """Make unknown the names that statements bind."""

    def import_module(self, name: str) -> Native:
        """Run a module, once; one outside of the tree is `External`."""
        if name in self.modules:
            return self.modules[name]
        module = self.index.module(name)
        if module is None:
            return self.natives.get(name, External(name))
        return self.run_module(module)

    def run_module(self, module: Module) -> ModuleValue:
        """Run a module, whether it is of the tree or comes beside it."""
        name = module.name
        self._running.add(name)
        value = self.modules[name] = ModuleValue(module)
        value.names.update(__name__=name, __file__=module.path)
        certain, self._maybe = self._maybe, []
        frame = Frame(value, value.names)
        for statement in module.tree.body:
            try:
                self._place = (value, statement.lineno)
                self._compiled(statement)(frame)
            except (Raised, NotFollowedError) as error:
                self._forget([statement], frame, f"{name}: {error}")
        self._maybe = certain
        self._running.discard(name)
        return value

    def _import(self, node: ast.Import, frame: Frame) -> None:
        for alias in node.names:
            value = self.import_module(alias.name)
            name = alias.asname
            if name is None:
                name = alias.name.partition(".")[0]
                value = self.import_module(name)
            self._check_there(alias.name)
            frame.names[name] = value

    def _check_there(self, source: str, *names: str) -> None:
        """Raise the error of a package, or of a name of a module, that is known to be missing."""
        package = source.partition(".")[0]
        if self.natives.get(f"import {package}", True) is False:
            raise self.raised(ModuleNotFoundError(f"No module named {package!r}"))
        if any(self.natives.get(f"{source}.{name}") is ABSENT for name in names):
            raise self.raised(ImportError(f"cannot import from {source!r}: {', '.join(names)}"))

    def _import_from(self, node: ast.ImportFrom, frame: Frame) -> None:
        source = frame.module.module.absolute(node)
        if source == "__future__":
            return
        try:
            self._check_there(source, *(alias.name for alias in node.names))
        except Raised:
            for alias in node.names:
                missing = Lazy(source, alias.name, is_missing=True)
                frame.names.setdefault(alias.asname or alias.name, missing)
            raise
        home = frame.module.module
        own_parts = home.path.endswith("/__init__.py") and source.startswith(home.name)
        if frame.names is frame.module.names and not own_parts and node.names[0].name != "*":
            for alias in node.names:  # run when a name is used: most never are
                frame.names[alias.asname or alias.name] = Lazy(source, alias.name)
            return
        module = self.import_module(source)
        for alias in node.names:
            if alias.name == "*":
                self._import_all(module, frame)
                continue
            value = self.member(module, source, alias.name)
            if own_parts and source in self._running and isinstance(value, Unknown):
                # Python would have imported the package before this part of it.
                value = Lazy(source, alias.name)
            frame.names[alias.asname or alias.name] = value

    def looked_up(self, names: dict[str, Native], name: str) -> Native:
        """Return the value of a name, whose import runs on its first use."""
        value = names[name]
        if isinstance(value, Lazy):
            if value.is_missing:
                raise self.raised(NameError(f"name {name!r} is not defined"))
            names[name] = Unknown(f"{value.module}.{value.name}")  # where it imports itself
            module = self.import_module(value.module)
            value = names[name] = self.member(module, value.module, value.name)
        return value

    def member(self, module: Native, source: str, name: str) -> Native:
        """Return a name of a module."""
        replaced = self.natives.get(f"{source}.{name}", MISSING)
        if replaced is not MISSING:
            return replaced
        if isinstance(module, ModuleValue):
            if name in module.names:
                return self.looked_up(module.names, name)
            if self.index.module(f"{source}.{name}") is not None:
                return self.import_module(f"{source}.{name}")
            if "__getattr__" in module.names:
                return self.apply(module.names["__getattr__"], (name,), {})
            return Unknown(f"{source}.{name}")
        if self.index.module(f"{source}.{name}") is not None:  # of a package without a file
            return self.import_module(f"{source}.{name}")
        return self.attribute(module, name)

    def _import_all(self, module: Native, frame: Frame) -> None:
        if not isinstance(module, ModuleValue):
            return
        listed = module.names.get("__all__")
        names = listed if isinstance(listed, list | tuple) else module.names
        for name in [each for each in names if isinstance(each, str)]:
            if not name.startswith(("_", "\0")) or listed:
                frame.names[name] = self.member(module, module.module.name, name)
