"""SGLang's backend classes as records: what each states, and on which line.

Capabilities that SGLang's classes do not state stay undeclared: graph replay, page sizes and
dtypes are in argument checks there, keyed by a backend's name; windows and caps are attributes of
the layer, which a class uses or ignores.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from backend_caps.capability.backend import Backend, EngineClass, Reading
from backend_caps.capability.facts import Given
from backend_caps.capability.kind import UNDECLARED, Phase, Role
from backend_caps.capability.provenance import Origin
from backend_caps.capability.vocabulary import HostSeqLens, SharedReadsEnd
from backend_caps.engines.reading import Finding, class_record
from backend_caps.engines.sglang.conditions import given_of
from backend_caps.engines.source.attributes import Attributes
from backend_caps.engines.source.classes import Classes
from backend_caps.engines.source.guards import (
    Function,
    Guards,
    condition,
    conditions,
    decided,
    has_attribute,
    returns,
    where,
)
from backend_caps.engines.source.module import ClassDef
from backend_caps.engines.source.statements import Stated, StatedValue

NEEDS = "needs_cpu_seq_lens"
LONGEST = "max_context_len"
_READ_ENDS = "shared_read_ends"
_SINKS = "sinks"
_FORWARDS = ("forward", "forward_extend", "forward_decode")
_DRAFTS = frozenset({Role.DRAFT, Role.DRAFT_EXTEND})
_IMPORTABLE = re.compile(r"[\w.]+:[\w.]+")
_PROPERTIES = frozenset({"property", "cached_property"})
_LENGTHS = frozenset({"context_len", "max_context_len"})
_COMPUTES = frozenset({"int", "max", "min"})
_MASK_REASON = "SGLang sizes the tree mask by the target's backend alone"
_PHASES: Mapping[str, Phase] = {
    "is_decode": Phase.DECODE,
    "is_decode_or_idle": Phase.DECODE,
    "is_target_verify": Phase.VERIFY,
    "is_extend_without_speculative": Phase.PREFILL,
    "EXTEND": Phase.PREFILL,
    "DECODE": Phase.DECODE,
    "TARGET_VERIFY": Phase.VERIFY,
}
"""Methods and members of SGLang's `ForwardMode`, and the phase for which they hold."""
_LEVELS = {f"SharedReadEnds.{each.name}": each for each in SharedReadsEnd}
_SUPER = re.compile(rf"super\([\w, ]*\)\.{_READ_ENDS}")
_Condition = tuple[Given, object, str]


@dataclass(frozen=True, slots=True)
class _Return:
    """What `shared_read_ends` returns in one phase."""

    value: ast.expr
    guards: Guards
    plain_prefill: bool = False
    """Whether it holds for a prefill without decode rows alone."""

    @property
    def level(self) -> SharedReadsEnd | None:
        """The level that is returned; None if an expression computes it."""
        return _LEVELS.get(ast.unparse(self.value))

    @property
    def text(self) -> str:
        """The level, or the expression, with its condition."""
        return where(self.level.value if self.level else ast.unparse(self.value), self.guards)


