"""SGLang's backend classes as records: what each states, and on which line.

What our vocabulary has and SGLang's classes do not state stays undeclared: whether a graph may
be replayed, page sizes and dtypes stand in argument checks there, keyed by a backend's name.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from backend_caps.capability.backend import Backend, EngineClass, Reading, Status
from backend_caps.capability.declaration import Declaration, When
from backend_caps.capability.facts import Given
from backend_caps.capability.kind import Role
from backend_caps.capability.provenance import Origin, Source
from backend_caps.capability.vocabulary import Capabilities
from backend_caps.engines.sglang.conditions import given_of
from backend_caps.engines.sglang.flag_values import (
    FlagValue,
    is_length,
    is_property,
    settled,
    truths_of,
    values_of,
    words_of,
)
from backend_caps.engines.sglang.read_ends import ReadEnds
from backend_caps.engines.source.attributes import Attributes
from backend_caps.engines.source.guards import Function, condition
from backend_caps.engines.source.index import Index
from backend_caps.engines.source.methods import Stated
from backend_caps.engines.source.module import ClassDef

NEEDS = "needs_cpu_seq_lens"
LONGEST = "max_context_len"
_DRAFTS = frozenset({Role.DRAFT, Role.DRAFT_EXTEND})
_UNDERSTOOD = (None, ast.BitOr, ast.BitAnd)
"""The operators of a flag's statements that are followed: none, `|=` and `&=`."""
_IMPORTABLE = re.compile(r"[\w.]+:[\w.]+")
_MASK_REASON = "SGLang sizes the tree mask by the target's backend alone"


@dataclass(frozen=True, slots=True)
class _Part:
    """One capability as the source states it: the reading, and what can be declared."""

    reading: Reading
    capabilities: Mapping[str, object]
    conditions: Sequence[When] = ()


def _undeclared(words: str, at: str | None, *conditions: When) -> _Part:
    return _Part(Reading(origin=Origin.UNDECLARED, words=words, declared_at=at), {}, conditions)


class Backends:
    """Turns class definitions into records."""

    def __init__(
        self,
        index: Index,
        attributes: Attributes,
        root: ClassDef,
        flags: Sequence[str],
    ) -> None:
        """Take the class that every backend descends from, and its flags that are reported."""
        self._attributes = attributes
        self._root = root
        self._flags = flags
        self._index = index
        self._ends = ReadEnds(attributes)

    def record(
        self,
        definition: ClassDef,
        *,
        name: str,
        version: str | None,
        registered_as: Sequence[str],
        roles: frozenset[Role],
    ) -> Backend:
        """Read one class."""
        parts = dict(self._parts(definition, registered_as, roles))
        stated = {key: value for part in parts.values() for key, value in part.capabilities.items()}
        return Backend(
            name=name,
            status=Status.OK,
            source=Source(distribution="sglang", version=version, declared_at=definition.at),
            declaration=Declaration(
                capabilities=Capabilities.model_validate(stated),
                conditions=tuple(when for part in parts.values() for when in part.conditions),
                implementation=_importable(definition),
            ),
            engine_class=EngineClass(
                path=definition.path,
                registered_as=tuple(sorted(registered_as)),
                readings={key: part.reading for key, part in parts.items()},
                attributes=dict(self._own_flags(definition)),
                composite=self._composite(definition),
            ),
        )

    def _parts(
        self, definition: ClassDef, registered_as: Sequence[str], roles: frozenset[Role]
    ) -> Iterator[tuple[str, _Part]]:
        if (needs := self._stated(definition, NEEDS)) is not None:
            yield "host_seq_lens", self._needs(definition, needs)
        yield "max_context_len_known", self._longest(definition)
        if found := self._ends.read(definition, self._root):
            reading, whens = found
            yield "shared_reads_end", _Part(reading, {}, whens)
        if roles:
            words = f"made as {_listed(r.value for r in roles)} for {_listed(registered_as)}"
            reading = Reading(
                origin=Origin.DECLARED, words=words, value=roles, declared_at=definition.at
            )
            yield "roles", _Part(reading, {"roles": roles})

    def _needs(self, definition: ClassDef, stated: Stated) -> _Part:
        origin, owner = self.origin(definition, stated)
        at = stated.last.at
        if origin is Origin.UNDECLARED:
            words = f"the base class says {stated.words}, and no other class states it"
            return _undeclared(words, at)
        if _is_no_bool(stated):
            self._index.note("engine-value-not-bool", at=at, words=stated.words)
            return _undeclared(f"{stated.words}, which is neither True nor False", at)
        taken = self._attributes.method(definition, NEEDS)
        if taken and is_property(taken[1]) and taken[1] is not stated.last.value:
            words = f"{stated.words}, and {taken[0].name} has a property of that name"
            return _undeclared(words, at)
        cases = truths_of(stated)
        always = [each for each in cases if not each.guards]
        base = max(always, key=lambda each: each.truth, default=None)
        rest = [each for each in cases if each.guards]
        reading = Reading(
            origin=origin,
            words=words_of(stated, definition, self._root),
            value=None if rest or base is None else "exact" if base.truth else "none",
            declared_at=at,
            inherited_from=owner.name if origin is Origin.INHERITED else None,
        )
        if origin is Origin.INHERITED:
            return _Part(reading, {})
        own = {} if base is None or base.owner is not definition else {NEEDS: base.truth}
        whens = [_when(each) for each in rest if each.owner is definition or each.truth]
        return _Part(reading, own, whens)

    def origin(self, definition: ClassDef, stated: Stated) -> tuple[Origin, ClassDef]:
        """Return how a class has what is stated, and which class states it last."""
        owners = [each.owner for each in stated.statements]
        if all(owner is self._root for owner in owners):
            return Origin.UNDECLARED, self._root
        if definition in owners:
            depends = not _is_understood(stated) or any(
                each.guards or each.owner is not definition for each in truths_of(stated)
            )
            return (Origin.CONDITIONAL if depends else Origin.DECLARED), definition
        return Origin.INHERITED, stated.last.owner

    def _stated(self, definition: ClassDef, name: str) -> Stated | None:
        return settled(self._attributes.stated(definition, name))

    def _longest(self, definition: ClassDef) -> _Part:
        stated = self._stated(definition, LONGEST)
        drafting = When(
            given=Given(role=_DRAFTS),
            capabilities=Capabilities(max_context_len_known=True),
            reason=_MASK_REASON,
        )
        if stated is None:
            return _undeclared(f"no {LONGEST} is ever set", None, drafting)
        at, words = stated.last.at, words_of(stated, definition, self._root)
        if isinstance(stated.last.value, Function) and not is_property(stated.last.value):
            return _undeclared(f"{LONGEST} is a method, and no number", at, drafting)
        if not _is_always_length(stated):
            reading = Reading(origin=Origin.CONDITIONAL, words=words, declared_at=at)
            return _Part(reading, {}, [drafting])
        reading = Reading(origin=Origin.DECLARED, words=words, value=True, declared_at=at)
        return _Part(reading, {"max_context_len_known": True})

    def _own_flags(self, definition: ClassDef) -> Iterator[tuple[str, Reading]]:
        """List the engine's own flags that a class, or a base below the root, sets."""
        for name in self._flags:
            stated = self._stated(definition, name)
            if stated is None:
                continue
            origin, owner = self.origin(definition, stated)
            if origin is Origin.UNDECLARED:
                continue
            yield (
                name,
                Reading(
                    origin=origin,
                    words=words_of(stated, definition, self._root),
                    value=_only_constant(stated),
                    declared_at=stated.last.at,
                    inherited_from=owner.name if origin is Origin.INHERITED else None,
                ),
            )

    def _composite(self, definition: ClassDef) -> str | None:
        """Write how a wrapper makes its answers from those of what it wraps."""
        stated = self._stated(definition, NEEDS)
        values = [each.value for each in (values_of(stated) if stated is not None else ())]
        asked = [f"{NEEDS} = {ast.unparse(value)}" for value in values if _asks_children(value)]
        rules = dict.fromkeys((*asked, *self._ends.delegated(definition, self._root)))
        return "; ".join(rules) or None


