"""What could be tried: flips, with phases that share one told together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from backend_caps.report.documents import FlipDocument
from backend_caps.report.words import words_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Try:
    """What leads to a better value, in all the phases where it is the same."""

    name: str
    """The capability."""
    phases: tuple[str, ...]
    """None for the server's."""
    was: str
    becomes: str
    remedies: tuple[str, ...]
    """All of them together."""


def tries(flips: Sequence[FlipDocument]) -> tuple[Try, ...]:
    """List what could be tried, once where phases share it."""
    phases: dict[tuple[str, str, str, tuple[str, ...]], list[str]] = {}
    for flip in flips:
        change = (words_of(flip.value), words_of(flip.becomes))
        same = phases.setdefault((flip.capability, *change, tuple(flip.remedies)), [])
        same += [] if flip.phase is None else [flip.phase]
    return tuple(
        Try(name=name, phases=tuple(own), was=was, becomes=becomes, remedies=remedies)
        for (name, was, becomes, remedies), own in phases.items()
    )
