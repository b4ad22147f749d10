"""The causes of a plan's values, as a drawing: two columns, and lines between them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from backend_caps.capability.vocabulary import CAPABILITIES
from backend_caps.report.document import json_of
from backend_caps.report.plans import PlanDocument, ValueDocument
from backend_caps.report.sections import visible
from backend_caps.report.words import name_of, words_of

_PITCH = 56
"""From one box to the next below it."""
_BOX = (432, 42)
"""How wide and how high a box is."""
_WIDTH = 1144
"""Of the whole drawing."""
_LONGEST = 49
"""Letters that a box shows; its title element has the whole text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """A cause of values: a backend, a rule or an override."""

    kind: str
    """The kind of its causes."""
    title: str
    """Its name; of a composite's part, whose part it is too."""

    def __str__(self) -> str:
        """Write both, as an explanation does."""
        return f"{self.kind} {self.title}"


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldValue:
    """A value that is not the best possible, with its causes."""

    name: str
    """The capability."""
    phases: tuple[str, ...]
    """The phases that have it; none for the server's."""
    words: str
    """The value."""
    says: tuple[tuple[Owner, bool], ...]
    """Each cause, and whether it decides the value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """What stands in a column."""

    title: str
    """As much of its text as there is room for."""
    whole: str
    """All of it."""
    note: str
    x: float
    y: float
    """Of its upper left corner."""
    kind: str
    """`value`, or the kind of a cause."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """The line from a cause to a value."""

    path: str
    """As SVG draws it."""
    decides: bool
    """Whether the value is what it asks for."""
    text: str
    """The same in a sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    """A drawing, with its lines in sentences."""

    width: int
    height: int
    box: tuple[int, int]
    boxes: tuple[Box, ...]
    lines: tuple[Line, ...]


def held(plan: PlanDocument) -> tuple[HeldValue, ...]:
    """List the values below the best; phases with the same value and causes share one."""
    phases: dict[HeldValue, list[str]] = {}
    for phase, name, value in plan.all_values():
        if value.causes and value.value != json_of(CAPABILITIES[name].best):
            own = HeldValue(name=name, phases=(), words=words_of(value.value), says=_says(value))
            phases.setdefault(own, []).extend([] if phase is None else [phase])
    return tuple(replace(own, phases=tuple(named)) for own, named in phases.items())


def _says(value: ValueDocument) -> tuple[tuple[Owner, bool], ...]:
    decides: dict[Owner, bool] = {}
    for cause in value.causes:
        owner = Owner(kind=cause.kind, title=name_of(cause))
        decides[owner] = decides.get(owner, False) or cause.value == value.value
    return tuple(decides.items())


def graph(plan: PlanDocument) -> Graph | None:
    """Draw the causes of values below the best; None where there are none."""
    values = held(plan)
    if not values:
        return None
    owners = _in_order(values)
    rows = max(len(owners), len(values))
    left = {owner: _middle(at, len(owners), rows) for at, owner in enumerate(owners)}
    right = [_middle(at, len(values), rows) for at in range(len(values))]
    boxes = (
        *(_owner_box(owner, y) for owner, y in left.items()),
        *(_value_box(value, y) for value, y in zip(values, right, strict=True)),
    )
    lines = tuple(_lines(values, left, right))
    return Graph(width=_WIDTH, height=rows * _PITCH, box=_BOX, boxes=boxes, lines=lines)


def _in_order(values: Sequence[HeldValue]) -> list[Owner]:
    """Order causes by the mean position of their values: fewer lines cross."""
    places: dict[Owner, list[int]] = {}
    for at, value in enumerate(values):
        for owner, _ in value.says:
            places.setdefault(owner, []).append(at)
    return sorted(places, key=lambda owner: fmean(places[owner]))


def _middle(at: int, number: int, rows: int) -> float:
    return _PITCH * (rows - number) / 2 + _PITCH * (at + 0.5)


def _owner_box(owner: Owner, y: float) -> Box:
    return _box(owner.title, owner.kind, x=0, middle=y, kind=owner.kind)


def _value_box(value: HeldValue, y: float) -> Box:
    place = f"in {', '.join(value.phases)}" if value.phases else "for the server"
    text = f"{value.name} = {value.words}"
    return _box(text, place, x=_WIDTH - _BOX[0], middle=y, kind="value")


def _box(text: str, note: str, *, x: float, middle: float, kind: str) -> Box:
    whole = visible(" ".join(text.split()))
    title = whole if len(whole) <= _LONGEST else f"{whole[: _LONGEST - 1]}…"
    return Box(title=title, whole=whole, note=note, x=x, y=middle - _BOX[1] / 2, kind=kind)


def _lines(
    values: Iterable[HeldValue], left: Mapping[Owner, float], right: Sequence[float]
) -> Iterator[Line]:
    """Draw every line, those that decide last, so that they lie above the others."""
    drawn = [
        (decides, left[owner], right[at], f"{owner} {_verb(decides)} {_named(value)}")
        for at, value in enumerate(values)
        for owner, decides in value.says
    ]
    for decides, start, end, text in sorted(drawn, key=lambda line: line[0]):
        yield Line(path=_path(start, end), decides=decides, text=text)


def _verb(decides: bool) -> str:
    return "decides" if decides else "would allow better than"


def _named(value: HeldValue) -> str:
    place = f" in {', '.join(value.phases)}" if value.phases else ""
    return f"{value.name} = {value.words}{place}"


def _path(start: float, end: float) -> str:
    near, far = _BOX[0], _WIDTH - _BOX[0]
    middle = (near + far) / 2
    return f"M{near} {start:g}C{middle:g} {start:g} {middle:g} {end:g} {far} {end:g}"
