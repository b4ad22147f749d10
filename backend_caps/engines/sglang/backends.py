"""SGLang's backend classes as records of ours: what each says, where, and in whose words.

What our vocabulary has and SGLang's classes do not state stays undeclared: whether a graph may
be replayed, page sizes and dtypes stand in argument checks there, keyed by a backend's name.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from backend_caps.capability.backend import Backend, EngineClass, Problem, Reading, Status
from backend_caps.capability.declaration import Declaration, When
from backend_caps.capability.facts import Given
from backend_caps.capability.kind import Role
from backend_caps.capability.provenance import Origin, Source
from backend_caps.capability.vocabulary import Capabilities
from backend_caps.engines import problems
from backend_caps.engines.sglang.conditions import given_of
from backend_caps.engines.sglang.read_ends import ReadEnds
from backend_caps.engines.source.attributes import (
    Attributes,
    Case,
    Stated,
    cases_of,
    truth_cases,
)
from backend_caps.engines.source.guards import condition
from backend_caps.engines.source.module import ClassDef, Function
from backend_caps.engines.source.returns import returns

NEEDS = "needs_cpu_seq_lens"
LONGEST = "max_context_len"
_DRAFTS = frozenset({Role.DRAFT, Role.DRAFT_EXTEND})
_UNDERSTOOD = (None, ast.BitOr, ast.BitAnd)
"""The operators of a flag's statements that are followed: none, `|=` and `&=`."""
_PROPERTIES = frozenset({"property", "cached_property"})
_MASK_REASON = "SGLang sizes the tree mask by the target's backend alone"


@dataclass(frozen=True, slots=True)
class _Part:
    """What the source says of one capability, for the record and for the declaration."""

    reading: Reading
    capabilities: Mapping[str, object]
    conditions: Sequence[When] = ()


