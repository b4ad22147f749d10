"""From what all ranks said to one plan, or to one error: the same on every rank."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce

from backend_caps.capability.backend import Problem
from backend_caps.capability.kind import Phase
from backend_caps.resolution.plan import Cause, Plan, Resolved, in_order, resolved_from
from backend_caps.resolution.problems import problems_of_values
from backend_caps.resolution.resolver import under_policy
from backend_caps.startup.agreement.statement import (
    FLAG,
    VERSION,
    Statement,
    Treatment,
    without_path,
)
from backend_caps.startup.errors import (
    Difference,
    RankFailedError,
    RankNumbers,
    RanksDifferError,
)

_ABSENT = "not given"
"""The value of a field that a rank does not state."""


@dataclass(frozen=True, slots=True)
class RankStatement:
    """What some ranks state alike."""

    statement: Statement
    """That of the lowest of them."""
    ranks: RankNumbers


def judge(plan: Plan, said: Sequence[RankStatement]) -> Plan:
    """Join this rank's plan with those of the others.

    Args:
        plan: this rank's own.
        said: what all ranks said, its own words among it, by the lowest rank of each; they are
            the same where they must be.

    Returns:
        Its own flags, facts, uses and choices, with the values that every need of any rank and the
        supports of all leave. A cause that not every rank has names the first that does.

    Raises:
        PlanRefusedError: the policy is strict, and there is a problem with what was joined.
    """
    joint = reduce(Plan.join, _plans(plan, said))
    told = (_differing(each, said) for each in _differences(said, Treatment.TOLD))
    problems = {*plan.problems, *problems_of_values(joint), *told}
    return under_policy(joint, in_order(problems))


def require_same(said: Sequence[RankStatement]) -> None:
    """Refuse ranks that failed, or that differ in what must be the same.

    Raises:
        RankFailedError: a rank has no plan.
        RanksDifferError: ranks differ in a field.
    """
    hosts = hosts_of(said)
    failures = [(own.statement.failure, own.ranks) for own in said if own.statement.failure]
    if failures:
        raise RankFailedError(
            failures=failures, hosts=hosts, differences=[*differences_beside(said)]
        )
    differences = [
        *_differences(said, Treatment.EQUAL),
        *_differences(said, Treatment.EQUAL_WHERE_STATED),
    ]
    if differences:
        raise RanksDifferError(differences=differences, hosts=hosts)


def differences_beside(said: Sequence[RankStatement]) -> Iterator[Difference]:
    """List in what ranks differ of which some have no plan: it may be why these have none.

    Compared is what a rank knows before it has a plan, where every rank states it.
    """
    failed = [own.statement.fields for own in said if own.statement.failure is not None]
    if not all(failed):
        return
    stated = {name for fields in failed for name in fields}
    for each in _differences(said, Treatment.EQUAL):
        if each.field in stated or each.field.startswith(FLAG):
            yield each


def hosts_of(said: Iterable[RankStatement]) -> Mapping[int, str]:
    """Name the hosts that are known: of the lowest rank of each that speak alike."""
    return {own.ranks[0]: own.statement.host for own in said}


def _differences(said: Sequence[RankStatement], treatment: Treatment) -> Iterator[Difference]:
    names = sorted(
        {
            name
            for own in said
            for name, (treated, _) in own.statement.fields.items()
            if treated is treatment
        },
        key=lambda name: (name != VERSION, name),  # another release explains the others
    )
    for name in names:
        held = ((own.statement.fields.get(name, (treatment, None))[1], own.ranks) for own in said)
        stated = [
            (_ABSENT if value is None else value, ranks)
            for value, ranks in held
            if value is not None or treatment is not Treatment.EQUAL_WHERE_STATED
        ]
        found = Difference.among(name, stated)
        if found is not None:
            yield found


def _differing(difference: Difference, said: Sequence[RankStatement]) -> Problem:
    return Problem(
        code="ranks-chose-differently",
        message=f"{difference.told(hosts_of(said))}.",
        remedy="Where the ranks' machines differ this is as it should be; else name one backend "
        "in the flag.",
    )


def _plans(plan: Plan, said: Sequence[RankStatement]) -> Iterator[Plan]:
    """Make a plan of each statement, on the premises that all have in common."""
    reader = _Reader(plan, said)
    for each in said:
        yield plan.with_values(reader.of(each.statement))


class _Reader:
    """Reads values as they crossed.

    A cause that every rank has is this rank's own, with the line of its declaration; another names
    the lowest rank that has it.
    """

    def __init__(self, plan: Plan, said: Sequence[RankStatement]) -> None:
        self._num_said = len(said)
        self._own = {
            (phase, own.capability, without_path(cause)): cause
            for phase, own in plan.values()
            for cause in own.causes
        }
        self._holders: dict[tuple[Phase | None, str, Cause], list[RankStatement]] = {}
        for each in said:
            for phase, value in each.statement.values:
                for cause in value.causes:
                    place = (phase, value.capability, cause)
                    self._holders.setdefault(place, []).append(each)

    def of(self, statement: Statement) -> Callable[[Phase | None, Resolved], Resolved]:
        """Return what reads a rank's values, each in the place of this rank's."""
        stated = {(phase, each.capability): each for phase, each in statement.values}

        def read(phase: Phase | None, own: Resolved) -> Resolved:
            value = stated[phase, own.capability]
            causes = (self._cause(phase, own.capability, each) for each in value.causes)
            return resolved_from(own.capability, value.value, causes, own.effect)

        return read

    def _cause(self, phase: Phase | None, capability: str, stated: Cause) -> Cause:
        place = (phase, capability, stated)
        cause = self._own.get(place, stated)
        holders = self._holders[place]
        if len(holders) == self._num_said:
            return cause
        first = min(holders, key=lambda each: each.ranks)
        return replace(cause, rank=first.ranks[0], host=first.statement.host)
