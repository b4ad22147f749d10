"""A name for each class that no other has, and that a change elsewhere in its file leaves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence

from backend_caps.engines.source.guards import condition
from backend_caps.engines.source.module import ClassDef


def labels(definitions: Sequence[ClassDef], *, taken: Collection[str]) -> Mapping[ClassDef, str]:
    """Name classes by their own names; those of one name by more, as little as tells them apart.

    Args:
        definitions: the classes.
        taken: names that stand for something else.
    """
    found: dict[ClassDef, str] = {}
    for spelled in zip(*map(_spellings, definitions), strict=True):
        often = Counter([*spelled, *taken])
        for definition, label in zip(definitions, spelled, strict=True):
            if definition not in found and often[label] == 1:
                found[definition] = label
    return {each: found.get(each) or _free(each, taken) for each in definitions}


def _free(definition: ClassDef, taken: Collection[str]) -> str:
    """Name a class all whose names stand for something else."""
    *_, label = _spellings(definition)
    while label in taken:
        label += " here"
    return label


def _spellings(definition: ClassDef) -> Iterator[str]:
    """List the names of a class, from the shortest to the one that no other has."""
    module = definition.module.name.rpartition(".")[2]
    yield definition.name
    yield f"{module}.{definition.name}"
    yield _where(definition, definition.name)
    yield definition.path
    yield _where(definition, definition.path)
    yield f"{definition.path} at {definition.at}"


def _where(definition: ClassDef, name: str) -> str:
    when = condition(definition.guards)
    return f"{name} where {when}" if when else name
