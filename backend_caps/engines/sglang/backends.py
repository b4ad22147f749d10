"""SGLang's backend classes as records: what each states, and on which line.

What our vocabulary has and SGLang's classes do not state stays undeclared: whether a graph may
be replayed, page sizes and dtypes stand in argument checks there, keyed by a backend's name.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from backend_caps.capability.backend import Backend, EngineClass, Reading
from backend_caps.capability.facts import Given
from backend_caps.capability.kind import UNDECLARED, Role
from backend_caps.capability.provenance import Origin
from backend_caps.capability.vocabulary import HostSeqLens
from backend_caps.engines.reading import Finding, class_record
from backend_caps.engines.sglang.conditions import given_of
from backend_caps.engines.sglang.read_ends import read_ends
from backend_caps.engines.source.attributes import Attributes
from backend_caps.engines.source.classes import Classes
from backend_caps.engines.source.guards import Function, condition, has_attribute
from backend_caps.engines.source.methods import Stated, StatedValue, truths_of, values_of, words_of
from backend_caps.engines.source.module import ClassDef

NEEDS = "needs_cpu_seq_lens"
LONGEST = "max_context_len"
_DRAFTS = frozenset({Role.DRAFT, Role.DRAFT_EXTEND})
_UNDERSTOOD = (None, ast.BitOr, ast.BitAnd)
"""The operators of a flag's statements that are followed: none, `|=` and `&=`."""
_IMPORTABLE = re.compile(r"[\w.]+:[\w.]+")
_PROPERTIES = frozenset({"property", "cached_property"})
_LENGTHS = frozenset({"context_len", "max_context_len"})
_COMPUTES = frozenset({"int", "max", "min"})
_MASK_REASON = "SGLang sizes the tree mask by the target's backend alone"


_Condition = tuple[Given, object, str]


@dataclass(frozen=True, slots=True)
class Backends:
    """Turns class definitions into records."""

    classes: Classes
    attributes: Attributes
    root: ClassDef
    """The class that every backend descends from."""
    flags: Sequence[str]
    """Its flags that are reported."""

    def record(
        self, definition: ClassDef, name: str, registered_as: Sequence[str], roles: frozenset[Role]
    ) -> Backend:
        """Read one class."""
        needs = self.attributes.stated(definition, NEEDS)
        ends, of_wrapped = read_ends(self.classes, definition, self.root)
        findings = {
            "host_seq_lens": self._needs(definition, needs) if needs else None,
            "max_context_len_known": self._longest(definition),
            "shared_reads_end": ends,
            "roles": _roles(definition, registered_as, roles) if roles else None,
        }
        asked = (each.value for each in (values_of(needs) if needs else ()))
        joins = [f"{NEEDS} = {ast.unparse(each)}" for each in asked if has_attribute(each, NEEDS)]
        own = EngineClass(
            path=definition.path,
            registered_as=tuple(sorted(registered_as)),
            attributes=dict(self._own_flags(definition)),
            composite="; ".join(dict.fromkeys((*joins, *of_wrapped))) or None,
        )
        source = self.classes.index.source(definition.at)
        return class_record(name, source, findings, own, _importable(definition))

    def _reading(
        self, definition: ClassDef, stated: Stated, origin: Origin, value: object = None
    ) -> Reading:
        """Write what a class has, in the words of its statements."""
        return Reading(
            origin=origin,
            words=words_of(stated, definition, self.root),
            value=value,
            declared_at=stated.last.at,
            inherited_from=stated.last.owner.name if origin is Origin.INHERITED else None,
        )

    def _needs(self, definition: ClassDef, stated: Stated) -> Finding:
        origin = self.origin(definition, stated)
        if (words := self._not_read(definition, stated, origin)) is not None:
            return _undeclared(words, stated.last.at)
        cases = truths_of(stated)
        always = [each for each in cases if not each.guards]
        base = max(always, key=lambda each: each.truth, default=None)
        rest = [each for each in cases if each.guards]
        value = None if rest or base is None else _level(base).value
        reading = self._reading(definition, stated, origin, value)
        if origin is Origin.INHERITED:
            return Finding(reading=reading)
        return Finding(
            reading=reading,
            base=_level(base) if base is not None and base.owner is definition else UNDECLARED,
            conditions=[_when(each) for each in rest if each.owner is definition or each.truth],
        )

    def _not_read(self, definition: ClassDef, stated: Stated, origin: Origin) -> str | None:
        """Write why the flag of a class counts as undeclared, if it does."""
        if origin is Origin.UNDECLARED:
            return f"the base class says {stated.words}, and no other class states it"
        if _is_no_bool(stated):
            self.classes.index.note("engine-value-not-bool", at=stated.last.at, words=stated.words)
            return f"{stated.words}, which is neither True nor False"
        taken = self.classes.method(definition, NEEDS)
        if taken and _is_property(taken.node) and taken.node is not stated.last.value:
            return f"{stated.words}, and {taken.owner.name} has a property of that name"
        return None

    def origin(self, definition: ClassDef, stated: Stated) -> Origin:
        """Return how a class has what is stated."""
        owners = [each.owner for each in stated.statements]
        if all(owner is self.root for owner in owners):
            return Origin.UNDECLARED
        if definition not in owners:
            return Origin.INHERITED
        depends = not _is_understood(stated) or any(
            each.guards or each.owner is not definition for each in truths_of(stated)
        )
        return Origin.CONDITIONAL if depends else Origin.DECLARED

    def _longest(self, definition: ClassDef) -> Finding:
        stated = self.attributes.stated(definition, LONGEST)
        drafting = (Given(role=_DRAFTS), True, _MASK_REASON)
        if stated is None:
            return _undeclared(f"no {LONGEST} is ever set", None, drafting)
        if isinstance(stated.last.value, Function) and not _is_property(stated.last.value):
            return _undeclared(f"{LONGEST} is a method, and no number", stated.last.at, drafting)
        if _is_always_length(stated):
            reading = self._reading(definition, stated, Origin.DECLARED, True)  # noqa: FBT003
            return Finding(reading=reading, base=True)
        reading = self._reading(definition, stated, Origin.CONDITIONAL)
        return Finding(reading=reading, conditions=[drafting])

    def _own_flags(self, definition: ClassDef) -> Iterator[tuple[str, Reading]]:
        """List the engine's own flags that a class, or a base below the root, sets."""
        for name in self.flags:
            stated = self.attributes.stated(definition, name)
            origin = self.origin(definition, stated) if stated else Origin.UNDECLARED
            if stated and origin is not Origin.UNDECLARED:
                yield name, self._reading(definition, stated, origin, _only_constant(stated))


