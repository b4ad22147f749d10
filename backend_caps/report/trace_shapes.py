"""The shapes of a trace's picture, placed: what its template draws."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneShape:
    """A lane."""

    name: str
    top: float
    height: float
    absent: str
    """Why this level has none such; empty where it has."""

    @property
    def middle(self) -> float:
        """Its middle."""
        return self.top + self.height / 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """A stretch of a lane."""

    x: float
    y: float
    width: float
    height: float
    kind: str
    """What it is, as a class of the style."""
    label: str
    """What is written in it; empty where there is no room."""
    label_x: float
    told: str
    """What it says under a pointer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrowShape:
    """A line from what was there to what waited for it."""

    x1: float
    y1: float
    x2: float
    y2: float
    kind: str
    label: str
    label_y: float
    told: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """A few words."""

    x: float
    y: float
    kind: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """A time."""

    x: float
    label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """An entry of the legend."""

    x: float
    y: float
    sign: Literal["box", "arrow", "mark"]
    """How its kind is drawn."""
    kind: str
    """Of a mark, what is written."""
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One level's lanes."""

    top: float
    left: float
    right: float
    """Where its steps end."""
    bottom: float
    lanes_top: float
    lanes_bottom: float
    lanes: tuple[LaneShape, ...]
    boxes: tuple[Box, ...]
    arrows: tuple[ArrowShape, ...]
    texts: tuple[Text, ...]
    ticks: tuple[Tick, ...]