def _importable(definition: ClassDef) -> str | None:
    """Point at a class; None where no import can name its file, as one with a dash."""
    path = f"{definition.module.name}:{definition.outer}{definition.name}"
    return path if _IMPORTABLE.fullmatch(path) else None


def _listed(words: Iterable[str]) -> str:
    return ", ".join(sorted(words))


def _asks_children(value: ast.expr) -> bool:
    return any(isinstance(node, ast.Attribute) and node.attr == NEEDS for node in ast.walk(value))


def _is_understood(stated: Stated) -> bool:
    return all(each.operator in _UNDERSTOOD for each in stated.statements)


def _only_constant(stated: Stated) -> object:
    """Return the value of an attribute that always has the one; None where it has none."""
    match values_of(stated):
        case [FlagValue(value=ast.Constant(value=value), guards=())] if _is_understood(stated):
            return value
    return None


def _is_always_length(stated: Stated) -> bool:
    said = values_of(stated)
    return (
        _is_understood(stated)
        and any(not each.guards for each in said)
        and all(is_length(each.value) for each in said)
    )


def _is_no_bool(stated: Stated) -> bool:
    """Return whether some value is neither True nor False, nor an expression to take the truth of.

    A method that is no property is one: SGLang asks for the attribute, and never calls it.
    """
    if not _is_understood(stated):
        return True
    functions = [each for each in stated.statements if isinstance(each.value, Function)]
    if functions and not (stated.statements == (stated.base,) and is_property(stated.last.value)):
        return True
    values = [each.value for each in values_of(stated)]
    constants = [value.value for value in values if isinstance(value, ast.Constant)]
    return not values or not all(isinstance(value, bool) for value in constants)


def _when(each: FlagValue) -> When:
    given = given_of(each.guards)
    assert given is not None, "a case that always holds is the base"
    return When(
        given=given,
        capabilities=Capabilities(needs_cpu_seq_lens=each.truth),
        reason=f"{NEEDS} is {each.truth} where {condition(each.guards)}",
    )