def _roles(definition: ClassDef, registered_as: Iterable[str], roles: frozenset[Role]) -> Finding:
    made_as = ", ".join(sorted(role.value for role in roles))
    words = f"made as {made_as} for {', '.join(sorted(registered_as))}"
    reading = Reading(origin=Origin.DECLARED, words=words, value=roles, declared_at=definition.at)
    return Finding(reading=reading, base=roles)


def _undeclared(words: str, at: str | None, *conditions: _Condition) -> Finding:
    reading = Reading(origin=Origin.UNDECLARED, words=words, declared_at=at)
    return Finding(reading=reading, conditions=conditions)


def _importable(definition: ClassDef) -> str | None:
    """Point at a class; None where no import can name its file, as one with a dash."""
    path = f"{definition.module.name}:{definition.outer}{definition.name}"
    return path if _IMPORTABLE.fullmatch(path) else None


def _is_understood(stated: Stated) -> bool:
    return all(each.operator in _UNDERSTOOD for each in stated.statements)


def _only_constant(stated: Stated) -> object:
    """Return the value of an attribute that always has the one; None where it has none."""
    match values_of(stated):
        case [StatedValue(value=ast.Constant(value=value), guards=())] if _is_understood(stated):
            return value
    return None


def _is_always_length(stated: Stated) -> bool:
    said = values_of(stated)
    return (
        _is_understood(stated)
        and any(not each.guards for each in said)
        and all(_is_length(each.value) for each in said)
    )


def _is_property(function: ast.expr | Function) -> bool:
    """Return whether a value is a property, not an attribute or a method to be called."""
    return isinstance(function, Function) and any(
        ast.unparse(each).rpartition(".")[2] in _PROPERTIES for each in function.decorator_list
    )


def _is_length(value: ast.expr) -> bool:
    """Return whether a value certainly is a number of tokens; what a caller gives may be None."""
    match value:
        case ast.Constant(value=int(number)):
            return not isinstance(number, bool)
        case ast.Attribute(attr=name):
            return name in _LENGTHS
        case ast.Subscript(value=ast.Attribute(attr="shape")):
            return True
        case ast.Call(
            func=ast.Name(id="getattr"), args=[_, ast.Constant(value=str(name)), *default]
        ):
            return name in _LENGTHS and all(map(_is_length, default))
        case ast.Call(func=ast.Name(id=function), args=[_, *_] as parts, keywords=[]):
            return function in _COMPUTES and all(map(_is_length, parts))
        case ast.BinOp(left=left, right=right):
            return _is_length(left) and _is_length(right)
    return False


def _is_no_bool(stated: Stated) -> bool:
    """Return whether some value is neither True nor False, nor an expression to take the truth of.

    A method that is no property is one: SGLang asks for the attribute, and never calls it.
    """
    if not _is_understood(stated):
        return True
    functions = [each for each in stated.statements if isinstance(each.value, Function)]
    if functions and not (stated.statements == (stated.base,) and _is_property(stated.last.value)):
        return True
    values = [each.value for each in values_of(stated)]
    constants = [value.value for value in values if isinstance(value, ast.Constant)]
    return not values or not all(isinstance(value, bool) for value in constants)


def _level(each: StatedValue) -> HostSeqLens:
    return HostSeqLens.EXACT if each.truth else HostSeqLens.NONE


def _when(each: StatedValue) -> _Condition:
    given = given_of(each.guards)
    assert given is not None, "a case that always holds is the base"
    return given, _level(each), f"{NEEDS} is {each.truth} where {condition(each.guards)}"
