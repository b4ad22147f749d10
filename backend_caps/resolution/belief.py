"""What is left of declarations where evidence is required.

A claim better than the worst value that is not verified is taken out, so that it counts as
undeclared everywhere, and the cause says why. Nothing here reads a file: evidence comes as data.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace

from backend_caps.capability.backend import Backend, Unverified
from backend_caps.capability.declaration import Declaration, When
from backend_caps.capability.evidence import UNVERIFIABLE, Standing
from backend_caps.capability.fit import text_of
from backend_caps.capability.scale import UNDECLARED
from backend_caps.capability.sizes import Conflict, Unchecked
from backend_caps.capability.vocabulary import CAPABILITIES, Capabilities


def believed(backend: Backend, standing: Standing) -> Backend:
    """Take out of a backend's declaration what is claimed and not verified.

    Of a verified claim, what a condition on machine or server betters is taken out too: the kit
    looks at what holds whatever they are. A composite claims nothing for its parts, and stays as
    it is.
    """
    declaration = backend.declaration
    if declaration is None or declaration.parts:
        return backend
    unverified = dict(_unverified(declaration, standing))
    return replace(backend, declaration=_without(declaration, unverified), unverified=unverified)


def _unverified(declaration: Declaration, standing: Standing) -> Iterator[tuple[str, Unverified]]:
    """List the optimistic claims that are not verified, each with why, in whole words."""
    stated = declaration.capabilities.stated()
    for name, kind in CAPABILITIES.items():
        values = [own[name] for own in _all_stated(declaration) if name in own]
        why = standing.why_not(name) or _why_not_looked_at(declaration, name)
        if name in UNVERIFIABLE or why is None or all(value == kind.worst for value in values):
            continue
        says = f"={text_of(stated[name])}" if name in stated else ", under a condition"
        words = f"declares {name}{says}, not verified ({why}): counts as undeclared"
        yield name, Unverified(value=stated.get(name, UNDECLARED), words=words)


def _why_not_looked_at(declaration: Declaration, name: str) -> str | None:
    """Say that no check decides the conditions of a claim; None where what is left is checked."""
    base = declaration.capabilities.stated()
    stating = [when for when in declaration.conditions if name in when.capabilities.stated()]
    is_looked_at = name in base or any(_is_by_use(when) for when in stating)
    bounded = (_bounded(name, when, base) for when in stating)
    if is_looked_at and not any(isinstance(each, Unchecked | Conflict) for each in bounded):
        return None
    return "no check looks at conditions on machine or server"


def _bounded(name: str, when: When, base: Mapping[str, object]) -> object:
    """Return what a condition claims; where the kit does not decide it, no more than the base."""
    value, kind = when.capabilities.stated()[name], CAPABILITIES[name]
    if _is_by_use(when) or name in UNVERIFIABLE:
        return value
    return kind.join(value, base.get(name, kind.worst))


def _is_by_use(when: When) -> bool:
    """Tell whether the kit decides a condition itself: it checks each role and phase."""
    return when.given.stated().keys() <= {"role", "phase"}


def _all_stated(declaration: Declaration) -> Iterator[Mapping[str, object]]:
    yield declaration.capabilities.stated()
    for when in declaration.conditions:
        yield when.capabilities.stated()


def _without(declaration: Declaration, unverified: Collection[str]) -> Declaration:
    base = declaration.capabilities.stated()
    kept = {name: value for name, value in base.items() if name not in unverified}
    whens = (_when_without(when, unverified, base) for when in declaration.conditions)
    return declaration.model_copy(
        update={
            "capabilities": Capabilities.model_validate(kept),
            "conditions": [when for when in whens if when is not None],
        }
    )


def _when_without(
    when: When, unverified: Collection[str], base: Mapping[str, object]
) -> When | None:
    kept = {
        name: _bounded(name, when, base)
        for name in when.capabilities.stated()
        if name not in unverified
    }
    if not kept:
        return None
    return when.model_copy(update={"capabilities": Capabilities.model_validate(kept)})
