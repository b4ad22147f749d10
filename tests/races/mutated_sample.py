"""Code for the tests of mutation to change."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

_P = ParamSpec("_P")
_R = TypeVar("_R")


def _as_it_is(function: Callable[_P, _R]) -> Callable[_P, _R]:
    @wraps(function)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        return function(*args, **kwargs)

    return call


class Sample:
    """Append words to a list."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def say(self) -> None:
        """Say three words, one of them twice."""
        self.said.append("one")
        if self.said:
            self.said.append("two")
        self.said.append("three")
        self.said.append("three")

    @_as_it_is
    def total(self) -> int:
        """Return a number that two expressions make."""
        return sum((10, 20), start=3)

    @property
    def number(self) -> int:
        """A number."""
        return 5
