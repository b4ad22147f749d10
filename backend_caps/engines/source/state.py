"""What an interpreted program has changed for certain, and what it may have changed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Self, TypeVar

from backend_caps.engines.source.uncertainty import joined
from backend_caps.engines.source.values import (
    MISSING,
    ModuleValue,
    Native,
    Options,
    Perhaps,
    Raised,
)

_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class Note:
    """An error that may be raised, for want of a known condition."""

    text: str
    """The error's message."""
    at: str
    """The line that raises it."""
    why: str
    """The unknown condition."""


class Condition(str):
    """A condition that is not known, while the program runs under it."""

    __slots__ = ("depth", "outer")

    def __new__(cls, why: str, outer: Condition | None) -> Self:
        """Put a condition under the one around it."""
        made = super().__new__(cls, why)
        made.outer = outer
        made.depth = 1 if outer is None else outer.depth + 1
        return made

    outer: Condition | None
    depth: int
    """How many conditions it makes, those around it included."""


def _written(place: tuple[ModuleValue | None, int]) -> str:
    module, line = place
    return ":0" if module is None else f"{module.module.path}:{line}"


class State:
    """The conditions under which the program runs now, and what comes of changes under them."""

    def __init__(self) -> None:
        """Start where everything runs for certain."""
        self.notes: list[Note] = []
        self._maybe: list[Condition] = []
        self._place: tuple[ModuleValue | None, int] = (None, 0)
        self._left: tuple[str, tuple[ModuleValue | None, int]] = ("", self._place)
        """The name of the function that was left last, and the line that it was left at."""
        self._made_under: dict[int, tuple[Native, Condition]] = {}

    @property
    def is_certain(self) -> bool:
        """Whether what runs now runs for certain."""
        return not self._maybe

    @property
    def at(self) -> str:
        """The line that runs now, as `file:line`."""
        return _written(self._place)

    def left_at(self, name: str) -> str | None:
        """Return the line at which a function returned; None where another one did since."""
        left, place = self._left
        return _written(place) if left == name else None

    def _suppose(self, why: str) -> None:
        """Go on under one more unknown condition, until it is taken from `_maybe`."""
        self._maybe.append(Condition(why, self._maybe[-1] if self._maybe else None))

    def note(self, error: Raised) -> None:
        """Record an error that may be raised under the unknown conditions of now."""
        why = " and ".join(dict.fromkeys(self._maybe))
        self.notes.append(Note(error.message or error.error, error.at, why))

    def _of_each(self, value: Options, of: Callable[[Native], _Result]) -> list[_Result]:
        """Return what comes of each option; an error that some raise may be raised."""
        found: list[_Result] = []
        errors: list[Raised] = []
        for option in value.options:
            try:
                found.append(of(option))
            except Raised as error:
                errors.append(error)
        if not found:
            raise errors[0]
        self._suppose(str(value))
        for each in errors:
            self.note(each)
        self._maybe.pop()
        return found

    def raised(self, error: BaseException) -> Raised:
        """Return the error of an operation at the line that runs now."""
        return Raised(error, self.at)

    def _weakly(self, before: Native, after: Native, level: int) -> Native:
        """Return the value after an assignment, which may not run if `level` is of before."""
        if len(self._maybe) <= level:
            return after
        if before is MISSING:
            return Perhaps("it may be missing", after)
        return joined(before, after)

    def _level(self, value: Native) -> int:
        """Return how many of the unknown conditions of now a value was made under."""
        found = self._made_under.get(id(value))
        condition = None if found is None else found[1]
        while condition is not None and condition is not self._condition_at(condition.depth):
            condition = condition.outer
        return 0 if condition is None else condition.depth

    def _condition_at(self, depth: int) -> Condition | None:
        return self._maybe[depth - 1] if depth <= len(self._maybe) else None

    def _fresh(self, value: Native) -> Native:
        """Record under which unknown conditions a value is made."""
        if self._maybe:
            self._made_under[id(value)] = (value, self._maybe[-1])
        return value
