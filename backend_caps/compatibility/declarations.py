"""What a plugin declares of a backend, beside what the class of it tells the engine."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import EnumType
from typing import Any, cast

import backend_caps
from backend_caps.capability.backend import Backend, Reading
from backend_caps.capability.declaration import Declaration
from backend_caps.capability.facts import text_of
from backend_caps.capability.provenance import Origin
from backend_caps.compatibility.contact import Contact, ContactKind, Verdict
from backend_caps.compatibility.pair import Pair
from backend_caps.compatibility.places import Place
from backend_caps.compatibility.plugin import EntryPoint
from backend_caps.discovery.scan import BACKENDS
from backend_caps.engines.sglang.read import read_sglang
from backend_caps.engines.source.guards import returns
from backend_caps.engines.source.index import External, FunctionDef, Value
from backend_caps.engines.source.module import ClassDef, Module
from backend_caps.engines.vllm.read import read_backends

_WORDS = frozenset(
    {"ANY", "UNDECLARED", "AtLeast", "ComputeRange", "Exact", "Given", "MultipleOf", "OneOf"}
    | {"AttentionArch", "AttentionType", "BatchKind", "GraphMetadata", "HostSeqLens", "KVLayout"}
    | {"Phase", "Role", "SharedReadsEnd", "Capabilities", "Declaration", "Part", "When"}
)
"""What `backend_caps` exports for declarations."""
_BUILTINS = {each.__name__: each for each in (frozenset, set, tuple, list, dict)}

_Statement = tuple[object, Reading]
"""The value of a capability, and how a class states it."""


class _UnknownError(Exception):
    """An expression is made of more than literals and what `backend_caps` exports."""

    def __init__(self, words: str) -> None:
        super().__init__(f"only running code knows {words}")


def declarations(pair: Pair) -> Iterator[Contact]:
    """Compare each declaration that names a class for the engine with what the class states."""
    for point in pair.plugin.entry_points:
        if point.group == BACKENDS:
            yield from _compared(pair, point)


def _compared(pair: Pair, point: EntryPoint) -> Iterator[Contact]:
    module = pair.index.module(point.module)
    if module is None:
        return
    try:
        declaration = _Values(pair).value(ast.Name(id=point.attribute, ctx=ast.Load()), module)
    except Exception as error:  # noqa: BLE001 - a constructor of ours refuses values in many ways
        yield _open(point, f"its declaration is not read: {error}")
        return
    if not isinstance(declaration, Declaration):
        return
    places = [each for engine, each in declaration.adapters.items() if engine == pair.engine]
    for place in places:
        yield from _claims(pair, point, declaration, place)


def _claims(
    pair: Pair, point: EntryPoint, declaration: Declaration, place: str
) -> Iterator[Contact]:
    definition = _made(pair, place)
    told = {} if definition is None else _stated(pair, definition)
    if definition is None or not told:
        yield _open(point, f"what {place} makes for {pair.engine} is no class that is read")
        return
    stated = declaration.capabilities.stated()
    # A condition may state another value, and the class may do so under the same condition.
    conditional = {name for when in declaration.conditions for name in when.capabilities.stated()}
    for name in sorted(stated.keys() & told.keys() - conditional):
        yield _claim(point, definition, (name, stated[name]), told[name])


def _claim(
    point: EntryPoint, definition: ClassDef, declared: tuple[str, object], told: _Statement
) -> Contact:
    (name, value), (own, reading) = declared, told
    is_same = value == own
    claims = f"declares {name}={text_of(value)}"
    return Contact(
        kind=ContactKind.CLAIM,
        verdict=Verdict.HOLDS if is_same else Verdict.CHANGED,
        what=f"{point.name}.{name}",
        at=reading.declared_at or definition.at,
        why="" if is_same else f"it {claims}; its class tells the engine {text_of(own)}",
        remedy="" if is_same else f"state the same in both: {reading.words}",
    )


def _open(point: EntryPoint, why: str) -> Contact:
    return Contact(
        kind=ContactKind.CLAIM, verdict=Verdict.NOT_CHECKED, what=point.name, at=point.at, why=why
    )


def _made(pair: Pair, place: str) -> ClassDef | None:
    """Return the class at `package.module:Name`, or that of what the function there returns."""
    source, _, name = place.partition(":")
    module = pair.index.module(source)
    if module is None:
        return None
    for _, target in pair.index.resolve(ast.Name(id=name, ctx=ast.Load()), module):
        match target:
            case ClassDef():
                return target
            case FunctionDef(module=own, node=function):
                around = Place(own, function, functions=(function,))
                for case in returns(function):
                    value = case.value.func if isinstance(case.value, ast.Call) else case.value
                    for made in pair.resolve(value, around):
                        if isinstance(made, ClassDef):
                            return made
    return None


def _stated(pair: Pair, definition: ClassDef) -> Mapping[str, _Statement]:
    """Read what a class states itself, with a value that no condition changes."""
    records: Iterable[Backend]
    if pair.engine == "vllm":
        records = read_backends(pair.index, [definition.path]).backends
    else:
        records = read_sglang(pair.index.tree).backends
    for each in records:
        own = each.engine_class
        if own is not None and own.path == definition.path and each.declaration is not None:
            return {
                name: (value, own.readings[name])
                for name, value in each.declaration.capabilities.stated().items()
                if own.readings[name].origin is Origin.DECLARED
            }
    return {}


class _Values:
    """Evaluates a declaration's expression without its module: nothing of a plugin is run."""

    def __init__(self, pair: Pair) -> None:
        self._pair = pair

    def value(self, node: ast.expr, module: Module) -> Any:  # noqa: ANN401 - of any kind
        """Return what an expression of a module makes.

        Raises:
            _UnknownError: it names or calls something else than `backend_caps` exports.
        """
        match node:
            case ast.Constant(value=constant):
                return constant
            case ast.Set(elts=parts) | ast.List(elts=parts) | ast.Tuple(elts=parts):
                kind = {ast.Set: frozenset, ast.List: list, ast.Tuple: tuple}[type(node)]
                return kind(self.value(each, module) for each in parts)
            case ast.Dict(keys=[*keys], values=values) if None not in keys:
                pairs = zip(filter(None, keys), values, strict=True)
                return {self.value(k, module): self.value(v, module) for k, v in pairs}
            case ast.Call(func=func, args=arguments, keywords=keywords) if all(
                each.arg is not None for each in keywords
            ):
                named = {str(each.arg): self.value(each.value, module) for each in keywords}
                given = [self.value(each, module) for each in arguments]
                return _callable(self.value(func, module), func)(*given, **named)
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return -self.value(operand, module)
            case ast.BinOp(left=left, op=ast.BitOr(), right=right):
                return self.value(left, module) | self.value(right, module)
            case ast.Name() | ast.Attribute():
                return self._named(node, module)
        raise _UnknownError(ast.unparse(node))

    def _named(self, node: ast.Name | ast.Attribute, module: Module) -> Any:  # noqa: ANN401 - as above
        for _, target in self._pair.index.resolve(node, module):
            match target:
                case Value(node=own, module=there) if own is not node:
                    return self.value(own, there)
                case External(path=path) if path.startswith("backend_caps."):
                    return _exported(path)
                case External(path=path) if path.removeprefix("builtins.") in _BUILTINS:
                    return _BUILTINS[path.removeprefix("builtins.")]
        raise _UnknownError(ast.unparse(node))


def _exported(path: str) -> Any:  # noqa: ANN401 - of any kind
    """Return what `backend_caps` exports by a name, or a member of an enumeration there."""
    _, name, *members = path.split(".")
    if name not in _WORDS:
        raise _UnknownError(path)
    found = getattr(backend_caps, name)
    match members:
        case []:
            return found
        case [member] if isinstance(found, EnumType):
            return found[member]
    raise _UnknownError(path)


def _callable(found: Any, func: ast.expr) -> Callable[..., Any]:  # noqa: ANN401 - of any kind
    """Return what may be called: a class itself, for its methods may read files."""
    exported = (getattr(backend_caps, name) for name in _WORDS)
    if any(found is each for each in (*_BUILTINS.values(), *exported)):
        return cast("Callable[..., Any]", found)
    raise _UnknownError(ast.unparse(func))
