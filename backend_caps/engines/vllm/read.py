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
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

from backend_caps.capability.backend import Backend, EngineClass, Reading
from backend_caps.capability.declaration import Part
from backend_caps.capability.facts import Given
from backend_caps.capability.provenance import Origin, Source, Status
from backend_caps.engines.reading import EngineReading, declared, not_followed, record
from backend_caps.engines.source.classes import Classes, labels
from backend_caps.engines.source.files import Tree
from backend_caps.engines.source.guards import Guards, condition, guarded, returns
from backend_caps.engines.source.index import FunctionDef, Index, Target, Value
from backend_caps.engines.source.module import ClassDef, Module
from backend_caps.engines.vllm.capabilities import Graphs, Limits
from backend_caps.engines.vllm.constants import Constants
from backend_caps.engines.vllm.lookup import Answer, Lookup

KNOWN_VERSIONS = ("0.33.0",)
"""The versions that the reader was compared with, row by row."""
REGISTRY = "vllm/v1/attention/backends/registry.py"
_ENUMS = ("AttentionBackendEnum", "MambaAttentionBackendEnum")
ROOTS = "vllm/v1/attention/backend.py"
BACKEND = "AttentionBackend"
BUILDER = "AttentionMetadataBuilder"
_AS_CAPABILITIES = frozenset(
    {
        "_cudagraph_support",
        "supported_dtypes",
        "supports_block_size",
        "supports_compute_capability",
        "supports_dtype",
        "supports_head_size",
        "supports_kv_cache_dtype",
    }
)
"""Flags of the roots that are read as capabilities."""
_QUESTIONS = ("supports_", "supported_", "is_")
_MORE = ("get_builder_cls", "get_supported_kernel_block_sizes")


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
    own_names = _own_names(registered)
    made_names = labels([(each.path, each.definition) for each in every], taken=own_names.values())
    names = dict(zip(every, made_names, strict=True))
    records = Records(index, classes, roots)
    return (
        *(
            _of_name(index, label, member, registered[member], names)
            for member, label in own_names.items()
        ),
        *(
            records.record(names[each], each, _names_for(each, registered, own_names))
            for each in every
        ),
    )


def _own_names(registered: _Registered) -> dict[Member, str]:
    """Name each member; one whose name another registry has too is named with its own."""
    names = [member.name for member in registered]
    return {
        member: member.name if names.count(member.name) == 1 else f"{member.enum}.{member.name}"
        for member in registered
    }


def _names_for(made: Made, registered: _Registered, own_names: Mapping[Member, str]) -> list[str]:
    return [
        own_names[member]
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
    return record(label, source, parts)


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


@dataclass(frozen=True, slots=True)
class Roots:
    """The classes whose values are defaults."""

    backend: ClassDef | None
    builder: ClassDef | None

    @classmethod
    def of(cls, index: Index) -> Roots:
        """Find them; one that is not where it is expected is a problem."""
        module = index.parse(ROOTS)
        found = {} if module is None else {each.name: each for each in module.classes}
        for name in (BACKEND, BUILDER):
            if name not in found:
                index.note_missing(f"class {name}", ROOTS)
        return cls(found.get(BACKEND), found.get(BUILDER))

    def backends(self, index: Index, classes: Classes) -> Iterator[ClassDef]:
        """List every class below the root of the backends."""
        if self.backend is not None:
            for path in index.heads.files_below({BACKEND}):
                module = index.parse(path)
                for each in () if module is None else module.classes:
                    if classes.descends(each, self.backend.path):
                        yield each


class Records:
    """Reads classes, one by one."""

    def __init__(self, index: Index, classes: Classes, roots: Roots) -> None:
        self._roots = roots
        self._version = index.tree.version
        self._lookup = Lookup(classes, [each for each in (roots.backend, roots.builder) if each])
        self._constants = Constants(index)
        self._graphs = Graphs(index, self._lookup)
        self._limits = Limits(self._constants, self._lookup)

    def record(self, name: str, made: Made, registered_as: Collection[str]) -> Backend:
        """Make the record of a class."""
        definition = made.definition
        builders = self._graphs.builders(definition)
        graphs = self._graphs.finding(definition, builders)
        limits = self._limits.findings(definition)
        findings = limits if graphs is None else {"graph_replay": graphs, **limits}
        attributes = self._readings(definition, (*self._flags(self._roots.backend), *_MORE))
        match builders:
            case [(_, builder)]:
                attributes |= self._readings(builder, self._flags(self._roots.builder))
        return record(
            name,
            Source(distribution="vllm", version=self._version, declared_at=definition.at),
            declared(findings),
            EngineClass(
                path=made.path,
                registered_as=tuple(sorted(registered_as)),
                readings={capability: each.reading for capability, each in findings.items()},
                attributes=attributes,
                composite=made.call,
            ),
        )

    def _flags(self, root: ClassDef | None) -> list[str]:
        """List a root's flags: what its body assigns, and its methods that answer a question."""
        names = self._lookup.names_of(root).items() if root is not None else ()
        flags = {name for name, is_method in names if not is_method or name.startswith(_QUESTIONS)}
        return sorted(flags - _AS_CAPABILITIES)

    def _readings(self, definition: ClassDef, names: Iterable[str]) -> dict[str, Reading]:
        found = {name: self._lookup.below_root(definition, name) for name in names}
        return {name: self._reading(definition, each) for name, each in found.items() if each}

    def _reading(self, definition: ClassDef, answer: Answer) -> Reading:
        value: object = None
        match answer.only:
            case ast.Constant(value=constant):
                value, is_known = constant, True
            case ast.Name(id=name) if answer.name == "get_builder_cls":
                value, is_known = name, True
            case only:
                value = None if only is None else self._constants.items(only, answer)
                is_known = value is not None
        return answer.reading(
            definition,
            origin=Origin.DECLARED if is_known else Origin.CONDITIONAL,
            words=answer.text if is_known else answer.text_in_full,
            value=value,
        )
