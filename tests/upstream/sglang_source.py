"""Classes and functions of SGLang, run out of its wheel without what they import.

A class is made of its own text: a backend's of what concerns one attribute, another's of its
methods. What its code names beyond that is a `Bag`, which tells the server's arguments alone.
"""

from __future__ import annotations

import ast
import builtins
import enum
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any, Self, TypeAlias

from tests.upstream.sglang_wheel import find_wheel

NEEDS = "needs_cpu_seq_lens"
SPECULATION = "sglang.srt.speculative."
BACKENDS = ("sglang.srt.layers.attention.", "sglang.srt.hardware_backend.")
Value: TypeAlias = Any
"""A value of SGLang, whose classes are not known here."""
_Definition: TypeAlias = ast.ClassDef | ast.FunctionDef
_DECORATORS = frozenset({"property", "cached_property", "classmethod", "staticmethod"})


class NotComparableError(Exception):
    """SGLang's code asks for what has no stand-in, so its answer is not known."""


class Bag:
    """Stands in for whatever has arguments: each by its name, below any other name."""

    def __init__(self, values: Mapping[str, object], path: str) -> None:
        self.__dict__.update(_values=values, _path=path)

    def __getattr__(self, name: str) -> Value:
        """Return the argument of that name, or what may have arguments below."""
        if name.startswith("__"):
            raise AttributeError(name)
        values = self._values
        return values[name] if name in values else Bag(values, f"{self._path}.{name}")

    def __mul__(self, _other: object) -> Bag:
        return Bag(self._values, f"{self._path} * ...")

    def __call__(self, *_args: object, **_named: object) -> Bag:
        """Return what may have arguments below, as any call here does."""
        return Bag(self._values, f"{self._path}()")

    def __getitem__(self, key: object) -> Bag:
        return Bag(self._values, f"{self._path}[{key!r}]")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_why: object) -> None:
        pass

    def __bool__(self) -> bool:
        raise NotComparableError(f"whether {self._path} holds is not known")

    def __iter__(self) -> Iterator[object]:
        raise NotComparableError(f"what is in {self._path} is not known")

    def __eq__(self, other: object) -> bool:
        raise NotComparableError(f"whether {self._path} is {other!r} is not known")

    def __hash__(self) -> int:
        return id(self)


class Source:
    """What a wheel defines, made anew for one server."""

    def __init__(
        self, version: str, values: Mapping[str, object], stand_ins: Mapping[str, object]
    ) -> None:
        """Make it for the server's final arguments; `stand_ins` go before what has their name."""
        self.version = version
        self.values = values
        self.stand_ins = stand_ins
        self._made: dict[tuple[str, str], object] = {}

    def found(self, module: str, name: str) -> Value:
        """Return what a name of a module means."""
        if name in self.stand_ins:
            return self.stand_ins[name]
        key = _origin(self.version, module, name)
        if key not in self._made:
            self._made[key] = self._make(*key)
        return self._made[key]

    def defines(self, module: str, name: str) -> bool:
        """Return whether a module has a class or a function of this name."""
        return isinstance(_definitions(self.version, module).get(name), _Definition)

    def init_of(self, cls: type) -> ast.FunctionDef | None:
        """Return the constructor that a class has, or inherits."""
        for each in cls.__mro__[:-1]:
            node = _definitions(self.version, each.__module__).get(each.__name__)
            if isinstance(node, ast.ClassDef):
                for own in node.body:
                    if isinstance(own, ast.FunctionDef) and own.name == "__init__":
                        return own
        return None

    def run(self, module: str, name: str, node: ast.stmt) -> Value:
        """Execute a definition among a module's names, and return what it defines."""
        names = _Names(self, module)
        if isinstance(node, ast.ClassDef):  # in its body, Python asks no `__missing__`
            own = [each for each in node.body if not isinstance(each, ast.FunctionDef)]
            for each in (each for one in own for each in ast.walk(one)):
                if isinstance(each, ast.Name) and not hasattr(builtins, each.id):
                    names[each.id] = self.found(module, each.id)
        tree = ast.fix_missing_locations(ast.Module(body=[node], type_ignores=[]))
        exec(compile(tree, f"{module} {self.version}", "exec"), names)  # noqa: S102 - pinned
        return names[name]

    def _make(self, module: str, name: str) -> object:
        if module == "enum":
            return getattr(enum, name)
        node = _definitions(self.version, module).get(name)
        is_backend = module.startswith(BACKENDS)
        if isinstance(node, ast.expr):
            return ast.literal_eval(node)
        if node is None or not (is_backend or module.startswith(SPECULATION)):
            return Bag(self.values, f"{module}.{name}")
        if isinstance(node, ast.FunctionDef):
            if is_backend:
                return Bag(self.values, f"{module}.{name}")
            return self.run(module, name, _bare(node))
        bases = [
            base
            for base in node.bases
            if isinstance(base, ast.Name) and isinstance(self.found(module, base.id), type)
        ]
        body = _flagged(node) if is_backend else list(_methods(node))
        made = ast.ClassDef(name, list(bases), [], body or [ast.Pass()], [])
        return self.run(module, name, made)


class _Names(dict[str, object]):
    """The names of a module, each made where it is first used."""

    def __init__(self, source: Source, module: str) -> None:
        super().__init__(
            __name__=module, __builtins__={**vars(builtins), "__import__": self._import}
        )
        self._source, self._module = source, module

    def __missing__(self, name: str) -> object:
        if hasattr(builtins, name):
            raise KeyError(name)
        return self._source.found(self._module, name)

    def _import(self, name: str, *_how: object) -> object:
        """Import nothing: what is asked of a module is made as a name of it."""
        return _Imported(self._source, name)


