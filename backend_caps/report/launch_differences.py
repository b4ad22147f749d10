"""Differences between what two versions of an engine make of the same command line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pydantic import JsonValue

from backend_caps.report.difference import (
    DifferenceDocument,
    DifferenceKind,
    WhereDocument,
    of_pair,
)
from backend_caps.report.launches import LaunchDocument, LayerGroupDocument
from backend_caps.report.words import plain_words
from backend_caps.resolution.launch import GRAPH_MODES

_PLAN = "plan"


def of_launches(before: LaunchDocument, after: LaunchDocument) -> Iterator[DifferenceDocument]:
    """Compare whether each starts, the backends of layers and slots, graphs, and final flags."""
    yield from _of_starts(before, after)
    taken, taken_after = _taken(before), _taken(after)
    for name in sorted({*taken, *taken_after}) if taken and taken_after else ():
        own, other = taken.get(name), taken_after.get(name)
        yield from of_pair(_PLAN, name, own, other, kind=DifferenceKind.OTHER_CHOICE)
    if before.graphs is not None and after.graphs is not None:
        mode, other = before.graphs.mode, after.graphs.mode
        yield from of_pair(_PLAN, "graphs", mode, other, kind=_of_modes(mode, other))
    for name in sorted({*before.flags, *after.flags}):
        own, other = (_flag_words(side.flags.get(name)) for side in (before, after))
        yield from of_pair(_PLAN, f"flag {name}", own, other, kind=DifferenceKind.CHANGED)


def _of_starts(before: LaunchDocument, after: LaunchDocument) -> Iterator[DifferenceDocument]:
    was, is_ = ((False, None, True).index(each.starts) for each in (before, after))
    at, other = (None if each.refusal is None else each.refusal.at for each in (before, after))
    if was != is_:
        yield DifferenceDocument(
            kind=DifferenceKind.STRICTER if is_ < was else DifferenceKind.LOOSER,
            subject=_PLAN,
            field="starts",
            before=_start_words(before),
            after=_start_words(after),
            where=WhereDocument(before=at, after=other),
        )


def _flag_words(value: JsonValue) -> str | None:
    return None if value is None else plain_words(value)


def _start_words(launch: LaunchDocument) -> str:
    if launch.refusal is not None:
        return f"refuses: {launch.refusal.message}"
    return "starts" if launch.starts else "may refuse"


def _taken(launch: LaunchDocument) -> Mapping[str, str]:
    """Map the layers, or else the runner's slots, to what the engine takes for them."""
    slots = {slot: ", ".join(each) for slot, each in launch.classes.items()}
    return {**slots, **{_layers(group): group.backend for group in launch.layers or ()}}


def _layers(group: LayerGroupDocument) -> str:
    """Name layers by what tells them apart: the model's part, class, head size and window."""
    sizes = {"head": group.sizes.get("head_size"), "window": group.sizes.get("sliding_window")}
    told = (f"{name} {value}" for name, value in sizes.items() if value)
    return " ".join((group.role, group.layer, *told))


def _of_modes(before: str, after: str) -> DifferenceKind:
    if before not in GRAPH_MODES or after not in GRAPH_MODES:
        return DifferenceKind.CHANGED
    is_less = GRAPH_MODES.index(after) < GRAPH_MODES.index(before)
    return DifferenceKind.STRICTER if is_less else DifferenceKind.LOOSER
