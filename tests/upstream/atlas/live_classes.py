"""The classes of an engine's source, taken from its archive, whose attributes can be asked for.

An attribute of a `LiveClass` is found in its method resolution order, and the one statement that
binds it is run. A name that no source in the archives gives a single value is an `Unknown`.
"""

from __future__ import annotations

import ast
import builtins
import functools
import tarfile
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from tests.upstream.atlas.statements import eval_, run
from tests.upstream.atlas.unknown_values import BrokenError, Decisions, OnlyRunError, Unknown, Value

_PACKAGES = ("python/", "src/")
_PLAIN = frozenset({"ABC", "Generic", "Protocol", "object"})
"""Bases that state nothing."""


_DECORATORS = frozenset(
    [
        "abstractmethod",
        "cache",
        "cached_property",
        "classmethod",
        "deprecated",
        "final",
        "lru_cache",
        "no_grad",
        "override",
        "property",
        "staticmethod",
    ]
)
"""Decorators that leave a function's answer as it is."""


class Archive:
    """The Python files of a wheel or of a source distribution, by their path in the package."""

    def __init__(self, path: Path) -> None:
        self.texts: dict[str, str] = {}
        for name, read in _members(path):
            if name.endswith(".py"):
                self.texts[name] = read().decode("utf-8", "replace")


def _members(path: Path) -> Iterator[tuple[str, Callable[[], bytes]]]:
    if path.name.endswith(".whl"):
        with zipfile.ZipFile(path) as wheel:
            for name in wheel.namelist():
                yield name, functools.partial(wheel.read, name)
        return
    with tarfile.open(path) as source:
        for member in source:
            name = member.name.partition("/")[2]
            for package in _PACKAGES:
                name = name.removeprefix(package)
            file = source.extractfile(member) if member.isfile() else None
            if file is not None:
                yield name, file.read


class World:
    """The modules of some archives; the first that has one counts."""

    def __init__(self, archives: Iterable[Archive], stubs: Mapping[str, Value]) -> None:
        self.archives = list(archives)
        self.stubs = stubs
        self._modules: dict[str, Scope | None] = {}

    def text(self, path: str) -> str | None:
        """Return the text of a file by its path in the package."""
        return next((a.texts[path] for a in self.archives if path in a.texts), None)

    def module(self, name: str) -> Scope | None:
        """Return a module; None if no archive has it."""
        if name not in self._modules:
            base, self._modules[name] = name.replace(".", "/"), None
            for path in (f"{base}.py", f"{base}/__init__.py"):
                text = self.text(path)
                if text is not None:
                    package = name if path.endswith("__init__.py") else name.rpartition(".")[0]
                    tree = ast.parse(text)
                    self._modules[name] = Scope(self, package, tree.body, path=path, text=text)
                    break
        return self._modules[name]

    def find(self, path: str) -> LiveClass:
        """Return the class of `package.module.Class`, which may be inside another or a function."""
        parts = path.split(".")
        for at in range(len(parts) - 1, 0, -1):
            scope = self.module(".".join(parts[:at]))
            if scope is not None:
                for name in parts[at:-1]:
                    scope = scope.inner(name)
                return scope.class_of(parts[-1])
        message = f"no archive has {path}"
        raise BrokenError(message)


def _bindings(body: Iterable[ast.stmt]) -> Iterator[tuple[str, ast.stmt]]:
    """Yield the names that statements bind, those inside of `if`, `try` and `with` too."""
    for statement in body:
        match statement:
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name):
                yield name, statement
            case ast.Assign(targets=targets, value=value):
                names = [each.id for each in targets if isinstance(each, ast.Name)]
                yield from ((name, statement) for name in names if ast.unparse(value) != name)
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr()):
                yield name, statement
            case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
                yield from ((a.asname or a.name.partition(".")[0], statement) for a in aliases)
            case ast.If() | ast.With():
                yield from _bindings([*statement.body, *getattr(statement, "orelse", [])])
            case ast.Try():
                handled = [inner for handler in statement.handlers for inner in handler.body]
                yield from _bindings([*statement.body, *handled, *statement.orelse])


