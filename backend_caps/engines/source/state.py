"""What an interpreted program has changed for certain, and what it may have changed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

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


class State:
    """The conditions under which the program runs now, and what comes of changes under them."""

    def __init__(self) -> None:
        """Start where everything runs for certain."""
        self.notes: list[Note] = []
        self._maybe: list[str] = []
        self._place: tuple[ModuleValue | None, int] = (None, 0)
        self._levels: dict[int, tuple[Native, int]] = {}

    @property
    def is_certain(self) -> bool:
        """Whether what runs now runs for certain."""
        return not self._maybe

    @property
    def at(self) -> str:
        """The line that runs now, as `file:line`."""
        module, line = self._place
        return ":0" if module is None else f"{module.module.path}:{line}"

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
        self._maybe.append(str(value))
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
        """Return under how many unknown conditions a value was made."""
        return self._levels.get(id(value), (None, 0))[1]

    def _fresh(self, value: Native) -> Native:
        """Record under how many unknown conditions a value is made."""
        if self._maybe:
            self._levels[id(value)] = (value, len(self._maybe))
        return value
