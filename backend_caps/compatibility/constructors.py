"""What the call of a class takes, by its constructor or the fields of a dataclass."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from backend_caps.compatibility.decorators import keeps_signature, names_of
from backend_caps.compatibility.places import Place
from backend_caps.compatibility.signatures import Parameter, Signature, plain
from backend_caps.engines.source.index import External, FunctionDef
from backend_caps.engines.source.module import ClassDef

if TYPE_CHECKING:
    from backend_caps.compatibility.pair import Pair

_PLAIN_BASES = frozenset(
    {"abc.ABC", "typing.Generic", "typing.Protocol", "typing_extensions.Protocol"}
    | {"torch.nn.Module", "torch.nn.modules.module.Module", "builtins.object"}
)
"""Bases outside of the tree that leave a constructor as it is written."""
_NO_FIELDS = ("ClassVar", "KW_ONLY")
_FIELD_FUNCTIONS = frozenset({"field", "Field"})


def constructor_of(pair: Pair, definition: ClassDef) -> Signature | None:
    """Read what a call of a class takes; None where the source does not tell.

    Fields of a dataclass are those of its bases and its own, in the order of `dataclasses`.
    """
    order = pair.classes.order(definition)
    if any(isinstance(each, ClassDef) and _makes_instances(each) for each in order):
        return None
    for base in order:
        if isinstance(base, External):
            if base.path in _PLAIN_BASES:
                continue
            return None
        if (method := base.methods.get("__init__")) is not None:
            function = FunctionDef(base.module, method, base)
            is_plain = keeps_signature(pair, function)
            return Signature.of(method, is_bound=True) if is_plain else None
        if is_dataclass(pair, base):
            if not _has_option(base, "init", value=False):
                return _of_fields(pair, base)
        elif base.node.decorator_list:
            return None
    return Signature(()) if pair.is_whole(definition) else None


def _makes_instances(definition: ClassDef) -> bool:
    """Return whether a class makes its instances itself, or its metaclass does."""
    new = definition.methods.get("__new__")
    takes_all = new is not None and new.args.vararg is not None and new.args.kwarg is not None
    return bool(definition.node.keywords) or (new is not None and not takes_all)


def is_dataclass(pair: Pair, definition: ClassDef) -> bool:
    """Return whether a decorator makes a class a dataclass; an engine has its own ones too."""
    if "dataclass" in names_of(definition.node):
        return True
    for node in definition.node.decorator_list:
        called = node.func if isinstance(node, ast.Call) else node
        for target in pair.resolve(called, Place(definition.module, node)):
            if isinstance(target, FunctionDef) and "dataclass_transform" in names_of(target.node):
                return True
    return False


def _of_fields(pair: Pair, definition: ClassDef) -> Signature | None:
    """Read the fields of a dataclass and of those among its bases."""
    if pair.has_member(definition, "__init__") is None:
        return None  # for a base that is not in the tree may have fields
    fields: dict[str, Parameter] = {}
    for base in reversed(pair.classes.ancestors(definition)):
        if is_dataclass(pair, base):
            fields |= {each.name: each for each in _fields(base)}
    return Signature(tuple(sorted(fields.values(), key=lambda each: not each.is_positional)))


def _fields(definition: ClassDef) -> Iterator[Parameter]:
    is_named = _has_option(definition, "kw_only", value=True)
    for node in definition.node.body:
        if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name):
            continue
        kind = ast.unparse(node.annotation)
        is_named |= "KW_ONLY" in kind
        if any(each in kind for each in _NO_FIELDS):
            continue
        settings, has_default = _settings(node.value)
        match settings.get("init"):
            case ast.Constant(value=False):
                continue
        match settings.get("kw_only"):
            case ast.Constant(value=bool(alone)):
                pass
            case _:
                alone = is_named
        value = settings.get("default", node.value)
        yield Parameter(
            node.target.id, not has_default, is_positional=not alone, default=plain(value)
        )


def _settings(value: ast.expr | None) -> tuple[dict[str | None, ast.expr], bool]:
    """Return the keywords of a field's `field(...)`, and whether it has a default."""
    match value:
        case ast.Call(func=func) if ast.unparse(func).rpartition(".")[2] in _FIELD_FUNCTIONS:
            settings = {each.arg: each.value for each in value.keywords}
            has_default = not settings.keys().isdisjoint({"default", "default_factory"})
            return settings, has_default or bool(value.args)
    return {}, value is not None


def _has_option(definition: ClassDef, name: str, *, value: bool) -> bool:
    """Return whether a decorator of a class is given an option."""
    return any(
        keyword.arg == name
        and isinstance(keyword.value, ast.Constant)
        and keyword.value.value is value
        for decorator in definition.node.decorator_list
        if isinstance(decorator, ast.Call)
        for keyword in decorator.keywords
    )
