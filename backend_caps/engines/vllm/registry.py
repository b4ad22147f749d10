"""The names that vLLM's registries give to classes of backends."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from backend_caps.engines import problems
from backend_caps.engines.source.guards import Guards, guarded
from backend_caps.engines.source.index import FunctionDef, Index, Target, Value
from backend_caps.engines.source.module import ClassDef, Module
from backend_caps.engines.source.returns import returns

REGISTRY = "vllm/v1/attention/backends/registry.py"
_ENUMS = ("AttentionBackendEnum", "MambaAttentionBackendEnum")


@dataclass(frozen=True, slots=True)
class Member:
    """A name of a registry, with the dotted path of its class."""

    enum: str
    name: str
    path: str
    at: str
    """`file:line`."""


@dataclass(frozen=True, slots=True)
class Made:
    """A class that a dotted path stands for."""

    path: str
    definition: ClassDef
    """The class statement; one inside a function, where a call of it makes the class."""
    call: str | None = None
    """The call that makes it, in the source's words."""


def members(index: Index, version: str) -> Iterator[Member]:
    """List the members of both registries; a placeholder without a class is none."""
    module = index.parse(REGISTRY) if REGISTRY in index.tree.files else None
    for enum in _ENUMS:
        found = [] if module is None else [each for each in module.classes if each.name == enum]
        if not found:
            index.tell(problems.anchor_missing("vllm", version, f"class {enum}", REGISTRY))
        for definition in found:
            yield from _members(index, definition)


def _members(index: Index, definition: ClassDef) -> Iterator[Member]:
    for statement in guarded(definition.node.body):
        match statement.node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                at = definition.module.at(statement.node)
                match value:
                    case ast.Constant(value="" | None):
                        continue
                    case ast.Constant(value=str(path)):
                        yield Member(definition.name, name, path, at)
                    case _:
                        index.tell(problems.name_not_made("vllm", name, at))


def classes_of(index: Index, member: Member) -> list[tuple[Guards, Made]]:
    """Follow a member's path to the class; nothing, and a problem, where there is none."""
    name, module = member.path.rpartition(".")[2], index.module(member.path.rpartition(".")[0])
    targets = [] if module is None else index.resolve(ast.Name(id=name, ctx=ast.Load()), module)
    found = [
        (guards, made) for guards, target in targets for made in _made(index, member.path, target)
    ]
    if not found:
        index.tell(problems.name_not_made("vllm", member.name, member.at))
    return found


def _made(index: Index, path: str, target: Target) -> Iterator[Made]:
    match target:
        case ClassDef():
            yield Made(target.path, target)
        case Value(module=module, node=ast.Call() as call):
            for definition in _returned(index, call, module):
                yield Made(path, definition, ast.unparse(call))


def _returned(index: Index, call: ast.Call, module: Module) -> Iterator[ClassDef]:
    """List the classes that a function defines and returns."""
    for _, function in index.resolve(call.func, module):
        if isinstance(function, FunctionDef):
            scope = function.module.scope_of(function.node.body)
            for case in returns(function.node):
                for _, target in index.resolve(case.value, function.module, (scope,)):
                    if isinstance(target, ClassDef):
                        yield target
