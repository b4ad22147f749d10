"""A plugin beside an engine, in one tree of files; nothing of either is imported."""

from __future__ import annotations

import ast
import re
import zipfile
from collections import ChainMap, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from packaging.version import InvalidVersion, Version

from backend_caps.compatibility.places import Place
from backend_caps.engines.reading import EngineError
from backend_caps.engines.source.classes import Classes
from backend_caps.engines.source.guards import Function
from backend_caps.engines.source.files import Tree, open_tree, unusable
from backend_caps.engines.source.index import External, FunctionDef, Index, Target, Value
from backend_caps.engines.source.module import ClassDef, Import, Module, Scope

_NO_PACKAGES = frozenset({"test", "tests", "docs", "doc", "examples", "benchmarks", "tools"})
_DEFINED = re.compile(rb"^[ \t]*(?:async[ \t]+)?def[ \t]+(\w+)", re.MULTILINE)
_CALLED = re.compile(rb"\.(\w+)\(")
_CONSTRUCTED = re.compile(rb"\b([A-Z]\w+)\(")
_SAYS_VERSION = re.compile(r"(?:^|_)version_(?:is|eq)$")
"""The end of the name of a function that takes a version and returns whether the engine is it."""
_VERSIONS = {
    ast.Eq: lambda a, b: a == b,
    ast.NotEq: lambda a, b: a != b,
    ast.Lt: lambda a, b: a < b,
    ast.LtE: lambda a, b: a <= b,
    ast.Gt: lambda a, b: a > b,
    ast.GtE: lambda a, b: a >= b,
}


