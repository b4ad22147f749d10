"""One class of backends: its declaration, and what its source says in its own words."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from backend_caps.capability.backend import Backend, EngineClass, Reading
from backend_caps.capability.provenance import Source
from backend_caps.capability.status import Status
from backend_caps.engines import problems
from backend_caps.engines.source.classes import Classes
from backend_caps.engines.source.guards import Guards
from backend_caps.engines.source.index import Index
from backend_caps.engines.source.module import ClassDef
from backend_caps.engines.vllm.constants import Constants
from backend_caps.engines.vllm.findings import declaration_of
from backend_caps.engines.vllm.flags import Flags
from backend_caps.engines.vllm.graphs import Graphs
from backend_caps.engines.vllm.limits import Limits
from backend_caps.engines.vllm.lookup import Lookup
from backend_caps.engines.vllm.registry import Made

ROOTS = "vllm/v1/attention/backend.py"
BACKEND = "AttentionBackend"
BUILDER = "AttentionMetadataBuilder"


@dataclass(frozen=True, slots=True)
class Roots:
    """The classes whose values are defaults that nobody stated."""

    backend: ClassDef | None
    builder: ClassDef | None

    @classmethod
    def of(cls, index: Index, version: str) -> Roots:
        """Find them; one that is not where it is expected is a problem."""
        module = index.parse(ROOTS) if ROOTS in index.tree.files else None
        found = {} if module is None else {each.name: each for each in module.classes}
        for name in (BACKEND, BUILDER):
            if name not in found:
                index.tell(problems.anchor_missing("vllm", version, f"class {name}", ROOTS))
        return cls(found.get(BACKEND), found.get(BUILDER))

    def backends(self, index: Index, classes: Classes) -> Iterator[ClassDef]:
        """List every class below the root of the backends."""
        if self.backend is not None:
            for path in index.files_of_descendants({BACKEND}):
                module = index.parse(path)
                for each in () if module is None else module.classes:
                    if classes.descends(each, self.backend.path):
                        yield each


class ClassReader:
    """Reads classes, one by one."""

    def __init__(self, index: Index, classes: Classes, roots: Roots) -> None:
        lookup = Lookup(classes, [each for each in (roots.backend, roots.builder) if each])
        constants = Constants(index)
        self._roots = roots
        self._version = index.tree.version
        self._graphs = Graphs(index, lookup)
        self._limits = Limits(constants, lookup)
        self._flags = Flags(constants, lookup)

    def record(self, name: str, made: Made, registered_as: Collection[str]) -> Backend:
        """Make the record of a class."""
        definition = made.definition
        builders = self._graphs.builders(definition)
        graphs = self._graphs.finding(definition, builders)
        limits = self._limits.findings(definition)
        findings = limits if graphs is None else {"graph_replay": graphs, **limits}
        return Backend(
            name=name,
            status=Status.OK,
            source=Source(distribution="vllm", version=self._version, declared_at=definition.at),
            declaration=declaration_of(findings),
            engine_class=EngineClass(
                path=made.path,
                registered_as=tuple(sorted(registered_as)),
                readings={capability: each.reading for capability, each in findings.items()},
                attributes=self._attributes(definition, builders),
                composite=made.call,
            ),
        )

    def _attributes(
        self, definition: ClassDef, builders: list[tuple[Guards, ClassDef]] | None
    ) -> dict[str, Reading]:
        own = self._flags.of_backend(self._roots.backend, definition)
        match builders:
            case [(_, builder)]:
                return own | self._flags.of_builder(self._roots.builder, builder)
        return own


def names_of(made: Sequence[Made], taken: Collection[str]) -> dict[Made, str]:
    """Name each class by itself, or by as much of its module as tells it from its namesakes."""
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
            return _with_lines(names)
        for each in short:
            lengths[each] += 1


def _with_lines(names: dict[Made, str]) -> dict[Made, str]:
    """Tell classes that one module defines twice by their lines."""
    found = list(names.values())
    return {
        each: f"{name}:{each.definition.node.lineno}" if found.count(name) > 1 else name
        for each, name in names.items()
    }
