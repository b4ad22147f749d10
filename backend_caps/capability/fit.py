"""Whether a backend fits a machine and a model, with every reason why not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from backend_caps.capability.facts import Facts, Situation
from backend_caps.capability.scale import ANY, UNDECLARED
from backend_caps.capability.sizes import Exact, MultipleOf, OneOf
from backend_caps.capability.vocabulary import Capabilities

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

    code: str
    """Stable: `<fact>-unsupported` or `<fact>-not-checked`."""
    actual: str
    """What is."""
    needed: str
    """What the backend needs."""
    remedy: str

    @property
    def checked(self) -> bool:
        """Whether the backend said anything about it."""
        return not self.code.endswith("-not-checked")


def unsupported_reasons(capabilities: Capabilities, facts: Facts) -> tuple[Reason, ...]:
    """List every reason why a backend does not fit what is known of machine and model.

    What the backend left undeclared is a reason too, with `checked` false: it may fit.
    """
    known = facts.known()
    reasons = (
        _reason(fact, getattr(capabilities, capability), known)
        for capability, fact in CHECKED_AGAINST.items()
    )
    return tuple(reason for reason in reasons if reason is not None)


def _reason(fact: str, supported: object, known: Situation) -> Reason | None:
    if fact not in known or _fits(supported, known[fact]):
        return None
    label = fact.replace("_", "-")
    actual = f"{fact} is {text_of(known[fact])}"
    if supported is UNDECLARED:
        return Reason(
            code=f"{label}-not-checked",
            actual=actual,
            needed="not declared",
            remedy=f"Ask the backend's author to declare it, or try it with {actual} yourself.",
        )
    return Reason(
        code=f"{label}-unsupported",
        actual=actual,
        needed=text_of(supported),
        remedy=f"Use another backend, or a {fact} that it takes: {text_of(supported)}.",
    )


def _fits(supported: object, actual: object) -> bool:
    match supported:
        case tuple():
            return any(actual in window for window in supported)
        case frozenset() | Exact() | MultipleOf() | OneOf():
            return actual in supported
    return supported is ANY


def text_of(value: object) -> str:
    """Write a value of a capability or a fact as people read it, in a stable order."""
    match value:
        case bool():
            return "yes" if value else "no"
        case Enum():
            return str(value.value)
        case (int(major), int(minor)):
            return f"{major}.{minor}"
        case tuple():
            return " or ".join(map(str, value))
        case frozenset():
            return ", ".join(sorted(map(text_of, value))) or "none"
    return str(value)