class Scope:
    """The names of a module, or of a class or a function in one."""

    def __init__(
        self,
        world: World,
        package: str,
        body: list[ast.stmt],
        parent: Scope | None = None,
        *,
        path: str = "",
        text: str = "",
    ) -> None:
        self.world, self.package, self.body, self.parent = world, package, body, parent
        self.path: str = parent.path if parent else path
        self.text: str = parent.text if parent else text
        self.bound: dict[str, list[ast.stmt]] = {}
        for name, statement in _bindings(body):
            self.bound.setdefault(name, []).append(statement)
        self._values: dict[str, Value] = {}

    def inner(self, name: str) -> Scope:
        """Return the scope of a class or a function in this one."""
        for statement in self.bound.get(name, ()):
            if isinstance(statement, ast.ClassDef | ast.FunctionDef):
                return Scope(self.world, self.package, statement.body, self)
        message = f"{self.path} has no {name}"
        raise BrokenError(message)

    def class_of(self, name: str) -> LiveClass:
        """Return a class by name, or the one that a function returns for an assigned call."""
        value = self.resolve(name)
        if isinstance(value, LiveClass):
            return value
        match self.bound.get(name):
            case [ast.Assign(value=ast.Call(func=ast.Name(id=factory)))]:
                home = self._home(factory)
                scope = home.inner(factory)
                returned = [s.value.id for s in scope.body if _returns_name(s)]  # type: ignore[attr-defined]
                if len(returned) == 1:
                    return scope.class_of(returned[0])
        message = f"{self.path} has no class {name}"
        raise BrokenError(message)

    def _home(self, name: str) -> Scope:
        """Return the module that a name is imported from."""
        match self.bound.get(name):
            case [ast.ImportFrom() as statement]:
                return self.world.module(self.source(statement)) or self
        return self

    def source(self, statement: ast.ImportFrom) -> str:
        """Return the full name of the module that a statement imports from."""
        above = self.package.split(".")
        above = above[: len(above) - statement.level + 1] if statement.level else []
        return ".".join(filter(None, [*above, statement.module]))

    def module_of(self, statement: ast.ImportFrom) -> Imported:
        """Return the module that a statement imports from."""
        return Imported(self.world, self.source(statement))

    def resolve(self, name: str) -> Value:
        """Return the value of a name; an `Unknown` where the source gives no single one."""
        if name in self._values:
            return self._values[name]
        if name in self.world.stubs:
            return self.world.stubs[name]
        statements = self.bound.get(name, [])
        if not statements and self.parent is not None:
            return self.parent.resolve(name)
        self._values[name] = Unknown(name)
        if len(statements) == 1:
            self._values[name] = self._bind(name, statements[0])
        return self._values[name]

    def _bind(self, name: str, statement: ast.stmt) -> Value:
        match statement:
            case ast.ClassDef():
                return LiveClass(self, statement)
            case ast.FunctionDef() if self._is_pure(statement):
                return run(statement, self, {})[name]
            case ast.Assign() | ast.AnnAssign():
                return Unknown(name) if name in self._rebound() else self._assigned(name, statement)
            case ast.Import() | ast.ImportFrom():
                return self._imported(name, statement)
        return Unknown(name)

    def _assigned(self, name: str, statement: ast.stmt) -> Value:
        """Run an assignment; its name is unknown where something unknown decides the value."""
        around, Decisions.current = Decisions.current, Decisions(())
        try:
            value = run(statement, self, {})[name]
        except (Exception, OnlyRunError):  # noqa: BLE001 the source may raise anything
            return Unknown(name)
        finally:
            made, Decisions.current = Decisions.current.made, around
        return Unknown(name) if made else value

    def _rebound(self) -> set[str]:
        """Return the names that a function may bind anew."""
        inside = [node for statement in self.body for node in ast.walk(statement)]
        return {name for node in inside if isinstance(node, ast.Global) for name in node.names}

    def _imported(self, name: str, statement: ast.Import | ast.ImportFrom) -> Value:
        alias = next(a for a in statement.names if (a.asname or a.name.partition(".")[0]) == name)
        if isinstance(statement, ast.Import):
            return Imported(self.world, alias.name if alias.asname else name)
        return getattr(self.module_of(statement), alias.name)

    def _is_pure(self, function: ast.FunctionDef) -> bool:
        """Return whether a function asks for nothing that only a run knows."""
        inside = list(ast.walk(function))
        if any(isinstance(n, ast.Import | ast.ImportFrom | ast.Global) for n in inside):
            return False
        local = {n.arg for n in inside if isinstance(n, ast.arg)}
        local |= {n.id for n in inside if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
        body = [n for part in function.body for n in ast.walk(part)]
        used = {n.id for n in body if isinstance(n, ast.Name)} - local
        return not any(
            isinstance(self.resolve(n), Unknown | Imported)
            for n in used
            if not hasattr(builtins, n)
        )


def _returns_name(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Return) and isinstance(statement.value, ast.Name)


class Imported:
    """A module that a statement imports."""

    def __init__(self, world: World, name: str) -> None:
        self._world, self._name = world, name

    def __getattr__(self, name: str) -> Value:
        if name in self._world.stubs:
            return self._world.stubs[name]
        scope = self._world.module(self._name)
        if scope is not None and name in scope.bound:
            return scope.resolve(name)
        if self._world.module(f"{self._name}.{name}") is not None:
            return Imported(self._world, f"{self._name}.{name}")
        stub = self._world.stubs.get(self._name)
        return getattr(stub, name) if stub is not None else Unknown(name)


class LiveClass:
    """A class of the source, whose attributes are run when they are asked for."""

    def __init__(self, scope: Scope, node: ast.ClassDef) -> None:
        self.scope_, self.node_ = scope, node
        self.body_ = Scope(scope.world, scope.package, node.body, scope)
        self.is_open_ = False
        shadows: list[type] = []
        for base in node.bases:
            value = eval_(base.value if isinstance(base, ast.Subscript) else base, scope)
            if isinstance(value, LiveClass):
                shadows.append(value.shadow_)
            elif ast.unparse(base).partition("[")[0].rpartition(".")[2] not in _PLAIN:
                self.is_open_ = True
        unique = list(dict.fromkeys(shadows))
        self.shadow_: type = type(node.name, tuple(unique) or (object,), {"live": self})

    @property
    def mro_(self) -> list[LiveClass]:
        """The class and its bases, in the order in which Python looks."""
        return [vars(each)["live"] for each in self.shadow_.__mro__ if "live" in vars(each)]

    def owner_(self, name: str) -> LiveClass | None:
        """Return the class that states an attribute; None if none does."""
        return next((each for each in self.mro_ if name in each.body_.bound), None)

    def rebinds_(self, receiver: str, name: str) -> bool:
        """Return whether a method binds an attribute of its receiver."""
        inside = (node for node in ast.walk(self.node_) if isinstance(node, ast.Attribute))
        stored = (node for node in inside if isinstance(node.ctx, ast.Store))
        return any(ast.unparse(node) == f"{receiver}.{name}" for node in stored)

    def __getattr__(self, name: str) -> Value:
        return _attribute(name, self, self.mro_)

    def __repr__(self) -> str:
        return self.node_.name

    def __call__(self, *_: object, **__: object) -> Unknown:
        """Return an object of the class, of which nothing is known."""
        return Unknown(f"{self!r}()")


class Instance:
    """An object of a class; what its class does not state is unknown."""

    def __init__(self, live: LiveClass) -> None:
        self.__dict__["live_"] = live

    def __getattr__(self, name: str) -> Value:
        live = self.__dict__["live_"]
        if live.owner_(name) is None or any(each.rebinds_("self", name) for each in live.mro_):
            return Unknown(f"self.{name}")
        return _attribute(name, self, live.mro_)

    def __repr__(self) -> str:
        return "self"


class _Super:
    """The bases of a class, asked for a receiver."""

    def __init__(self, owner: LiveClass, receiver: Value) -> None:
        self._owner, self._receiver = owner, receiver

    def __getattr__(self, name: str) -> Value:
        receiver = self._receiver
        live = receiver if isinstance(receiver, LiveClass) else receiver.__dict__["live_"]
        after = live.mro_[live.mro_.index(self._owner) + 1 :]
        if name.startswith("__") and not any(name in each.body_.bound for each in after):
            return Unknown(f"super().{name}")
        return _attribute(name, receiver, after)


def _attribute(name: str, receiver: Value, mro: list[LiveClass]) -> Value:
    for owner in mro:
        statements = owner.body_.bound.get(name)
        if statements:
            return _stated(owner, name, statements, receiver)
    if any(each.is_open_ for each in mro):
        return Unknown(f"{receiver!r}.{name}")
    raise AttributeError(name)


def _stated(owner: LiveClass, name: str, statements: list[ast.stmt], receiver: Value) -> Value:
    own = {"super": lambda *_: _Super(owner, receiver), "__class__": owner}
    statement = statements[-1]
    if owner.rebinds_("cls", name):
        return Unknown(f"{receiver!r}.{name}")
    if not isinstance(statement, ast.FunctionDef):
        for part in owner.node_.body:
            if part in statements or any(each in ast.walk(part) for each in statements):
                own = {**run(part, owner.body_, own)}
        return own[name] if name in own else Unknown(f"{receiver!r}.{name}")
    function = run(statement, owner.scope_, own)[name]
    decorators = [ast.unparse(e).partition("(")[0] for e in statement.decorator_list]
    if not _DECORATORS.issuperset(each.rpartition(".")[2] for each in decorators):
        return Unknown(f"{receiver!r}.{name}")
    if "staticmethod" in decorators:
        return function
    if {"property", "cached_property"} & set(decorators):
        return function(receiver)
    return functools.partial(function, receiver)
