"""The calls by which plugins put classes into vLLM's registries of backends.

`register_backend` is called, or decorates a class. Its second argument is the path of a class, or a
label, as `"ASCEND"` of vllm-ascend: then the registry has no class, and the plugin's platform
returns it.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from backend_caps.engines.source.guards import Function
from backend_caps.engines.source.index import External, FunctionDef, Index, Value
from backend_caps.engines.source.module import ClassDef, Module

REGISTER = "register_backend"
_NEW_NAME = "register"
"""The method of vLLM's enumerations that adds a name."""
_ENUMS = ("AttentionBackendEnum", "MambaAttentionBackendEnum")


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotCall:
    """A call that registers a backend."""

    enum: str
    """The enumeration of the slot."""
    slot: str
    """Its name there, or an expression that only running code knows."""
    is_new: bool
    """Whether the call adds the name."""
    at: str
    """`file:line`."""
    path: str | None = None
    """The class's path: that of the decorated class, or the second argument."""
    text: str | None = None
    """The second argument, where it is a text that is no path: a label."""
    given: str | None = None
    """The second argument as written, where only running code knows it."""

    @property
    def stored(self) -> str | None:
        """What vLLM's registry then has; None where that is not known."""
        return self.path if self.text is None else self.text


def slot_calls(index: Index, folder: str) -> Iterator[SlotCall]:
    """List the calls of a package that register a backend, by file and line.

    Args:
        index: the tree of vLLM with its plugins.
        folder: the package's, with a slash at its end.
    """
    files = {*index.containing(REGISTER.encode(), folder), *index.containing(b"Enum.reg", folder)}
    for module in index.modules(sorted(files)):
        yield from sorted(_of_module(index, module), key=lambda call: _line(call.at))


def _line(at: str) -> int:
    return int(at.rpartition(":")[2])


def _of_module(index: Index, module: Module) -> Iterator[SlotCall]:
    decorated = {
        call: module.definitions[node]
        for node in ast.walk(module.tree)
        if isinstance(node, ast.ClassDef) and node in module.definitions
        for call in node.decorator_list
    }
    aliases = {
        alias.asname or alias.name
        for node in ast.walk(module.tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.name == REGISTER
    }
    for call, around in _calls(module.tree, ()):
        kind = _kind(index, call, module, around, {*aliases, REGISTER})
        if kind is not None:
            yield _Call(index, module, around, call).read(kind, decorated.get(call))


def _calls(node: ast.AST, around: tuple[Function, ...]) -> Iterator[tuple[ast.Call, _Around]]:
    """List the calls under a node, each with the functions around it, innermost first."""
    within = (node, *around) if isinstance(node, Function) else around
    if isinstance(node, ast.Call):
        yield node, around
    for inner in ast.iter_child_nodes(node):
        yield from _calls(inner, within)


_Around = tuple[Function, ...]


def _kind(
    index: Index, call: ast.Call, module: Module, around: _Around, names: Collection[str]
) -> str | None:
    """Return which of vLLM's functions a call is of; None for any other."""
    *_, owner, name = ["", *ast.unparse(call.func).split(".")]
    if name == _NEW_NAME and owner in _ENUMS:
        return _NEW_NAME
    if name not in names:
        return None
    scopes = [module.scope_in(each) for each in around]
    for _, target in index.resolve(call.func, module, scopes):
        match target:
            case FunctionDef(module=home, node=ast.FunctionDef(name=name)):
                path = f"{home.name}.{name}"
            case External(path=path):
                pass
            case _:
                continue
        if path.startswith(f"{index.tree.package}.") and path.endswith(f".{REGISTER}"):
            return REGISTER
    return None


@dataclass(frozen=True, slots=True)
class _Call:
    """A call with its place, to resolve its arguments."""

    index: Index
    module: Module
    around: _Around
    call: ast.Call

    def read(self, kind: str, definition: ClassDef | None) -> SlotCall:
        names = ("name", "value") if kind == _NEW_NAME else ("backend", "class_path", "is_mamba")
        given = dict(zip(names, self.call.args, strict=False))
        given |= {each.arg: each.value for each in self.call.keywords if each.arg is not None}
        slot, value = given.get(names[0]), given.get(names[1])
        enum, name, is_new = self._slot(slot, given.get("is_mamba"))
        if kind == _NEW_NAME and isinstance(self.call.func, ast.Attribute):
            enum, is_new = ast.unparse(self.call.func.value).rpartition(".")[2], True
        text = None if value is None else self._text(value)
        is_label = text is not None and "." not in text
        path = None if text is None or is_label else text
        if (is_label or value is None) and definition is not None:
            path = definition.path
        is_open = value is not None and text is None and ast.unparse(value) != "None"
        return SlotCall(
            enum=enum,
            slot=name,
            is_new=is_new,
            at=self.module.at(self.call),
            path=path,
            text=text if is_label else None,
            given=ast.unparse(value) if value is not None and is_open else None,
        )

    def _slot(self, slot: ast.expr | None, is_mamba: ast.expr | None) -> tuple[str, str, bool]:
        """Return the enumeration, the name, and whether the name is new."""
        stated = is_mamba is not None and ast.unparse(is_mamba) == "True"
        match slot:
            case ast.Attribute(value=enum, attr=name):
                return ast.unparse(enum).rpartition(".")[2], name, False
            case None:
                return _ENUMS[stated], "nothing", False
        text = self._text(slot)
        return _ENUMS[stated], text or ast.unparse(slot), True

    def _text(self, value: ast.expr) -> str | None:
        """Return the text of a constant, also of one that a name stands for."""
        if isinstance(value, ast.Name):
            scopes = [self.module.scope_in(each) for each in self.around]
            match self.index.resolve(value, self.module, scopes):
                case [(_, Value(node=ast.Constant(value=str(text))))]:
                    return text
        match value:
            case ast.Constant(value=str(text)):
                return text
        return None
