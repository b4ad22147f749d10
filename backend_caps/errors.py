"""The base of every error that a user may handle.

Each says what is wrong with its values, what was expected and what to do, in one sentence
each. The subclasses are frozen dataclasses: fields first, the sentence from the fields, so
that they survive pickling into another process.
"""

from __future__ import annotations


class BackendCapsError(Exception):
    """Raised where what a user gave cannot be used; never for a fault of this package."""

    def __str__(self) -> str:
        return self.message

    @property
    def message(self) -> str:
        """What is wrong, what was expected, what to do."""
        raise NotImplementedError(type(self).__name__)

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuilt, (type(self), self.__dict__)


def _rebuilt(kind: type[BackendCapsError], fields: dict[str, object]) -> BackendCapsError:
    return kind(**fields)
