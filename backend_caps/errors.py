"""The base of every error that a user may handle."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import partial
from typing import ClassVar


@dataclass(eq=False, kw_only=True)
class BackendCapsError(Exception):
    """Raised for a user's input that cannot be used; never for a fault of this package.

    A subclass is a dataclass of keyword fields with a `message` made from them: what is wrong
    with its values, what was expected, what to do. So it can be
    pickled, and a caller reads its fields instead of its text.
    """

    @property
    def message(self) -> str:
        """What is wrong, what was expected, what to do."""
        raise AssertionError(f"{type(self).__name__} has no message")

    def __str__(self) -> str:
        return self.message

    def __reduce__(self) -> tuple[object, ...]:
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return partial(type(self), **values), ()


@dataclass(eq=False)
class CodedError(BackendCapsError):
    """An error whose cause is named by a code; a folder has one such class.

    A separate class is for an error that a caller handles by itself, or whose fields it reads.
    """

    codes: ClassVar[Mapping[str, str]] = {}
    """Each code, with its occasion: docs/reference/errors.md."""

    code: str
    """Stable; one of `codes`."""
    text: str
    """What is wrong with its values, what was expected, what to do."""

    def __post_init__(self) -> None:
        assert self.code in self.codes, f"{type(self).__name__} has no code {self.code!r}"

    @property
    def message(self) -> str:
        """The text."""
        return self.text
