"""Errors of the contract, explained in one line for a `schema` problem."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from backend_caps.capability.declaration import Declaration, Part, When
from backend_caps.capability.facts import Facts, Given
from backend_caps.capability.vocabulary import Capabilities
from backend_caps.resolution.errors import nearest
from backend_caps.resolution.rules import Rule

_MODELS: Mapping[str, type[BaseModel]] = {
    model.__name__: model for model in (Capabilities, Declaration, Facts, Given, Rule, When)
}
_LONGEST_INPUT = 60
"""The characters of a wrong value that a sentence repeats."""
_NAMES = frozenset(_MODELS) | {Part.__name__}


def schema_fault(error: BaseException) -> str | None:
    """Explain an error from a name or value outside this version's contract.

    None for any other error.
    """
    match error:
        case ValidationError(title=title) if title in _NAMES:
            return validation_fault(error)
        case ImportError(name=str(name)) if _is_ours(name):
            return str(error)
        case AttributeError(obj=type() as owner) if _is_ours(owner.__module__):
            return str(error)
    return None


def validation_fault(error: ValidationError) -> str:
    """Write a validation error as one line: the first error of each field."""
    first: dict[object, ErrorDetails] = {}
    for details in error.errors(include_url=False, include_context=False):
        first.setdefault(details["loc"][:1], details)
    return "; ".join(_sentence(error.title, details) for details in first.values())


def _sentence(title: str, details: ErrorDetails) -> str:
    name = "".join(map(str, details["loc"][:1]))
    if details["type"] in {"extra_forbidden", "unexpected_keyword_argument"}:
        fields = _MODELS[title].model_fields if title in _MODELS else ()
        close = nearest(name, list(fields), cutoff=0.6)
        hint = f" (did you mean {close!r}?)" if close else ""
        return f"{title} has no field {name!r}{hint}"
    expected = details["msg"].removeprefix("Value error, ").removesuffix(".")
    if not name:
        return expected
    given = repr(details["input"])
    shown = given if len(given) <= _LONGEST_INPUT else f"{given[:_LONGEST_INPUT]}..."
    return f"{title}.{name} is {shown}: {expected}"


def _is_ours(name: str) -> bool:
    return name.partition(".")[0] == "backend_caps"
