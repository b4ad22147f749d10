"""vLLM's backend classes as records: declarations, and readings of the source."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from backend_caps.capability.backend import Backend, EngineClass, Reading
from backend_caps.capability.declaration import Declaration, When
from backend_caps.capability.facts import Given
from backend_caps.capability.provenance import Origin, Source
from backend_caps.capability.scale import UNDECLARED
from backend_caps.capability.status import Status
from backend_caps.capability.vocabulary import Capabilities
from backend_caps.engines.source.classes import Classes
from backend_caps.engines.source.index import Index
from backend_caps.engines.source.module import ClassDef
from backend_caps.engines.vllm.capabilities import Graphs, Limits
from backend_caps.engines.vllm.constants import Constants
from backend_caps.engines.vllm.lookup import Answer, Finding, Lookup

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
class Made:
    """A class that a dotted path stands for."""

    path: str
    definition: ClassDef
    """The class statement; one inside a function, where a call of it makes the class."""
    call: str | None = None
    """The call that makes it, in the source's words."""


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
            for path in index.files_of_descendants({BACKEND}):
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
        return Backend(
            name=name,
            status=Status.OK,
            source=Source(distribution="vllm", version=self._version, declared_at=definition.at),
            declaration=_declaration(findings),
            engine_class=EngineClass(
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


def _declaration(findings: Mapping[str, Finding]) -> Declaration:
    stated = {name: each.base for name, each in findings.items() if each.base is not UNDECLARED}
    conditions = [
        When(
            given=Given(expression=expression),
            capabilities=Capabilities.model_validate({name: value}),
            reason=each.reading.words,
        )
        for name, each in findings.items()
        for expression, value in each.conditions
    ]
    return Declaration(capabilities=Capabilities.model_validate(stated), conditions=conditions)


def names_of(made: Sequence[Made], taken: Collection[str]) -> dict[Made, str]:
    """Name each class by itself, or by as much of its module as tells it from its namesakes.

    Classes that one module defines twice are told apart by their lines.
    """
    spelled = {each: list(reversed(each.path.split("."))) for each in made}
    lengths = dict.fromkeys(made, 1)
    while True:
        names = {each: ".".join(reversed(spelled[each][: lengths[each]])) for each in made}
        used = [*taken, *names.values()]
        short = [
            each
            for each, name in names.items()
            if used.count(name) > 1 and lengths[each] < len(spelled[each])
        ]
        if not short:
            break
        for each in short:
            lengths[each] += 1
    found = list(names.values())
    return {
        each: f"{name}:{each.definition.node.lineno}" if found.count(name) > 1 else name
        for each, name in names.items()
    }
