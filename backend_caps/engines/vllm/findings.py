"""What a class says of one capability: for people to read, and as a declaration has it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from backend_caps.capability.backend import Reading
from backend_caps.capability.declaration import Declaration, When
from backend_caps.capability.facts import Given
from backend_caps.capability.provenance import Origin
from backend_caps.capability.scale import UNDECLARED
from backend_caps.capability.vocabulary import Capabilities
from backend_caps.engines.source.guards import Guards, condition
from backend_caps.engines.source.module import ClassDef
from backend_caps.engines.vllm.lookup import Answer

Values = Sequence[tuple[Guards, object]]
"""A capability's value for each case, in the order of the source."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What the source says, and what of it can be declared."""

    reading: Reading
    base: object = UNDECLARED
    """What holds where no condition does."""
    conditions: tuple[tuple[str, object], ...] = ()
    """The value under each condition of the source."""


def finding(
    asked: ClassDef, answer: Answer, values: Values | None, *, about: str = "", loss: str = ""
) -> Finding:
    """Say what an answer comes to.

    What a class has from a base of its own family, and does not state again, stays undeclared:
    the base's author did not speak of it. So does what cannot be read off, as a whole.

    Args:
        asked: the class.
        answer: what was found for it.
        values: what the cases come to; None where one of them cannot be read off.
        about: whose words they are, where that is not `asked`.
        loss: what the value leaves out of the words.
    """
    distinct = list(dict.fromkeys(value for _, value in values or ()))
    only = distinct[0] if len(distinct) == 1 else None
    words = answer.text if distinct else answer.text_in_full
    is_own = answer.owner is asked
    stated = Origin.CONDITIONAL if only is None else Origin.DECLARED
    reading = Reading(
        origin=stated if is_own else Origin.INHERITED,
        words=f"{about and f'{about}: '}{words}{loss and f' ({loss})'}",
        value=only,
        declared_at=answer.at,
        inherited_from=None if is_own else answer.owner.name,
    )
    if not is_own or not values:
        return Finding(reading=reading)
    if only is not None:
        return Finding(reading=reading, base=only)
    return conditional(reading, values)


def conditional(reading: Reading, values: Values) -> Finding:
    """Make the case that always holds the base, or the last one, which is what is left."""
    cases = [(condition(guards), value) for guards, value in values]
    always = next((number for number, (when, _) in enumerate(cases) if not when), -1)
    _, base = cases.pop(always)
    return Finding(reading=reading, base=base, conditions=tuple(cases))


def declaration_of(findings: Mapping[str, Finding]) -> Declaration:
    """Declare what was found, by capability."""
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
