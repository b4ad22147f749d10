"""Whether a backend fits a machine and a model, with every reason why not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from backend_caps.capability.facts import Facts, includes
from backend_caps.capability.kind import UNDECLARED
from backend_caps.capability.vocabulary import NO_LIMIT

CHECKED_AGAINST: Mapping[str, str] = {
    "devices": "device",
    "dtypes": "dtype",
    "kv_cache_dtypes": "kv_cache_dtype",
    "head_sizes": "head_size",
    "page_sizes": "page_size",
    "compute_capability": "compute_capability",
    "attention_arch": "attention_arch",
}
"""The fact that each capability of the machine and the model is checked against."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """Why a backend does not fit, or could not be checked."""

    fact: str
    actual: str
    """What is."""
    needed: str | None
    """What the backend takes; None where it does not say."""

    @property
    def code(self) -> str:
        """Stable: `<fact>-unsupported` or `<fact>-not-checked`."""
        ending = "not-checked" if self.needed is None else "unsupported"
        return f"{self.fact.replace('_', '-')}-{ending}"

    @property
    def remedy(self) -> str:
        """What to do about it."""
        if self.needed is None:
            return "Ask the backend's author to declare it."
        return f"Use another backend, or {self.fact} {self.needed}."

    def of(self, backend: str) -> str:
        """Say it of a backend by its name."""
        says = f"takes {self.fact} {self.needed}"
        if self.needed is None:
            says = f"does not say which {self.fact} it takes"
        return f"backend {backend!r} {says}; here it is {self.actual}."


def unsupported_reasons(supported: Mapping[str, object], facts: Facts) -> tuple[Reason, ...]:
    """List every reason why a backend does not fit what is known of machine and model.

    `supported` holds a value for each capability in `CHECKED_AGAINST`. What the backend left
    undeclared is a reason too, without `needed`: it may fit.
    """
    known = facts.known()
    taken = {fact: supported[capability] for capability, fact in CHECKED_AGAINST.items()}
    return tuple(
        Reason(
            fact=fact,
            actual=text_of(known[fact]),
            needed=None if values is UNDECLARED else text_of(values),
        )
        for fact, values in taken.items()
        if fact in known and not includes(values, known[fact])
    )


def text_of(value: object) -> str:
    """Write a value of a capability or a fact as people read it, in a stable order."""
    match value:
        case bool():
            return "yes" if value else "no"
        case int() if value == NO_LIMIT:
            return "no limit"
        case Enum():
            return str(value.value)
        case (int(major), int(minor)):
            return f"{major}.{minor}"
        case tuple():
            return " or ".join(map(str, value))
        case frozenset():
            return ", ".join(sorted(map(text_of, value))) or "none"
    return str(value)
