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
from backend_caps.engines.source.guards import conditions, decided, has_attribute, returns, where
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


def read_ends(
    classes: Classes, definition: ClassDef, root: ClassDef
) -> tuple[Finding | None, list[str]]:
    """Return where a class's shared reads end, and how it asks other backends for that.

    None, and nothing, where only the root states it.
    """
    method = classes.method(definition, _METHOD)
    if method is None or method.owner is root:
        return None, []
    answers = {phase: list(_answers(classes, definition, method, phase)) for phase in Phase}
    words = "; ".join(
        f"{phase.value}: {' or '.join(map(_text, own)) or 'nothing'}"
        for phase, own in answers.items()
    )
    is_own = method.owner is definition
    reading = Reading(
        origin=Origin.CONDITIONAL if is_own else Origin.INHERITED,
        words=words,
        declared_at=method.at,
        inherited_from=None if is_own else method.owner.name,
    )
    whens = [when for phase, own in answers.items() for when in _whens(phase, own)]
    values = (case.value for case in returns(method.node))
    asked = [each for each in values if has_attribute(each, _METHOD) and not _is_super(each)]
    return (
        Finding(reading=reading, conditions=whens if is_own else ()),
        [f"{_METHOD} = {ast.unparse(each)}" for each in asked],
    )


def _answers(
    classes: Classes, definition: ClassDef, method: Method, phase: Phase
) -> Iterator[_Answer]:
    """List what may be returned in a phase, up to what certainly is."""
    for case in returns(method.node):
        held = {guard: _holds(guard, phase) for guard in conditions(case.guards)}
        if False in held.values():
            continue
        left = tuple(guard for guard, holds in held.items() if holds is None)
        if _is_super(case.value):
            above = classes.method(definition, _METHOD, after=method.owner)
            for each in _answers(classes, definition, above, phase) if above else ():
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
