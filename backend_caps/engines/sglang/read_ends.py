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
from backend_caps.engines.source.classes import Classes
from backend_caps.engines.source.guards import (
    conditions,
    decided,
    has_attribute,
    returns,
    where,
)
from backend_caps.engines.source.index import Method
from backend_caps.engines.source.module import ClassDef

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
_SUPER = re.compile(rf"super\([\w, ]*\)\.{_METHOD}")


@dataclass(frozen=True, slots=True)
class _Answer:
    """What the method returns in one phase; a level, or the expression that decides."""

    level: SharedReadsEnd | None
    expression: ast.expr
    guards: tuple[ast.expr, ...]
    plain_prefill: bool = False
    """Whether it holds for a prefill without decode rows alone."""


class ReadEnds:
    """Reads the method of one class, phase by phase."""

    def __init__(self, classes: Classes, definition: ClassDef, root: ClassDef) -> None:
        self._classes = classes
        self._definition = definition
        found = classes.method(definition, _METHOD)
        self._method = None if found is None or found.owner is root else found

    def finding(self) -> Finding | None:
        """Return where the class's shared reads end; None where only the root states it."""
        if self._method is None:
            return None
        answers = {phase: list(self._answers(self._method, phase)) for phase in Phase}
        words = "; ".join(
            f"{phase.value}: {' or '.join(map(_text, own)) or 'nothing'}"
            for phase, own in answers.items()
        )
        owner = self._method.owner
        is_own = owner is self._definition
        reading = Reading(
            origin=Origin.CONDITIONAL if is_own else Origin.INHERITED,
            words=words,
            declared_at=self._method.at,
            inherited_from=None if is_own else owner.name,
        )
        whens = (when for phase, own in answers.items() for when in _whens(phase, own))
        return Finding(reading=reading, conditions=list(whens) if is_own else ())

    def delegated(self) -> list[str]:
        """List the answers that are made from those of other backends."""
        values = [case.value for case in returns(self._method.node)] if self._method else []
        asked = [each for each in values if has_attribute(each, _METHOD) and not _is_super(each)]
        return [f"{_METHOD} = {ast.unparse(each)}" for each in asked]

    def _answers(self, method: Method, phase: Phase) -> Iterator[_Answer]:
        """List what may be returned in a phase, up to what certainly is."""
        for case in returns(method.node):
            held = {guard: _holds(guard, phase) for guard in conditions(case.guards)}
            if False in held.values():
                continue
            left = tuple(guard for guard, holds in held.items() if holds is None)
            if _is_super(case.value):
                above = self._classes.method(self._definition, _METHOD, after=method.owner)
                for each in self._answers(above, phase) if above else ():
                    yield _Answer(each.level, each.expression, (*left, *each.guards))
            else:
                plain = phase is Phase.PREFILL and any(map(_is_mode, held))
                yield _Answer(_LEVELS.get(ast.unparse(case.value)), case.value, left, plain)
            if not left:
                return


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


def _is_super(value: ast.expr) -> bool:
    return isinstance(value, ast.Call) and _SUPER.fullmatch(ast.unparse(value.func)) is not None
