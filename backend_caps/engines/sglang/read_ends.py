"""SGLang's `shared_read_ends`: a method that answers by the kind of forward."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial

from backend_caps.capability.backend import Reading
from backend_caps.capability.facts import Given
from backend_caps.capability.kind import Phase
from backend_caps.capability.provenance import Origin
from backend_caps.capability.vocabulary import SharedReadsEnd
from backend_caps.engines.reading import Finding
from backend_caps.engines.sglang.conditions import given_of
from backend_caps.engines.source.attributes import Attributes
from backend_caps.engines.source.guards import (
    Case,
    Function,
    conditions,
    decided,
    returns,
    where,
)
from backend_caps.engines.source.module import ClassDef, has_attribute

_METHOD = "shared_read_ends"
_ASKS: Mapping[str, frozenset[Phase]] = {
    "is_decode": frozenset({Phase.DECODE}),
    "is_decode_or_idle": frozenset({Phase.DECODE}),
    "is_target_verify": frozenset({Phase.VERIFY}),
    "is_extend_without_speculative": frozenset({Phase.PREFILL}),
}
"""Methods of SGLang's `ForwardMode`, and the phases for which they are true."""
_MODES: Mapping[str, frozenset[Phase]] = {
    "EXTEND": frozenset({Phase.PREFILL}),
    "DECODE": frozenset({Phase.DECODE}),
    "TARGET_VERIFY": frozenset({Phase.VERIFY}),
}
_LEVELS = {f"SharedReadEnds.{each.name}": each for each in SharedReadsEnd}
_SUPER = re.compile(rf"super\(.*\)\.{_METHOD}\(.*\)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class _Answer:
    """What the method returns in one phase; a level, or the expression that decides."""

    level: SharedReadsEnd | None
    expression: ast.expr
    guards: tuple[ast.expr, ...]
    plain_prefill: bool = False
    """Whether it holds for a prefill without decode rows alone."""


class ReadEnds:
    """Reads the method, phase by phase."""

    def __init__(self, attributes: Attributes) -> None:
        self._attributes = attributes

    def read(self, definition: ClassDef, root: ClassDef) -> Finding | None:
        """Return where a class's shared reads end; None where only the root states it."""
        found = self._attributes.method(definition, _METHOD)
        if found is None or found[0] is root:
            return None
        owner, function = found
        at = owner.module.at(function)
        answers = {phase: list(self._answers(definition, *found, phase)) for phase in Phase}
        words = "; ".join(
            f"{phase.value}: {' or '.join(map(_text, own)) or 'nothing'}"
            for phase, own in answers.items()
        )
        if owner is not definition:
            reading = Reading(
                origin=Origin.INHERITED, words=words, declared_at=at, inherited_from=owner.name
            )
            return Finding(reading=reading)
        return Finding(
            reading=Reading(origin=Origin.CONDITIONAL, words=words, declared_at=at),
            conditions=[w for phase, own in answers.items() for w in _whens(phase, own)],
        )

    def delegated(self, definition: ClassDef, root: ClassDef) -> list[str]:
        """List the answers that are made from those of other backends."""
        found = self._attributes.method(definition, _METHOD)
        if found is None or found[0] is root:
            return []
        asked = [case.value for case in returns(found[1]) if has_attribute(case.value, _METHOD)]
        answers = [ast.unparse(each) for each in asked]
        return [f"{_METHOD} = {each}" for each in answers if not _SUPER.fullmatch(each)]

    def _answers(
        self, definition: ClassDef, owner: ClassDef, function: Function, phase: Phase
    ) -> Iterator[_Answer]:
        """List what may be returned in a phase, up to what certainly is."""
        for case in returns(function):
            left = [guard for guard in conditions(case.guards) if _holds(guard, phase) is None]
            if any(_holds(guard, phase) is False for guard in conditions(case.guards)):
                continue
            yield from self._answered(definition, owner, case, tuple(left), phase)
            if not left:
                return

    def _answered(
        self,
        definition: ClassDef,
        owner: ClassDef,
        case: Case,
        left: tuple[ast.expr, ...],
        phase: Phase,
    ) -> Iterator[_Answer]:
        if _SUPER.fullmatch(ast.unparse(case.value)):
            above = self._attributes.method_after(definition, owner, _METHOD)
            for answer in self._answers(definition, *above, phase) if above else ():
                yield _Answer(answer.level, answer.expression, (*left, *answer.guards))
            return
        plain = phase is Phase.PREFILL and any(_is_mode(g) for g in conditions(case.guards))
        yield _Answer(_LEVELS.get(ast.unparse(case.value)), case.value, left, plain)


def _whens(phase: Phase, answers: list[_Answer]) -> Iterator[tuple[Given, object, str]]:
    """Write the answers of a phase as conditions; what delegates is left undeclared."""
    if any(answer.level is None for answer in answers):
        return
    for answer in answers:
        open_ = given_of(answer.guards)
        asked = {} if open_ is None else dict(open_.stated())
        if answer.plain_prefill:
            asked["enable_mixed_chunk"] = False
        given = Given.model_validate({**asked, "phase": {phase}})
        yield given, answer.level, f"{_METHOD} returns {_text(answer)}"


def _text(answer: _Answer) -> str:
    said = answer.level.value if answer.level else ast.unparse(answer.expression)
    return where(said, answer.guards)


def _holds(guard: ast.expr, phase: Phase) -> bool | None:
    """Return whether a condition on the forward mode holds in a phase; None where it is another."""
    return decided(guard, partial(_mode_holds, phase))


def _mode_holds(phase: Phase, test: ast.expr) -> bool | None:
    match test:
        case ast.Call(func=ast.Attribute(attr=name), args=[]) if name in _ASKS:
            return phase in _ASKS[name]
        case ast.Compare(ops=[ast.Eq()], comparators=[ast.Attribute(attr=name)]) if name in _MODES:
            return phase in _MODES[name]
    return None


def _is_mode(guard: ast.expr) -> bool:
    return isinstance(guard, ast.Compare) and _holds(guard, Phase.PREFILL) is True