class Backends:
    """Turns class definitions into records."""

    def __init__(
        self,
        attributes: Attributes,
        root: ClassDef,
        flags: Sequence[str],
        tell: Callable[[Problem], None],
    ) -> None:
        """Take the class that every backend descends from, and its flags that are reported."""
        self._attributes = attributes
        self._root = root
        self._flags = flags
        self._tell = tell
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
        module = definition.module.name
        return Backend(
            name=name,
            status=Status.OK,
            source=Source(distribution="sglang", version=version, declared_at=definition.at),
            declaration=Declaration(
                capabilities=Capabilities.model_validate(stated),
                conditions=tuple(when for part in parts.values() for when in part.conditions),
                implementation=f"{module}:{definition.outer}{definition.name}",
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
        if (needs := self._attributes.stated(definition, NEEDS)) is not None:
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
            return _Part(Reading(origin=origin, words=words, declared_at=at), {})
        if _is_no_bool(stated):
            self._tell(problems.not_bool(at, stated.words))
            words = f"{stated.words}, which is neither True nor False"
            return _Part(Reading(origin=Origin.UNDECLARED, words=words, declared_at=at), {})
        cases = truth_cases(_cases(stated))
        base = next((case for case in cases if not case.guards), None)
        rest = [case for case in cases if case.guards]
        reading = Reading(
            origin=origin,
            words=stated.words,
            value=None if rest or base is None else _level(base),
            declared_at=at,
            inherited_from=owner.name if origin is Origin.INHERITED else None,
        )
        if origin is Origin.INHERITED:
            return _Part(reading, {})
        own = {} if base is None or self._is_roots(stated) else {NEEDS: _value(base)}
        return _Part(reading, own, [_when(case, stated) for case in rest])

    def origin(self, definition: ClassDef, stated: Stated) -> tuple[Origin, ClassDef]:
        """Say how a class has what is stated, and which class states it last."""
        owners = [each.owner for each in stated.statements]
        if all(owner is self._root for owner in owners):
            return Origin.UNDECLARED, self._root
        if definition in owners:
            depends = len(stated.statements) > 1 or any(c.guards for c in _truths(stated))
            return (Origin.CONDITIONAL if depends else Origin.DECLARED), definition
        return Origin.INHERITED, stated.last.owner

    def _is_roots(self, stated: Stated) -> bool:
        return stated.base is not None and stated.base.owner is self._root

    def _longest(self, definition: ClassDef) -> _Part:
        stated = self._attributes.stated(definition, LONGEST)
        drafting = When(
            given=Given(role=_DRAFTS),
            capabilities=Capabilities(max_context_len_known=True),
            reason=_MASK_REASON,
        )
        if stated is None:
            reading = Reading(origin=Origin.UNDECLARED, words=f"no {LONGEST} is ever set")
            return _Part(reading, {}, [drafting])
        at = stated.last.at
        if stated.base is None or any(_may_be_none(case.value) for case in _cases(stated)):
            reading = Reading(origin=Origin.CONDITIONAL, words=stated.words, declared_at=at)
            return _Part(reading, {}, [drafting])
        reading = Reading(origin=Origin.DECLARED, words=stated.words, value=True, declared_at=at)
        return _Part(reading, {"max_context_len_known": True})

    def _own_flags(self, definition: ClassDef) -> Iterator[tuple[str, Reading]]:
        """List the engine's own flags that a class, or a base below the root, sets."""
        for name in self._flags:
            stated = self._attributes.stated(definition, name)
            if stated is None:
                continue
            origin, owner = self.origin(definition, stated)
            if origin is Origin.UNDECLARED:
                continue
            yield (
                name,
                Reading(
                    origin=origin,
                    words=stated.words,
                    value=_only_constant(_cases(stated)),
                    declared_at=stated.last.at,
                    inherited_from=owner.name if origin is Origin.INHERITED else None,
                ),
            )

    def _composite(self, definition: ClassDef) -> str | None:
        """Say how a wrapper makes its answers from those of what it wraps."""
        stated = self._attributes.stated(definition, NEEDS)
        values = (case.value for case in (_cases(stated) if stated is not None else ()))
        asked = [f"{NEEDS} = {ast.unparse(value)}" for value in values if _asks_children(value)]
        rules = dict.fromkeys((*asked, *self._ends.delegated(definition, self._root)))
        return "; ".join(rules) or None


def _listed(words: Iterable[str]) -> str:
    return ", ".join(sorted(words))


def _asks_children(value: ast.expr) -> bool:
    return any(isinstance(node, ast.Attribute) and node.attr == NEEDS for node in ast.walk(value))


def _cases(stated: Stated) -> tuple[Case, ...]:
    """List the cases of an attribute, or of a property or method that has its name."""
    value = stated.last.value
    return returns(value) if isinstance(value, Function) else cases_of(stated)


def _truths(stated: Stated) -> tuple[Case, ...]:
    cases = _cases(stated)
    return cases if all(_constant(case.value) for case in cases) else truth_cases(cases)


def _only_constant(cases: Sequence[Case]) -> object:
    """Return the value of an attribute that always has the one; None where it has none."""
    match cases:
        case [Case(value=ast.Constant(value=value), guards=())]:
            return value
    return None


def _constant(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant)


def _is_no_bool(stated: Stated) -> bool:
    """Tell whether some value is neither True nor False, nor an expression to take the truth of.

    A method that is no property is one: SGLang asks for the attribute, and never calls it.
    """
    if any(each.operator not in _UNDERSTOOD for each in stated.statements):
        return True
    functions = [each for each in stated.statements if isinstance(each.value, Function)]
    if functions and not (stated.statements == (stated.base,) and _is_property(stated.last.value)):
        return True
    cases = _cases(stated)
    return not cases or any(_constant(case.value) and not _is_bool(case.value) for case in cases)


def _is_property(function: ast.expr | Function) -> bool:
    return isinstance(function, Function) and any(
        ast.unparse(each).rpartition(".")[2] in _PROPERTIES for each in function.decorator_list
    )


def _is_bool(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, bool)


def _value(case: Case) -> bool:
    assert isinstance(case.value, ast.Constant), ast.unparse(case.value)
    return bool(case.value.value)


def _level(case: Case) -> str:
    return "exact" if _value(case) else "none"


def _may_be_none(node: ast.expr) -> bool:
    match node:
        case ast.Constant(value=None):
            return True
        case ast.Call(func=ast.Name(id="getattr"), args=[_, _, ast.Constant(value=None)]):
            return True
    return False


def _when(case: Case, stated: Stated) -> When:
    given = given_of(case.guards)
    assert given is not None, f"a case of {stated.words} has no guard"
    return When(
        given=given,
        capabilities=Capabilities(needs_cpu_seq_lens=_value(case)),
        reason=f"{NEEDS} is {_value(case)} where {condition(case.guards)}",
    )