class _Imported:
    def __init__(self, source: Source, module: str) -> None:
        self._source, self._module = source, module

    def __getattr__(self, name: str) -> object:
        return self._source.found(self._module, name)


@cache
def _parsed(version: str, module: str) -> ast.Module:
    path = module.replace(".", "/")
    with zipfile.ZipFile(find_wheel(version)) as wheel:
        for each in (f"{path}.py", f"{path}/__init__.py"):
            if each in wheel.NameToInfo:
                return ast.parse(wheel.read(each))
    return ast.Module(body=[], type_ignores=[])


@cache
def _definitions(version: str, module: str) -> Mapping[str, _Definition | ast.expr]:
    """List a module's classes, functions and constants, also those that a test guards."""
    found: dict[str, _Definition | ast.expr] = {}
    for node in _within(_parsed(version, module).body):
        match node:
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name):
                found[name] = node
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if _is_literal(value):
                found[name] = value
    return found


@cache
def _imports(version: str, module: str) -> Mapping[str, tuple[str, str]]:
    return {
        alias.asname or alias.name: (node.module or "", alias.name)
        for node in _within(_parsed(version, module).body)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


def _origin(version: str, module: str, name: str) -> tuple[str, str]:
    """Return the module that defines a name, and its name there."""
    imports = _imports(version, module)
    if name in imports and imports[name] != (module, name):
        return _origin(version, *imports[name])
    return module, name


def _within(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    for node in body:
        yield node
        if isinstance(node, ast.If | ast.Try):
            yield from _within(node.body)
            yield from _within(node.orelse)


def _is_literal(value: ast.expr) -> bool:
    try:
        ast.literal_eval(value)
    except ValueError:
        return False
    return True


def _bare(function: ast.FunctionDef) -> ast.FunctionDef:
    """Return a function without annotations, and without decorators that are no descriptors."""
    kept = [each for each in function.decorator_list if ast.unparse(each) in _DECORATORS]
    arguments = function.args
    every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    for each in filter(None, (*every, arguments.vararg, arguments.kwarg)):
        each.annotation = None
    none = ast.Constant(None)
    arguments.defaults = [each if _is_literal(each) else none for each in arguments.defaults]
    arguments.kw_defaults = [
        each if each is None or _is_literal(each) else none for each in arguments.kw_defaults
    ]
    made = ast.FunctionDef(function.name, arguments, [*function.body], kept)
    made.returns = None
    return made


def _methods(node: ast.ClassDef) -> Iterator[ast.stmt]:
    """List a class's methods but for its constructor, and its constants."""
    for each in node.body:
        match each:
            case ast.FunctionDef(name=name) if name != "__init__":
                yield _bare(each)
            case ast.Assign(value=value) if _is_literal(value) or ast.unparse(value) == "auto()":
                yield each


def _flagged(node: ast.ClassDef) -> list[ast.stmt]:
    """List what a backend's class says of the flag, its constructor included."""
    kept: list[ast.stmt] = []
    for each in node.body:
        match each:
            case ast.Assign(targets=[ast.Name(id=name)]) if name == NEEDS:
                kept.append(each)
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value) if (
                name == NEEDS
            ):
                kept.append(ast.Assign([ast.Name(NEEDS, ast.Store())], value))
            case ast.FunctionDef(name=name) if name == NEEDS:
                kept.append(_bare(each))
            case ast.FunctionDef(name="__init__"):
                kept.append(sliced(each, f"self.{NEEDS}"))
    return kept


def sliced(function: ast.FunctionDef, wanted: str) -> ast.FunctionDef:
    """Return a function with those of its statements that a variable depends on."""
    variables = {wanted}
    while True:
        body = list(_kept(function.body, variables))
        more = {
            ast.unparse(each)
            for node in body
            for each in ast.walk(node)
            if isinstance(each, ast.Name | ast.Attribute)
        }
        if more <= variables:
            break
        variables |= more
    made = _bare(function)
    made.body = body or [ast.Pass()]
    return made


def _kept(  # noqa: C901 - one case for each kind of statement
    body: Sequence[ast.stmt], wanted: set[str]
) -> Iterator[ast.stmt]:
    """List the statements that assign what is wanted; of other constructors, all is."""
    for node in body:
        match node:
            case ast.If():
                within = list(_kept(node.body, wanted)), list(_kept(node.orelse, wanted))
                if any(within):
                    yield ast.If(node.test, within[0] or [ast.Pass()], within[1])
            case ast.Assign(targets=targets):
                every = [
                    each for t in targets for each in (t.elts if isinstance(t, ast.Tuple) else (t,))
                ]
                if any(ast.unparse(each) in wanted for each in every):
                    yield node
            case ast.AnnAssign(target=target, value=ast.expr() as value) if (
                ast.unparse(target) in wanted
            ):
                yield ast.Assign([target], value)
            case ast.AugAssign(target=target) if ast.unparse(target) in wanted:
                yield node
            case ast.Import(names=names) | ast.ImportFrom(names=names):
                if any((each.asname or each.name) in wanted for each in names):
                    yield node
            case ast.Expr(value=ast.Call(func=ast.Attribute(attr="__init__"))):
                yield node