@dataclass(frozen=True, slots=True)
class Backends:
    """Turns class definitions into records."""

    classes: Classes
    attributes: Attributes
    root: ClassDef
    """The class that every backend descends from."""
    flags: Sequence[str]
    """The root's flags that are reported."""

    def record(
        self, definition: ClassDef, name: str, registered_as: Sequence[str], roles: frozenset[Role]
    ) -> Backend:
        """Make the record of one class."""
        needs = self.attributes.stated(definition, NEEDS)
        reader = self.classes.definer(definition, _READ_ENDS)
        if reader is self.root:
            reader = None
        findings = {
            "host_seq_lens": self._needs(definition, needs) if needs else None,
            "max_context_len_known": self._longest(definition),
            "shared_reads_end": self._read_ends(definition, reader) if reader else None,
            "roles": _roles(definition, registered_as, roles) if roles else None,
            "attention_sinks": self._sinks(definition),
            "max_speculative_topk": self._topk(definition),
        }
        values = [(NEEDS, each.value) for each in (needs.values if needs else ())]
        ends = returns(reader.methods[_READ_ENDS]) if reader else ()
        joins = dict.fromkeys(
            f"{flag} = {ast.unparse(value)}"
            for flag, value in (*values, *((_READ_ENDS, value) for _, value in ends))
            if has_attribute(value, flag) and not _is_super(value)
        )
        own = EngineClass(
            path=definition.path,
            registered_as=tuple(registered_as),
            attributes=dict(self._own_flags(definition)),
            composite="; ".join(joins) or None,
        )
        import_path = f"{definition.module.name}:{definition.outer}{definition.name}"
        # No import can name every file: one may have a dash in its name.
        implementation = import_path if _IMPORTABLE.fullmatch(import_path) else None
        source = self.classes.index.source(definition.at)
        return class_record(name, source, findings, own, implementation)

    def _needs(self, definition: ClassDef, stated: Stated) -> Finding:
        origin = self._origin(definition, stated)
        if (words := self._not_read(definition, stated, origin)) is not None:
            return _undeclared(words, stated.last.at)
        cases = stated.truths
        always = (each for each in cases if not each.guards)
        base = max(always, key=lambda each: each.truth, default=None)
        rest = [each for each in cases if each.guards]
        value = None if rest or base is None else _level(base).value
        reading = stated.reading(origin, stated.words_for(definition, self.root), value)
        if origin is Origin.INHERITED:
            return Finding(reading=reading)
        return Finding(
            reading=reading,
            base=_level(base) if base is not None and base.owner is definition else UNDECLARED,
            conditions=[_when(each) for each in rest if each.owner is definition or each.truth],
        )

    def _not_read(self, definition: ClassDef, stated: Stated, origin: Origin) -> str | None:
        """Return why the flag of a class counts as undeclared; None if it does not."""
        if origin is Origin.UNDECLARED:
            return f"the base class says {stated.words}, and no other class states it"
        if _is_no_bool(stated):
            self.classes.index.note("engine-value-not-bool", at=stated.last.at, words=stated.words)
            return f"{stated.words}, which is neither True nor False"
        owner = self.classes.definer(definition, NEEDS)
        method = None if owner is None else owner.methods[NEEDS]
        if owner and method and method is not stated.last.value and _is_property(method):
            return f"{stated.words}, and {owner.name} has a property of that name"
        return None

    def _origin(self, definition: ClassDef, stated: Stated) -> Origin:
        """Return whether a class states a value itself, or inherits it."""
        owners = {each.owner for each in stated.statements}
        if owners == {self.root}:
            return Origin.UNDECLARED
        if definition not in owners:
            return Origin.INHERITED
        depends = not stated.is_understood or any(
            each.guards or each.owner is not definition for each in stated.truths
        )
        return Origin.CONDITIONAL if depends else Origin.DECLARED

    def _longest(self, definition: ClassDef) -> Finding:
        stated = self.attributes.stated(definition, LONGEST)
        drafting = (Given(role=_DRAFTS), True, _MASK_REASON)
        if stated is None:
            return _undeclared(f"no {LONGEST} is ever set", None, drafting)
        if isinstance(stated.last.value, Function) and not _is_property(stated.last.value):
            return _undeclared(f"{LONGEST} is a method, and no number", stated.last.at, drafting)
        values = stated.values
        is_sure = stated.is_understood and not all(each.guards for each in values)
        words = stated.words_for(definition, self.root)
        if is_sure and all(_is_length(each.value) for each in values):
            reading = stated.reading(Origin.DECLARED, words, value=True)
            return Finding(reading=reading, base=True)
        reading = stated.reading(Origin.CONDITIONAL, words)
        return Finding(reading=reading, conditions=[drafting])

    def _sinks(self, definition: ClassDef) -> Finding | None:
        """Find a forward without an argument for sinks, by which a layer would call it."""
        for name in _FORWARDS:
            owner = self.classes.definer(definition, name)
            if owner is None or owner is self.root:
                continue
            method = owner.methods[name]
            names = {each.arg for each in (*method.args.args, *method.args.kwonlyargs)}
            if method.args.kwarg is None and _SINKS not in names:
                words = f"{name}() has no argument {_SINKS}"
                return _of_method(definition, owner, method, words, value=False)
        return None

    def _topk(self, definition: ClassDef) -> Finding | None:
        """Find the number of branches above which a constructor refuses to draft."""
        owner = self.classes.definer(definition, "__init__")
        for statement in owner.methods["__init__"].body if owner else ():
            match statement:
                case ast.If(
                    test=ast.Compare(
                        left=ast.Name(id="topk"),
                        ops=[ast.Gt() | ast.NotEq()],
                        comparators=[ast.Constant(value=int(most))],
                    ) as test,
                    body=[*_, ast.Raise()],
                ):
                    assert owner is not None, "it has the statement"
                    words = f"__init__() refuses {ast.unparse(test)}"
                    return _of_method(definition, owner, statement, words, value=most)
        return None

    def _own_flags(self, definition: ClassDef) -> Iterator[tuple[str, Reading]]:
        """List the engine's own flags that a class, or a base below the root, sets."""
        for name in self.flags:
            stated = self.attributes.stated(definition, name)
            origin = self._origin(definition, stated) if stated else Origin.UNDECLARED
            if stated and origin is not Origin.UNDECLARED:
                value: object = None
                match stated.values:
                    case [StatedValue(value=ast.Constant(value=only), guards=())]:
                        value = only if stated.is_understood else None
                words = stated.words_for(definition, self.root)
                yield name, stated.reading(origin, words, value)

    def _read_ends(self, definition: ClassDef, owner: ClassDef) -> Finding:
        """Return where a class's shared reads end in each phase, by `owner`'s method."""
        found = {phase: list(self._returns(definition, owner, phase)) for phase in Phase}
        words = "; ".join(
            f"{phase.value}: {' or '.join(each.text for each in own) or 'nothing'}"
            for phase, own in found.items()
        )
        is_own = owner is definition
        reading = Reading(
            origin=Origin.CONDITIONAL if is_own else Origin.INHERITED,
            words=words,
            declared_at=owner.module.at(owner.methods[_READ_ENDS]),
            inherited_from=None if is_own else owner.name,
        )
        whens = [when for phase, own in found.items() for when in _whens(phase, own)]
        return Finding(reading=reading, conditions=whens if is_own else ())

    def _returns(self, definition: ClassDef, owner: ClassDef, phase: Phase) -> Iterator[_Return]:
        """List the returns that a phase may reach, up to the first unconditional one."""
        for case in returns(owner.methods[_READ_ENDS]):
            held = {g: decided(g, partial(_holds, phase)) for g in conditions(case.guards)}
            if False in held.values():
                continue
            left = tuple(guard for guard, holds in held.items() if holds is None)
            if _is_super(case.value):
                above = self.classes.definer(definition, _READ_ENDS, after=owner)
                for each in self._returns(definition, above, phase) if above else ():
                    yield _Return(each.value, (*left, *each.guards))
            else:
                is_mode = any(holds and isinstance(g, ast.Compare) for g, holds in held.items())
                yield _Return(case.value, left, is_mode and phase is Phase.PREFILL)
            if not left:
                return


