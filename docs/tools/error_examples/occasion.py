"""When errors are raised, with an example of each."""

from __future__ import annotations

from dataclasses import dataclass

from backend_caps.errors import BackendCapsError, CodedError


@dataclass(frozen=True, slots=True, kw_only=True)
class Occasion:
    """A section of the page: the errors that are raised on one occasion."""

    title: str
    told: str
    """By what they are raised."""
    examples: tuple[BackendCapsError, ...] = ()
    """One of each class that has fields of its own."""
    coded: tuple[type[CodedError], ...] = ()
    """The classes whose causes are codes."""
