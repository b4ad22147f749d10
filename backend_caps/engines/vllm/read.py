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
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from backend_caps.capability.backend import Backend, EngineClass, Reading
from backend_caps.capability.declaration import Declaration, Part
from backend_caps.capability.facts import Given
from backend_caps.capability.provenance import Origin, Status
from backend_caps.engines.reading import EngineReading, class_record, not_followed
from backend_caps.engines.source.classes import Classes, labels
from backend_caps.engines.source.files import Tree
from backend_caps.engines.source.guards import Guarded, condition, returns
from backend_caps.engines.source.index import FunctionDef, Index, Value
from backend_caps.engines.source.module import ClassDef, Module
from backend_caps.engines.vllm.capabilities import Findings
from backend_caps.engines.vllm.lookup import Answer, Lookup

KNOWN_VERSIONS = ("0.33.0",)
"""The versions that the reader was compared with, row by row."""
REGISTRY = "vllm.v1.attention.backends.registry"
_ENUMS = ("AttentionBackendEnum", "MambaAttentionBackendEnum")
ROOTS = "vllm.v1.attention.backend"
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
class Made:
    """A class that a dotted path stands for."""

    path: str
    definition: ClassDef
    """The class statement; one inside a function, where a call of it makes the class."""
    call: str | None = None
    """The call that makes it, in the source's words."""


@dataclass(frozen=True, slots=True)
class Name:
    """A name of a registry, and the classes that it stands for."""

    enum: str
    name: str
    at: str
    """`file:line`."""
    made: tuple[Guarded[Made], ...]
    """Nothing where its class is not in the source."""


def read_vllm(tree: Tree) -> EngineReading:
    """Read the backends of one vLLM; what is not where it is expected becomes a problem."""
    index = Index(tree)
    index.note_unless_known(KNOWN_VERSIONS)
    return index.reading(_Records(index).all())


def _names(index: Index) -> Iterator[Name]:
    """List the names of both registries; a placeholder without a class is none."""
    for enum in _ENUMS:
        definition = index.class_in(REGISTRY, enum)
        for each in definition.given if definition else ():
            match each.value:
                case ast.Constant(value="" | None) | ast.FunctionDef() | ast.AsyncFunctionDef():
                    continue
                case ast.Constant(value=str(path)):
                    made = tuple(_classes_at(index, path))
                    yield Name(enum, each.name, each.at, made)
                    if made:
                        continue
            index.add(not_followed("vllm", each.name, each.at))


def _classes_at(index: Index, path: str) -> Iterator[Guarded[Made]]:
    """Follow a dotted path to the classes that it may stand for."""
    source, _, name = path.rpartition(".")
    module = index.module(source)
    targets = [] if module is None else index.resolve(ast.Name(id=name, ctx=ast.Load()), module)
    for guards, target in targets:
        match target:
            case ClassDef():
                yield Guarded(guards, Made(target.path, target))
            case Value(module=made_in, node=ast.Call() as call):
                for definition in _returned(index, call, made_in):
                    yield Guarded(guards, Made(path, definition, ast.unparse(call)))


def _returned(index: Index, call: ast.Call, module: Module) -> Iterator[ClassDef]:
    """List the classes that a function defines and returns."""
    for _, function in index.resolve(call.func, module):
        if isinstance(function, FunctionDef):
            scope = function.module.scope_of(function.node.body)
            for case in returns(function.node):
                for _, target in index.resolve(case.value, function.module, (scope,)):
                    if isinstance(target, ClassDef):
                        yield target


class _Records:
    """A record for each name of the registries, and for each class."""

    def __init__(self, index: Index) -> None:
        self._index = index
        classes = Classes(index)
        roots = {name: index.class_in(ROOTS, name) for name in (BACKEND, BUILDER)}
        self._roots = {name: each for name, each in roots.items() if each is not None}
        self._lookup = Lookup(classes, self._roots.values())
        self._findings = Findings(self._lookup)
        names = list(_names(index))
        often = Counter(each.name for each in names)
        self._names = {
            each.name if often[each.name] == 1 else f"{each.enum}.{each.name}": each
            for each in names
        }
        made = [one for each in self._names.values() for _, one in each.made]
        known = {each.definition for each in made}
        below = index.heads.files_below({BACKEND}) if BACKEND in self._roots else ()
        others = (
            Made(each.path, each)
            for each in index.classes_of(below)
            if each not in known and classes.descends(each, self._roots[BACKEND].path)
        )
        every = list(dict.fromkeys([*made, *others]))
        found = labels([(each.path, each.definition) for each in every], taken=self._names)
        self._made = dict(zip(every, found, strict=True))

    def all(self) -> Iterator[Backend]:
        """List the names, then the classes."""
        for label, name in self._names.items():
            yield self._of_name(label, name)
        for made, label in self._made.items():
            yield self._of_class(label, made)

    def _of_name(self, label: str, name: Name) -> Backend:
        """Make the record of a name; it is broken where its class is not in the source."""
        source = self._index.source(name.at)
        if not name.made:
            missing = not_followed("vllm", name.name, name.at)
            return Backend(name=label, status=Status.BROKEN, source=source, problems=(missing,))
        cases = [(self._made[made], condition(guards)) for guards, made in name.made]
        parts = [Part(each, given=Given(expression=when) if when else None) for each, when in cases]
        return Backend(name=label, source=source, declaration=Declaration(parts=parts))

    def _of_class(self, label: str, made: Made) -> Backend:
        definition = made.definition
        builders = self._findings.builders(definition)
        findings = self._findings.of(definition, builders)
        attributes = self._readings(definition, (*self._flags(BACKEND), *_MORE))
        match builders:
            case [(_, builder)]:
                attributes |= self._readings(builder, self._flags(BUILDER))
        names = (name for name, own in self._names.items() if made in [one for _, one in own.made])
        own = EngineClass(
            path=made.path,
            registered_as=tuple(sorted(names)),
            attributes=attributes,
            composite=made.call,
        )
        return class_record(label, self._index.source(definition.at), findings, own)

    def _flags(self, root: str) -> list[str]:
        """List a root's flags: what its body assigns, and its methods that answer a question."""
        own = self._lookup.stated(self._roots[root]).items() if root in self._roots else ()
        flags = {n for n, each in own if not each.function or n.startswith(_QUESTIONS)}
        return sorted(flags - _AS_CAPABILITIES)

    def _readings(self, definition: ClassDef, names: Iterable[str]) -> dict[str, Reading]:
        found = {name: self._lookup.below_root(definition, name) for name in names}
        return {name: self._reading(definition, each) for name, each in found.items() if each}

    def _reading(self, definition: ClassDef, answer: Answer) -> Reading:
        value: object = None
        match answer.only:
            case ast.Constant(value=constant):
                value, is_known = constant, True
            case ast.Name(id=name) if answer.last.name == "get_builder_cls":
                value, is_known = name, True
            case only:
                value = None if only is None else answer.items(only)
                is_known = value is not None
        if is_known:
            return answer.reading_for(definition, Origin.DECLARED, answer.text, value)
        return answer.reading_for(definition, Origin.CONDITIONAL, answer.text_in_full)
