"""Which batches a backend's metadata builder can replay a captured graph for.

vLLM's levels map to growing sets: what a level can replay, a higher one can too.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import replace

from backend_caps.capability.backend import Reading
from backend_caps.capability.provenance import Origin
from backend_caps.capability.vocabulary import BatchKind
from backend_caps.engines.source.guards import Guards
from backend_caps.engines.source.index import Index
from backend_caps.engines.source.module import ClassDef
from backend_caps.engines.vllm.findings import Finding, Values, conditional, finding
from backend_caps.engines.vllm.lookup import Answer, Lookup

LEVELS: Mapping[str, frozenset[BatchKind]] = {
    "NEVER": frozenset(),
    "UNIFORM_SINGLE_TOKEN_DECODE": frozenset({BatchKind.SINGLE_TOKEN_DECODE}),
    "UNIFORM_BATCH": frozenset({BatchKind.SINGLE_TOKEN_DECODE, BatchKind.UNIFORM_BATCH}),
    "ALWAYS": frozenset(BatchKind),
}
_SCALE = "AttentionCGSupport"
_ATTRIBUTE = "_cudagraph_support"
_METHOD = "get_cudagraph_support"
_Levels = list[tuple[Guards, object]]


class Graphs:
    """Reads the metadata builders of backends."""

    def __init__(self, index: Index, lookup: Lookup) -> None:
        self._index = index
        self._lookup = lookup

    def builders(self, backend: ClassDef) -> list[tuple[Guards, ClassDef]] | None:
        """List a backend's builders, each with its conditions; None where one is not known."""
        answer = self._lookup.below_root(backend, "get_builder_cls")
        if answer is None:
            return []
        found: list[tuple[Guards, ClassDef]] = []
        for case in answer.cases:
            targets = self._index.resolve(case.value, answer.owner.module, answer.scopes)
            for guards, target in targets:
                if not isinstance(target, ClassDef):
                    return None
                found.append(((*case.guards, *guards), target))
        return found or None

    def finding(
        self, backend: ClassDef, builders: list[tuple[Guards, ClassDef]] | None
    ) -> Finding | None:
        """Say for which batches a backend's graphs may be replayed, by its `builders`."""
        if builders is None:
            answer = self._lookup.below_root(backend, "get_builder_cls")
            assert answer is not None, "no builder is unknown without a method that returns it"
            return finding(backend, answer, None)
        findings = [(guards, self._of_builder(builder)) for guards, builder in builders]
        match findings:
            case []:
                return None
            case [(_, only)]:
                return only
        return _one_of(findings)

    def _of_builder(self, builder: ClassDef) -> Finding:
        answer = self._deciding(builder)
        if answer is None or answer.owner in self._lookup.roots:
            said = (
                "states nothing" if answer is None else f"states nothing; the root: {answer.text}"
            )
            words = f"{builder.name}: {said}"
            return Finding(reading=Reading(origin=Origin.UNDECLARED, words=words))
        return finding(builder, answer, self._levels(builder, answer, ()), about=builder.name)

    def _deciding(self, builder: ClassDef) -> Answer | None:
        """Find the method, or the attribute where all that the method does is to return it."""
        method = self._lookup.nearest(builder, _METHOD)
        if method is not None and not (method.only and _is_own_attribute(method.only)):
            return method
        return self._lookup.nearest(builder, _ATTRIBUTE)

    def _levels(self, builder: ClassDef, answer: Answer, guards: Guards) -> _Levels | None:
        """Read every case, following `cls._cudagraph_support` and `super()`."""
        found: _Levels = []
        for case in answer.cases:
            around = (*guards, *case.guards)
            match case.value:
                case ast.Attribute(value=scale, attr=level) if level in LEVELS and ast.unparse(
                    scale
                ).endswith(_SCALE):
                    found.append((around, LEVELS[level]))
                    continue
                case value if _is_own_attribute(value):
                    next_answer = self._lookup.nearest(builder, _ATTRIBUTE)
                case ast.Call(func=ast.Attribute(value=called, attr=name)) if (
                    name == _METHOD and ast.unparse(called) == "super()"
                ):
                    next_answer = self._lookup.nearest(builder, _METHOD, after=answer.owner)
                case _:
                    return None
            more = next_answer and self._levels(builder, next_answer, around)
            if not more:
                return None
            found += more
        return found or None


def _is_own_attribute(value: ast.expr) -> bool:
    match value:
        case ast.Attribute(value=ast.Name(id="cls" | "self"), attr=name):
            return name == _ATTRIBUTE
    return False


def _one_of(findings: list[tuple[Guards, Finding]]) -> Finding:
    """Join what several builders say of which a condition chooses one."""
    readings = [each.reading for _, each in findings]
    reading = Reading(
        origin=Origin.CONDITIONAL,
        words="; ".join(dict.fromkeys(each.words for each in readings)),
        declared_at=readings[-1].declared_at,
    )
    if any(each.origin is not Origin.DECLARED for each in readings):
        return Finding(reading=reading)
    values: Values = [(guards, each.base) for guards, each in findings]
    only = readings[0].value
    if all(value == only for _, value in values):
        return Finding(reading=replace(reading, origin=Origin.DECLARED, value=only), base=only)
    return conditional(reading, values)