def _whens(phase: Phase, found: Sequence[_Return]) -> Iterator[_Condition]:
    """Write the returns of a phase as conditions; none if one returns no known level."""
    for each in found if all(one.level for one in found) else ():
        given = given_of(each.guards)
        fields = {} if given is None else dict(given.stated())
        if each.plain_prefill:
            fields["enable_mixed_chunk"] = False
        given = Given.model_validate({**fields, "phase": {phase}})
        yield given, each.level, f"{_READ_ENDS} returns {each.text}"


def _holds(phase: Phase, test: ast.expr) -> bool | None:
    """Return whether a test of the forward mode holds in a phase; None for other tests."""
    match test:
        case (
            ast.Call(func=ast.Attribute(attr=name), args=[])
            | ast.Compare(ops=[ast.Eq()], comparators=[ast.Attribute(attr=name)])
        ) if name in _PHASES:
            return phase is _PHASES[name]
    return None


def _is_super(value: ast.expr) -> bool:
    return isinstance(value, ast.Call) and _SUPER.fullmatch(ast.unparse(value.func)) is not None


def _roles(definition: ClassDef, registered_as: Sequence[str], roles: frozenset[Role]) -> Finding:
    made_as = ", ".join(sorted(role.value for role in roles))
    words = f"made as {made_as} for {', '.join(registered_as)}"
    reading = Reading(origin=Origin.DECLARED, words=words, value=roles, declared_at=definition.at)
    return Finding(reading=reading, base=roles)


def _of_method(
    definition: ClassDef, owner: ClassDef, statement: ast.stmt, words: str, *, value: object
) -> Finding:
    """Return what a statement of a class, or of a base of it, says of a capability."""
    is_own = owner is definition
    reading = Reading(
        origin=Origin.DECLARED if is_own else Origin.INHERITED,
        words=words,
        value=value,
        declared_at=owner.module.at(statement),
        inherited_from=None if is_own else owner.name,
    )
    return Finding(reading=reading, base=value if is_own else UNDECLARED)


def _undeclared(words: str, at: str | None, *conditions: _Condition) -> Finding:
    reading = Reading(origin=Origin.UNDECLARED, words=words, declared_at=at)
    return Finding(reading=reading, conditions=conditions)


def _is_property(function: ast.expr | Function) -> bool:
    """Return whether a value is a property, and no attribute or plain method."""
    return isinstance(function, Function) and any(
        ast.unparse(each).rpartition(".")[2] in _PROPERTIES for each in function.decorator_list
    )


def _is_length(value: ast.expr) -> bool:
    """Return whether a value must be a number of tokens; a caller's argument may be None."""
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
    """Return whether some value is neither True nor False, nor an expression.

    A method that is no property counts as such: SGLang reads the attribute, and never calls it.
    """
    if not stated.is_understood:
        return True
    if any(isinstance(each.value, Function) for each in stated.statements):
        is_only = len(stated.statements) == 1 and stated.last.is_certain
        if not is_only or not _is_property(stated.last.value):
            return True
    values = [each.value for each in stated.values]
    constants = [value.value for value in values if isinstance(value, ast.Constant)]
    return not values or not all(isinstance(value, bool) for value in constants)


def _level(each: StatedValue) -> HostSeqLens:
    return HostSeqLens.EXACT if each.truth else HostSeqLens.NONE


def _when(each: StatedValue) -> _Condition:
    given = given_of(each.guards)
    assert given is not None, "a case that always holds is the base"
    return given, _level(each), f"{NEEDS} is {each.truth} where {condition(each.guards)}"
