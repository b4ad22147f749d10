"""What differs between two sides: backends, what they say, releases, rules and plans.

A capability is stricter where the join with what it was is what it is now: the engine must do
more, or may do less. Where a statement stands in a file is told and never compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from backend_caps.capability.vocabulary import CAPABILITIES
from backend_caps.report.diff_backends import of_backends, of_problems, severity
from backend_caps.report.difference import (
    Difference,
    DifferenceKind,
    changed,
    in_order,
    mirrored,
    of_texts,
    paired,
)
from backend_caps.report.snapshot import PlanValue, Snapshot

__all__ = ["Difference", "DifferenceKind", "differences", "in_order", "mirrored", "severity"]


def differences(before: Snapshot, after: Snapshot) -> tuple[Difference, ...]:
    """List what differs, the most important first."""
    return in_order(
        (
            *of_backends(before.backends, after.backends),
            *_of_releases(before.releases, after.releases),
            *_of_rules(before, after),
            *of_problems("environment", before.problems, after.problems),
            *_of_requests(before, after),
            *_of_plans(before, after),
        )
    )


def _of_releases(before: Mapping[str, str], after: Mapping[str, str]) -> Iterator[Difference]:
    """Compare the versions of what both sides have; what only one has, its backends tell."""
    for name, one, other in paired(before, after):
        if one is not None and other is not None:
            yield from of_texts(f"release {name}", "version", one, other)


def _of_rules(before: Snapshot, after: Snapshot) -> Iterator[Difference]:
    if before.rules is None or after.rules is None:
        return
    for name, one, other in paired(before.rules, after.rules):
        yield from of_texts(f"rule {name}", "", one, other)
    if before.relays != after.relays:
        told = (", ".join(before.relays) or "none", ", ".join(after.relays) or "none")
        yield changed("rules", "overlapped algorithms", *told)


def _of_requests(before: Snapshot, after: Snapshot) -> Iterator[Difference]:
    if before.request is None or after.request is None:
        return
    for name, one, other in paired(before.request, after.request):
        if one != other:
            yield changed("request", name, one, other)


def _of_plans(before: Snapshot, after: Snapshot) -> Iterator[Difference]:
    if before.plan is None or after.plan is None:
        if before.request is not None and after.request is not None:
            one, other = ("made" if each.plan is not None else None for each in (before, after))
            yield from of_texts("plan", "", one, other)
        return
    for place, name in sorted(before.plan.keys() & after.plan.keys()):
        subject = "plan" if place == "server" else f"plan {place}"
        yield from _of_plan_value(subject, name, before.plan[place, name], after.plan[place, name])


def _of_plan_value(
    subject: str, name: str, one: PlanValue, other: PlanValue
) -> Iterator[Difference]:
    """Compare a value, then who holds it from being better, then what it does."""
    kind = severity(name, one.value, other.value)
    is_held = one.value != CAPABILITIES[name].best
    if kind is not None:
        yield Difference(
            kind=kind, subject=subject, field=name, before=one.words, after=other.words
        )
    elif is_held and one.words != other.words:
        yield changed(subject, name, one.words, other.words)
    elif one.effect != other.effect:
        yield changed(subject, name, one.effect, other.effect)
