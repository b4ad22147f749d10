"""Who decides which of a plan's values that are not the best possible."""

from __future__ import annotations

from typing import TypeAlias

from backend_caps.capability.vocabulary import CAPABILITIES
from backend_caps.report.document import json_of
from backend_caps.report.plans import CauseDocument, PlanDocument, ValueDocument
from backend_caps.report.words import deciding, name_of, words_of

_NOT_DECLARED = frozenset({"undeclared", "inherited"})
"""Origins of a value that nobody chose."""
Owner: TypeAlias = tuple[str, str]
"""The kind of a cause and its name; of a composite's part, whose part it is too."""
Forces: TypeAlias = dict[tuple[Owner, ...], list[tuple[str, str]]]
"""By those that decide them together: values, each with the phases that have it."""


def forces(plan: PlanDocument) -> tuple[Forces, Forces]:
    """Group the values below the best by who decides them; apart, those that nobody declares.

    Phases with the same value and causes share one.
    """
    places: dict[tuple[object, ...], list[str]] = {}
    values: dict[tuple[object, ...], ValueDocument] = {}
    for phase, name, value in plan.all_values():
        if value.causes and value.value != json_of(CAPABILITIES[name].best):
            text = f"{name} = {words_of(value.value)}"
            key: tuple[object, ...] = (text, *_says(value).items())
            values.setdefault(key, value)
            places.setdefault(key, []).extend([] if phase is None else [phase])
    declared, undeclared = Forces(), Forces()
    for key, value in values.items():
        causes = deciding(value) or value.causes
        is_declared = any(cause.origin not in _NOT_DECLARED for cause in causes)
        owners = tuple(dict.fromkeys(map(_owner, causes)))
        place = f"in {', '.join(places[key])}" if places[key] else "for the server"
        groups = declared if is_declared else undeclared
        groups.setdefault(owners, []).append((" ".join(str(key[0]).split()), place))
    return declared, undeclared


def _says(value: ValueDocument) -> dict[Owner, bool]:
    """Return, by owner, whether it decides a value."""
    decides: dict[Owner, bool] = {}
    for cause in value.causes:
        owner = _owner(cause)
        decides[owner] = decides.get(owner, False) or cause.value == value.value
    return decides


def _owner(cause: CauseDocument) -> Owner:
    return cause.kind, name_of(cause)
