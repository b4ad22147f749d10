"""Small backends that the kit is tried on: liars, and honest ones that look like liars.

A decorator above a class says which check it is close to, and what it claims beside, or in place
of, `CLAIMS`. The first line of the class's docstring says what it claims, and what it does.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from inspect import getdoc
from typing import Any, TypeVar

from torch_native_caps import TORCH_PADDED

from backend_caps import Declaration, OneOf
from backend_caps.kit import Scenario, Subject

_Kind = TypeVar("_Kind", bound=type)
CLAIMS: dict[str, Any] = {
    **TORCH_PADDED.capabilities.stated(),
    "dtypes": frozenset({"float32"}),
    "kv_cache_dtypes": frozenset({"float32"}),
    "page_sizes": OneOf({1, 16}),
    "head_sizes": OneOf({16}),
    "max_speculative_topk": 3,
}
"""What a specimen claims unless it says otherwise: all that `TorchPadded` keeps, of few sizes."""
NO_GRAPHS: dict[str, Any] = {"graph_replay": frozenset()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Specimen:
    """A backend under test, of which it is known what a check has to say."""

    behaviour: str
    """What it claims, and what it does."""
    check: str
    """The code of the check that has to find a liar, alone; and that an honest one passes."""
    seen: str = ""
    """Where such a liar was met: a thread, as `sglang#26738`, or what it is `modelled on`: a thread
    that tells of something close to it, or what kernels and engines do."""
    subject: Subject

    @property
    def name(self) -> str:
        """Its own."""
        return self.subject.name


_OF_MODULE: dict[str, list[Specimen]] = {}


def specimens_of(module: str) -> tuple[Specimen, ...]:
    """List the specimens of a module so far, in their order."""
    return tuple(_OF_MODULE[module])


def liar(
    check: str,
    *,
    seen: str,
    tolerances: Mapping[str, float] | None = None,
    takes: Callable[[Scenario], bool] | None = None,
    **claims: object,
) -> Callable[[_Kind], _Kind]:
    """Mark a class, at the top of its module, as a backend that breaks one claim.

    Args:
        check: the code of what has to find it.
        seen: where such a one was met, or what it is modelled on.
        tolerances: what it states beside its claims.
        takes: tells which values of dimensions it is tried with.
        claims: what it claims beside, or in place of, `CLAIMS`.
    """

    def register(kind: _Kind) -> _Kind:
        subject = subject_of(kind, **claims)
        if tolerances is not None:
            declaration = subject.declaration.model_copy(update={"tolerances": tolerances})
            subject = replace(subject, declaration=declaration)
        if takes is not None:
            subject = replace(subject, takes=takes)
        behaviour = (getdoc(kind) or "").partition("\n")[0]
        specimen = Specimen(behaviour=behaviour, check=check, seen=seen, subject=subject)
        _OF_MODULE.setdefault(kind.__module__, []).append(specimen)
        return kind

    return register


def honest(
    check: str, *, tolerances: Mapping[str, float] | None = None, **claims: object
) -> Callable[[_Kind], _Kind]:
    """Mark a class as a backend that looks like a liar, and keeps every claim."""
    return liar(check, seen="", tolerances=tolerances, takes=None, **claims)


def subject_of(kind: type, **claims: object) -> Subject:
    """Put a class under test, by its name in snake case, with these claims beside `CLAIMS`."""
    declaration = Declaration.model_validate(
        {
            "capabilities": {**CLAIMS, **claims},
            "implementation": f"{kind.__module__}:{kind.__name__}",
        }
    )
    name = re.sub(r"(?<!^)(?=[A-Z])", "_", kind.__name__).lower()
    return Subject(name=name, declaration=declaration)
