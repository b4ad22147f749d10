"""The generated parts of `docs/reference/capabilities.md`."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from enum import Enum
from typing import get_args, get_origin

from backend_caps.capability.facts import CHECKED_AGAINST, Facts, Given
from backend_caps.capability.kind import EVERY_USE, Kind, Phase, Polarity
from backend_caps.capability.provenance import Origin
from backend_caps.capability.vocabulary import CAPABILITIES, SPELLINGS, Capabilities
from docs.tools.markdown import bullets, table
from docs.tools.sources import attribute_docs
from docs.tools.values import options_of, shown, values_of

_OF_TWO = 2


def capabilities_table() -> str:
    """Give each capability a row with its algebra."""
    rows = [
        (
            f"[`{name}`](#{name})",
            kind.polarity.value,
            _worst(name, kind),
            shown(kind.best),
            kind.scope.value,
        )
        for name, kind in CAPABILITIES.items()
    ]
    return table(("capability", "polarity", "worst", "best", "scope"), rows)


def capabilities() -> str:
    """Give each capability a section."""
    return "\n\n".join(_capability(name, kind) for name, kind in CAPABILITIES.items())


def _capability(name: str, kind: Kind) -> str:
    field = Capabilities.model_fields[name]
    facts = [
        f"values: {values_of(field.annotation)}",
        f"polarity: {kind.polarity.value}; {_joins(kind)}",
        f"worst, where undeclared: {_worst(name, kind)}; best: {shown(kind.best)}",
        f"scope: {kind.scope.value}",
        *_counted(kind),
        *([f"counts only with: [`{kind.requires}`](#{kind.requires})"] if kind.requires else []),
        *([f"checked against the fact: `{fact}`"] if (fact := CHECKED_AGAINST.get(name)) else []),
        *(f"second spelling: `{other}`" for other, main in SPELLINGS.items() if main == name),
        *(f"former name, still read: `{former}`" for former in kind.former_names),
        *([f"deprecated: state `{kind.replaced_by}`"] if kind.replaced_by else []),
        f"since: {kind.since}",
    ]
    parts = [f"### {name}", attribute_docs()["Capabilities"][name], bullets(facts)]
    parts += [_members(each) for each in _enums(field.annotation)]
    return "\n\n".join(parts)


def _worst(name: str, kind: Kind) -> str:
    """Write what an undeclared capability counts as."""
    return "not checked" if name in CHECKED_AGAINST else shown(kind.worst)


def _joins(kind: Kind) -> str:
    way = "more" if kind.polarity is Polarity.NEED else "less"
    said = inspect.getdoc(kind.join)
    assert said is not None, f"{kind.join} has no docstring"
    how = said.partition("\n")[0].removeprefix("Join ").removesuffix(".")
    return f"joins towards {way}: {how}"


def _counted(kind: Kind) -> Iterator[str]:
    if kind.counted != EVERY_USE:
        places = sorted(f"{role.value} {phase.value}" for role, phase in kind.counted)
        yield f"counted in: {', '.join(places)}"


def _enums(annotation: object) -> Iterator[type[Enum]]:
    for option in options_of(annotation):
        inner = get_args(option)[0] if get_origin(option) is AbstractSet else option
        if isinstance(inner, type) and issubclass(inner, Enum) and len(inner) >= _OF_TWO:
            yield inner


def _members(enum: type[Enum]) -> str:
    docs = attribute_docs()[enum.__name__]
    rows = [(f"`{enum.__name__}.{m.name}`", f"`{m.value}`", docs[m.name]) for m in enum]
    return table(("member", "in JSON", "meaning"), rows)


def enum(name: str) -> str:
    """Give the members of one of the package's enums with their meanings."""
    docs = attribute_docs()[name]
    members: type[Enum] = {"Origin": Origin, "Phase": Phase}[name]
    return table(("", "meaning"), [(f"`{m.value}`", docs[m.name]) for m in members])


def facts() -> str:
    """Give each fact with its type."""
    docs = attribute_docs()["Facts"]
    rows = [
        (f"`{name}`", values_of(field.annotation).removesuffix(" or not given"), docs[name])
        for name, field in Facts.model_fields.items()
    ]
    return table(("fact", "value", "meaning"), rows)


def conditions() -> str:
    """Give each name that a condition can ask for."""
    rows = [
        (f"`{name}`", values_of(field.annotation).removesuffix(" or not given"))
        for name, field in Given.model_fields.items()
    ]
    return table(("name", "what can be asked for"), rows)
