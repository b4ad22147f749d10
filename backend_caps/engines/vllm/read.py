"""Read vLLM's attention backends out of its source.

A name of vLLM's registries, such as `FLASH_ATTN`, is a record whose parts are classes; each class
below vLLM's `AttentionBackend` is a record of its own, also where no name is registered for it
and a model asks for it by itself.

vLLM declares nothing about `host_seq_lens`: a builder takes from the batch what it needs. So that
stays undeclared for every class, and counts as a need. Nothing is known of vLLM's rules or of its
command line either.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from backend_caps.capability.backend import Backend
from backend_caps.capability.declaration import Declaration, Part
from backend_caps.capability.facts import Given
from backend_caps.capability.provenance import Source
from backend_caps.capability.status import Status
from backend_caps.engines.reading import EngineReading, not_followed
from backend_caps.engines.source.classes import Classes
from backend_caps.engines.source.files import Tree
from backend_caps.engines.source.guards import Guards, condition, guarded, returns
from backend_caps.engines.source.index import FunctionDef, Index, Target, Value
from backend_caps.engines.source.module import ClassDef, Module
from backend_caps.engines.vllm.records import Made, Records, Roots, names_of

KNOWN_VERSIONS = ("0.33.0",)
"""The versions that the reader was compared with, row by row."""
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


_Registered = Mapping[Member, list[tuple[Guards, Made]]]


def read_vllm(tree: Tree) -> EngineReading:
    """Read the backends of one vLLM; what is not where it is expected becomes a problem."""
    index = Index(tree)
    if tree.version not in KNOWN_VERSIONS:
        index.note_unknown_version(KNOWN_VERSIONS)
    return EngineReading(
        engine="vllm",
        version=tree.version,
        source=tree.source,
        backends=_backends(index),
        rules=None,
        command_line=None,
        problems=index.problems,
        num_files=len(tree.files),
        num_parsed=index.num_parsed,
    )


def _backends(index: Index) -> tuple[Backend, ...]:
    classes = Classes(index)
    roots = Roots.of(index)
    registered = {member: _classes_of(index, member) for member in _members(index)}
    made = [each for found in registered.values() for _, each in found]
    known = {each.definition for each in made}
    others = [each for each in roots.backends(index, classes) if each not in known]
    every = list(dict.fromkeys([*made, *(Made(each.path, each) for each in others)]))
    labels = _labels(registered)
    names = names_of(every, list(labels.values()))
    records = Records(index, classes, roots)
    return (
        *(_of_name(index, labels[member], member, registered[member], names) for member in labels),
        *(
            records.record(names[each], each, _names_for(each, registered, labels))
            for each in every
        ),
    )


def _labels(registered: _Registered) -> dict[Member, str]:
    """Name each member; one whose name another registry has too is named with its own."""
    names = [member.name for member in registered]
    return {
        member: member.name if names.count(member.name) == 1 else f"{member.enum}.{member.name}"
        for member in registered
    }


def _names_for(made: Made, registered: _Registered, labels: Mapping[Member, str]) -> list[str]:
    return [
        labels[member]
        for member, found in registered.items()
        if made in [each for _, each in found]
    ]


def _of_name(
    index: Index,
    label: str,
    member: Member,
    found: list[tuple[Guards, Made]],
    names: Mapping[Made, str],
) -> Backend:
    """Make the record of a name; it is broken where its class is not in the source."""
    source = Source(distribution="vllm", version=index.tree.version, declared_at=member.at)
    if not found:
        missing = not_followed("vllm", member.name, member.at)
        return Backend(name=label, status=Status.BROKEN, source=source, problems=(missing,))
    cases = [(names[made], condition(guards)) for guards, made in found]
    parts = [Part(name, given=Given(expression=when) if when else None) for name, when in cases]
    return Backend(
        name=label, status=Status.OK, source=source, declaration=Declaration(parts=parts)
    )


def _members(index: Index) -> Iterator[Member]:
    """List the members of both registries; a placeholder without a class is none."""
    module = index.parse(REGISTRY)
    for enum in _ENUMS:
        found = [] if module is None else [each for each in module.classes if each.name == enum]
        if not found:
            index.note_missing(f"class {enum}", REGISTRY)
        for definition in found:
            for statement in guarded(definition.node.body):
                match statement.node:
                    case ast.Assign(targets=[ast.Name(id=name)], value=value):
                        at = definition.module.at(statement.node)
                        yield from _member(index, enum, name, value, at)


def _member(index: Index, enum: str, name: str, value: ast.expr, at: str) -> Iterator[Member]:
    match value:
        case ast.Constant(value="" | None):
            return
        case ast.Constant(value=str(path)):
            yield Member(enum, name, path, at)
        case _:
            index.add(not_followed("vllm", name, at))


def _classes_of(index: Index, member: Member) -> list[tuple[Guards, Made]]:
    """Follow a member's path to the class; nothing, and a problem, where there is none."""
    path, _, name = member.path.rpartition(".")
    module = index.module(path)
    targets = [] if module is None else index.resolve(ast.Name(id=name, ctx=ast.Load()), module)
    found = [
        (guards, made) for guards, target in targets for made in _made(index, member.path, target)
    ]
    if not found:
        index.add(not_followed("vllm", member.name, member.at))
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