@dataclass
class Pair:
    """A plugin and an engine."""

    index: Index
    plugin: Tree
    """The plugin's files alone; those of the engine are in the index too."""

    @property
    def engine(self) -> str:
        """The engine's package, such as `vllm`."""
        return self.index.tree.package

    @cached_property
    def classes(self) -> Classes:
        """The bases of all classes."""
        return Classes(self.index)

    @cached_property
    def version(self) -> Version | None:
        """The engine's version, where it is one."""
        try:
            return Version(self.index.tree.version or "")
        except InvalidVersion:
            return None

    @cached_property
    def defining(self) -> Mapping[str, Sequence[str]]:
        """The engine's files that define a function or method of a name."""
        return self._files_with(_DEFINED)

    @cached_property
    def calling(self) -> Mapping[str, Sequence[str]]:
        """The engine's files that call an attribute of a name."""
        return self._files_with(_CALLED)

    def _files_with(self, pattern: re.Pattern[bytes]) -> Mapping[str, Sequence[str]]:
        found: dict[str, list[str]] = defaultdict(list)
        for path, text in self.index.tree.files.items():
            if self.is_engines(path):
                for name in set(pattern.findall(text)):
                    found[name.decode("utf-8", "replace")].append(path)
        return found

    def is_engines(self, path: str) -> bool:
        """Return whether a file is of the engine."""
        return path.startswith(f"{self.engine}/")

    def is_plugins(self, path: str) -> bool:
        """Return whether a file is of the plugin."""
        return path in self.plugin.files

    def modules(self) -> Iterator[Module]:
        """Parse the plugin's files, but for those that have nothing of the engine."""
        word = self.engine.encode()
        for path, text in sorted(self.plugin.files.items()):
            if word in text and (module := self.index.parse(path)) is not None:
                yield module

    def has(self, source: str, name: str) -> bool | None:
        """Return whether a module of the engine has a name; None where only running tells."""
        module = self.index.module(source)
        if self.index.module(f"{source}.{name}") is not None:
            return True
        if module is None:
            return None if self.is_package(source) else False
        if name in module.scope or any(own == name for own in _written(module)):
            return True
        if "__getattr__" in module.scope:
            return None
        for star in module.stars:
            inner = self.has(star, name)
            if inner is not False:
                return inner
        return self.is_package(f"{source}.{name}")

    def is_module(self, source: str) -> bool:
        """Return whether the tree has a module or a folder of a dotted name."""
        return self.index.module(source) is not None or self.is_package(source)

    def is_read(self, name: str) -> bool:
        """Return whether anything of the engine or the plugin reads an attribute of a name."""
        return self._has_text(name, rf"(?m)^[^#\n]*(?:\.{name}\b(?!\s*=[^=])|[\"']{name}[\"'])")

    def is_set(self, name: str) -> bool:
        """Return whether something assigns an attribute of a name to an object that is no self."""
        stores = rf"(?<!self)\.{name}\b(?::[^=\n]+)?\s*=[^=]|setattr\([^,]+,\s*[\"']{name}[\"']"
        return self._has_text(name, stores)

    def is_named(self, name: str) -> bool:
        """Return whether the engine has a name as a text, as remote calls do."""
        own = (path for path in self._containing(name) if self.is_engines(path))
        words = (f'"{name}"'.encode(), f"'{name}'".encode())
        return any(word in self.index.tree.files[path] for path in own for word in words)

    def naming(self, text: str) -> Iterator[str]:
        """List the engine's files with a text."""
        return (path for path in self._containing(text) if self.is_engines(path))

    def contracts(self, getter: str) -> Iterator[ClassDef]:
        """List the roots of the classes whose paths the engine's own methods of a name return."""
        seen: set[ClassDef] = set()
        for path in self.defining.get(getter, ()):
            module = self.index.parse(path)
            for definition in module.classes if module is not None else ():
                function = definition.methods.get(getter)
                for node in ast.walk(function) if function is not None else ():
                    if isinstance(node, ast.Constant) and isinstance(node.value, str):
                        found = self.class_at(node.value)
                        if found is not None:
                            root = self.classes.ancestors(found)[-1]
                            if root not in seen:
                                seen.add(root)
                                yield root

    def class_at(self, path: str) -> ClassDef | None:
        """Return the class at a dotted path."""
        source, _, name = path.rpartition(".")
        module = self.index.module(source)
        if module is None:
            return None
        found = self.index.resolve(ast.Name(id=name, ctx=ast.Load()), module)
        return next((each for _, each in found if isinstance(each, ClassDef)), None)

    def _has_text(self, name: str, pattern: str) -> bool:
        key = (name, pattern)
        if key not in self._texts:
            found = re.compile(pattern.encode())
            files = self.index.tree.files
            self._texts[key] = any(found.search(files[path]) for path in self._containing(name))
        return self._texts[key]

    @cached_property
    def _texts(self) -> dict[tuple[str, str], bool]:
        return {}

    def _containing(self, name: str) -> Iterator[str]:
        word = name.encode()
        return (path for path, text in self.index.tree.files.items() if word in text)

    @cached_property
    def constructing(self) -> Mapping[str, Sequence[str]]:
        """The engine's files that call a name which begins with a capital letter."""
        return self._files_with(_CONSTRUCTED)

    def is_live(self, definition: ClassDef, owner: ClassDef, name: str) -> bool:
        """Return whether a method of a base runs for a class, which may have another one."""
        for each in self.classes.ancestors(definition):
            if each is owner:
                return True
            if name in each.methods and not _calls_super(each.methods[name], name):
                return False
        return False

    @cached_property
    def _registered(self) -> frozenset[str]:
        """The classes of the plugin that stand in for one of the engine's, by their names."""
        found: set[str] = set()
        for module in self.modules():
            for node in ast.walk(module.tree):
                match node:
                    case ast.ClassDef(name=name, decorator_list=decorators):
                        if any("register" in ast.unparse(each) for each in decorators):
                            found.add(name)
                    case ast.Call(func=ast.Attribute(attr=attr)) if "register" in attr:
                        found |= {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
                    case ast.Assign(targets=[ast.Attribute()], value=ast.Name(id=name)):
                        found.add(name)
        return frozenset(found)

    def is_registered(self, definition: ClassDef) -> bool:
        """Return whether the plugin puts a class in the place of one of the engine's."""
        return definition.name in self._registered

    @cached_property
    def getters(self) -> Mapping[str, Sequence[str]]:
        """The methods of the plugin that return the path of a class of its own, by that path."""
        found: dict[str, list[str]] = defaultdict(list)
        for module in self.modules():
            for definition in module.classes:
                for name, function in definition.methods.items():
                    for node in ast.walk(function):
                        match node:
                            case ast.Return(value=ast.Constant(value=str(path))) if "." in path:
                                found[path].append(name)
        return found

    def is_package(self, source: str) -> bool:
        """Return whether a folder of the tree has Python files, with an `__init__` or without."""
        prefix = f"{source.replace('.', '/')}/"
        return any(path.startswith(prefix) for path in self.index.tree.files)

    @cached_property
    def _scopes(self) -> dict[Function, Scope]:
        return {}

    def scope(self, module: Module, function: Function) -> Scope:
        """Return what the names of a function mean."""
        if function not in self._scopes:
            self._scopes[function] = module.scope_in(function)
        return self._scopes[function]

    def resolve(self, node: ast.expr, place: Place) -> list[Target]:
        """List what an expression may name."""
        root = node
        while isinstance(root, ast.Attribute):
            root = root.value
        if not isinstance(root, ast.Name):
            return []
        key = (place.module.path, ast.unparse(node), place.functions)
        if key not in self._resolved:
            scopes = [self.scope(place.module, each) for each in place.functions]
            found = self.index.resolve(node, place.module, scopes)
            self._resolved[key] = [target for _, target in found]
        return self._resolved[key]

    @cached_property
    def _resolved(self) -> dict[tuple[str, str, tuple[Function, ...]], list[Target]]:
        return {}

    @cached_property
    def _sites(self) -> dict[str, Mapping[str, Sequence[Site]]]:
        return {}

    def sites(self, name: str) -> Iterator[Site]:
        """List the engine's calls of an attribute of a name."""
        for path in self.calling.get(name, ()):
            if path not in self._sites:
                module = self.index.parse(path)
                self._sites[path] = {} if module is None else sites_of(module)
            yield from self._sites[path].get(name, ())

    def has_family(self, root: ClassDef, name: str) -> bool:
        """Return whether all methods of a name that the engine has are of a class's family."""
        key = (root, name)
        if key not in self._families:
            self._families[key] = self._is_family(root, name)
        return self._families[key]

    @cached_property
    def _families(self) -> dict[tuple[ClassDef, str], bool]:
        return {}

    def _is_family(self, root: ClassDef, name: str) -> bool:
        for path in self.defining.get(name, ()):
            module = self.index.parse(path)
            if module is None:
                continue
            for each in module.classes:
                if name in each.methods and root not in self.classes.ancestors(each):
                    return False
            if name in module.scope:
                return False
        return True

    def truth(self, test: ast.expr, place: Place) -> bool | None:
        """Return whether a condition of the plugin holds with this engine."""
        match test:
            case ast.Name(id="TYPE_CHECKING") | ast.Attribute(attr="TYPE_CHECKING"):
                return False
            case ast.Call(func=func, args=[ast.Constant(value=str(stated))]) if (
                _SAYS_VERSION.search(ast.unparse(func))
            ):
                return self._compared(ast.Eq(), stated)
            case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _VERSIONS:
                stated = _stated_version(right)
                if stated is not None and self._is_version(left, place):
                    return self._compared(op, stated)
            case ast.Call(
                func=ast.Name(id="hasattr"), args=[owner, ast.Constant(value=str(name))]
            ):
                return self._has_attribute(owner, name, place)
            case ast.Name() | ast.Attribute():
                for target in self.resolve(test, place):
                    match target:
                        case Value(module=module, node=ast.Compare() | ast.Call() as node):
                            return self.truth(node, Place(module, node))
        return None

    def _compared(self, op: ast.cmpop, stated: str) -> bool | None:
        try:
            wanted = Version(stated)
        except InvalidVersion:
            return None
        return None if self.version is None else _VERSIONS[type(op)](self.version, wanted)

    def _is_version(self, node: ast.expr, place: Place) -> bool:
        """Return whether an expression is the engine's version."""
        text = ast.unparse(node)
        if re.search(rf"\b{self.engine}\.__version__|version\(['\"]{self.engine}['\"]\)", text):
            return True
        if isinstance(node, ast.Call) and node.args:
            return self._is_version(node.args[0], place)
        for target in self.resolve(node, place):
            match target:
                case Value(node=ast.Call() as call) if call is not node:
                    return self._is_version(call, place)
                case External(path=path):
                    return path in {f"{self.engine}.__version__", f"{self.engine}.version"}
        return False

    def _has_attribute(self, owner: ast.expr, name: str, place: Place) -> bool | None:
        for target in self.resolve(owner, place):
            match target:
                case Module(name=source) if source.partition(".")[0] == self.engine:
                    return self.has(source, name)
                case ClassDef() if self.is_engines(target.module.path):
                    return self.has_member(target, name)
        return None

    def has_member(self, definition: ClassDef, name: str) -> bool | None:
        """Return whether a class has an attribute or a method; None where only running tells."""
        for base in self.classes.order(definition):
            if isinstance(base, External):
                if not base.path.startswith(("abc.", "typing.", "enum.")):
                    return None
            elif name in base.statements or name in base.methods:
                return True
            elif "__getattr__" in base.methods or name in set(assigned(base)):
                return None if "__getattr__" in base.methods else True
        return False


@dataclass(frozen=True, slots=True)
class Site:
    """A call of an attribute in the engine."""

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
    def receiver(self) -> ast.expr:
        """What has the attribute."""
        assert isinstance(self.call.func, ast.Attribute), "no other calls have one"
        return self.call.func.value

    @property
    def asks_signature(self) -> bool:
        """Whether the function around it looks at a signature first, as for an older form."""
        words = ("signature(", "supports_kw(", ".parameters")
        return any(word in ast.unparse(self.functions[-1]) for word in words) if self.functions else False

    @property
    def place(self) -> Place:
        """Where it is."""
        return Place(self.module, self.call, functions=self.functions, owner=self.owner)


def sites_of(module: Module) -> Mapping[str, Sequence[Site]]:
    """List the calls of attributes in a file, by the attribute."""
    found: dict[str, list[Site]] = defaultdict(list)
    pending: list[tuple[ast.AST, ast.AST, ast.ClassDef | None, tuple[Function, ...]]] = [
        (module.tree, module.tree, None, ())
    ]
    while pending:
        node, parent, owner, functions = pending.pop()
        match node:
            case ast.Call(func=ast.Attribute(attr=name)):
                found[name].append(Site(module, node, parent, owner, functions))
            case ast.ClassDef():
                owner, functions = node, ()
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                functions = (node, *functions)
        pending += [(child, node, owner, functions) for child in ast.iter_child_nodes(node)]
    return found


def assigned(definition: ClassDef) -> Iterator[str]:
    """List the attributes that the methods of a class assign to `self`, and its annotations."""
    for node in ast.walk(definition.node):
        match node:
            case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=name, ctx=ast.Store()):
                yield name
            case ast.AnnAssign(target=ast.Name(id=name)):
                yield name


