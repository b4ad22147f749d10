"""The values of a plan, each with its causes behind it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from backend_caps.report.documents import PlanDocument, ValueDocument
from backend_caps.report.sections import Opened, Table
from backend_caps.report.views import causes_table
from backend_caps.report.words import decided_by, words_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """One value, in words."""

    name: str
    """The capability."""
    words: str
    """The value; empty where no backend is used."""
    effect: str
    """What it does on this server."""
    decided_by: str
    causes: Table | None
    """Every cause; None where no backend is used."""
    is_open: bool
    """Whether it was asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The values of the server, or of a phase."""

    title: str
    values: tuple[Told, ...]


def answer(plan: PlanDocument, asked: Opened) -> str:
    """Say what a value is that was asked for, in each phase where it was."""
    engine = "" if plan.engine is None else f"with {plan.engine}, "
    if asked.name in plan.server:
        return f"{engine}{asked.name} is {_in_words(plan.server[asked.name])}"
    phases: dict[str, list[str]] = {}
    for phase, values in plan.phases.items():
        if asked.phase in (None, phase):
            phases.setdefault(_in_words(values[asked.name]), []).append(phase)
    told = "; ".join(f"{words} in {', '.join(own)}" for words, own in phases.items())
    return f"{engine}{asked.name} is {told}"


def _in_words(value: ValueDocument) -> str:
    return words_of(value.value) if value.causes else "not used"


def told_values(plan: PlanDocument, opened: Sequence[Opened]) -> Iterator[Place]:
    """Tell the server's values, then those of each phase; those in `opened` stand open."""
    yield Place(title="For the server", values=_told(plan.server, [each.name for each in opened]))
    for phase, values in plan.phases.items():
        names = [each.name for each in opened if each.phase in (None, phase)]
        yield Place(title=f"In {phase}", values=_told(values, names))


def _told(values: Mapping[str, ValueDocument], opened: Sequence[str]) -> tuple[Told, ...]:
    return tuple(
        Told(
            name=name,
            words=words_of(value.value) if value.causes else "",
            effect=value.effect,
            decided_by=decided_by(value) if value.causes else "no backend is used there",
            causes=causes_table(value) if value.causes else None,
            is_open=name in opened,
        )
        for name, value in values.items()
    )