def _calls_super(function: Function, name: str) -> bool:
    """Return whether a method calls that of a base."""
    return any(
        isinstance(node, ast.Attribute)
        and node.attr == name
        and not (isinstance(node.value, ast.Name) and node.value.id in {"self", "cls"})
        for node in ast.walk(function)
    )


def _written(module: Module) -> Iterator[str]:
    """List the names that a module's functions declare global, or a call puts into `globals()`."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Global):
            yield from node.names


def _stated_version(node: ast.expr) -> str | None:
    match node:
        case ast.Constant(value=str(stated)):
            return stated
        case ast.Call(args=[ast.Constant(value=str(stated))]):
            return stated
    return None


def open_pair(plugin: Path, package: str, engine: Path | None) -> Pair:
    """Open a plugin and an engine.

    Args:
        plugin: a wheel, or a folder with the plugin's packages in it.
        package: the engine's, such as `vllm`.
        engine: a wheel, or a folder that has the engine's package; the installed one if None.

    Raises:
        EngineError: either cannot be read, or has no such package.
    """
    tree = open_tree(package, engine)
    own = Tree(package=plugin.name, source=plugin.name)
    for name, root in _packages(plugin, package):
        found = open_tree(name, root)
        own.files = {**own.files, **found.files}
        own.version = own.version or found.version
        own.requires = own.requires or found.requires
    if not own.files:
        raise unusable(plugin.name, plugin, "has no package in it")
    tree.files = ChainMap(dict(tree.files), dict(own.files))
    return Pair(Index(tree), own)


def _packages(plugin: Path, engine: str) -> Iterator[tuple[str, Path]]:
    """List the packages of a plugin, each with what has it."""
    if plugin.is_dir():
        for root in (plugin, plugin / "src"):
            for folder in sorted(root.iterdir()) if root.is_dir() else ():
                if (folder / "__init__.py").is_file() and folder.name not in {*_NO_PACKAGES, engine}:
                    yield folder.name, root
        return
    try:
        with zipfile.ZipFile(plugin) as archive:
            names = {each.partition("/")[0] for each in archive.namelist() if each.endswith(".py")}
    except (OSError, zipfile.BadZipFile) as error:
        raise EngineError("engine-source-unusable", f"{plugin} cannot be read: {error}") from error
    for name in sorted(names - {engine}):
        if "." not in name and name not in _NO_PACKAGES:
            yield name, plugin


def imported(node: ast.stmt, module: Module) -> Iterator[tuple[str, Import]]:
    """List the names that an import binds, each with what it means."""
    match node:
        case ast.ImportFrom():
            source = module.absolute(node)
            for alias in node.names:
                yield alias.asname or alias.name, Import(source, alias.name, node.lineno)
        case ast.Import():
            for alias in node.names:
                yield alias.asname or alias.name, Import(alias.name, None, node.lineno)


def function_in(target: Target) -> FunctionDef | None:
    """Return a target that is a function."""
    return target if isinstance(target, FunctionDef) else None
