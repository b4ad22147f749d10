"""Agreement: every rank of a job starts from one plan, or none of them starts. Loads torch.

Each rank resolves by itself, from its own environment; what they come to is compared before
anything is captured. docs/explanation/how-ranks-agree.md says how, and what it costs. Where all
have one plan, two integers are compared and a barrier acknowledges it. Where they do not, the marks
of all are gathered, and of ranks that state the same the lowest speaks: 16 bytes a rank cross, and
one statement for each that is different.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial, reduce

from torch import distributed as dist

from backend_caps.capability.backend import Problem
from backend_caps.capability.facts import Facts
from backend_caps.capability.kind import Phase
from backend_caps.resolution.flags import ServerFlags
from backend_caps.resolution.plan import Cause, Plan, Resolved, in_order, resolved_from
from backend_caps.resolution.problems import problems_of_values
from backend_caps.resolution.resolver import under_policy
from backend_caps.settings.settings import AGREEMENT_DEADLINE_S
from backend_caps.startup.channel import Channel, GroupChannel
from backend_caps.startup.errors import (
    Difference,
    MissingRanksError,
    RankFailedError,
    RanksDifferError,
    StartupError,
)
from backend_caps.startup.statement import (
    FLAG,
    VERSION,
    Fields,
    Statement,
    Treatment,
    failure_of,
    host_name,
    start_fields,
    statement_of,
    without_path,
)

__all__ = ["Ranks", "Statement", "Treatment", "agree", "send_failure", "statement_of"]

_COMPARING = "the comparison of fingerprints"
_ENDING = "the acknowledgement"
_ABSENT = "not given"
"""The value of a field that a rank does not state."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranks:
    """Who has to come to one plan, and in what they may differ.

    Args:
        group: the ranks of one job that relay with each other: all of tensor, pipeline and data
            parallelism whose batches are one another's. It needs gloo for the CPU; beside it there
            may be nccl, which is not used.
        deadline_s: seconds that this rank waits for the others, from its own call on.
        per_rank: names of `ServerFlags`, `Facts`, `pool_size`, `draft` or `graph_sizes`, in which
            ranks may differ; they are the same names on all ranks.

    Raises:
        StartupError: there is no such flag or fact.
    """

    group: dist.ProcessGroup
    deadline_s: float = AGREEMENT_DEADLINE_S
    per_rank: Collection[str] = ()

    def __post_init__(self) -> None:
        known = tuple(dict.fromkeys((*ServerFlags.model_fields, *Facts.model_fields, *_ARGUMENTS)))
        unknown = tuple(sorted({*self.per_rank} - {*known}))
        if unknown:
            raise StartupError(
                "per-rank",
                f"per_rank names {', '.join(map(repr, unknown))}; expected names of ServerFlags or "
                f"Facts: {', '.join(known)}. Correct the name, or take it out.",
            )

    @classmethod
    def of(cls, group: dist.ProcessGroup | Ranks) -> Ranks:
        """Return ranks as they are, and of a group alone those that differ in nothing."""
        return group if isinstance(group, Ranks) else cls(group=group)

    def channel(self) -> closing[GroupChannel]:
        """Open a channel between them, which the end of a `with` block closes."""
        return closing(GroupChannel(self.group, host=host_name(), deadline_s=self.deadline_s))


_ARGUMENTS = ("pool_size", "draft", "graph_sizes")
"""What `configure` is given beside the flags, and ranks share."""


def agree(
    decide: Callable[[], Plan],
    ranks: Ranks,
    *,
    given: ServerFlags,
    arguments: Mapping[str, object] | None = None,
    check: Callable[[Plan], None] = lambda _: None,
) -> Plan:
    """Decide, and come to one plan with all ranks; or to an error on each.

    Args:
        decide: makes this rank's plan. What it raises is told to the others, and raised again.
        ranks: who agrees.
        given: the flags as they were given, before anything was chosen.
        arguments: what else must be the same on all, such as `pool_size`, by name.
        check: raises where this rank cannot start from the plan that was joined; that is told too.

    Returns:
        This rank's plan where all have the same one; else its own flags, uses and choices with the
        joined values, whose causes name rank and host. No rank returns before all have it.

    Raises:
        RankFailedError: another rank has no plan.
        RanksDifferError: ranks differ in what must be the same.
        MissingRanksError: not every rank answered in time.
        StartupError: the group has no gloo, this rank is no member, or the deadline is none.

    Stream: none. Sync: waits for every rank, on the host. Not for use under capture.
    """
    per_rank = frozenset(ranks.per_rank)
    with ranks.channel() as channel:
        try:
            plan = decide()
        except Exception as error:
            tell_failure(error, channel, fields=start_fields(given, arguments or {}, per_rank))
            raise
        own = statement_of(plan, given=given, arguments=arguments, per_rank=per_rank)
        return agreed(plan, own, channel, check)


def send_failure(error: Exception, ranks: Ranks, *, given: ServerFlags) -> None:
    """Send the other ranks, which call `agree`, the error that keeps this one from calling it.

    Args:
        error: what was raised; the caller raises it again. It gets a note on whether it was sent.
        ranks: who agrees.
        given: the flags as they were given.

    Raises:
        StartupError: the group has no gloo, this rank is no member, or the deadline is none.

    Sync: waits for every rank, on the host, until the deadline.
    """
    fields = start_fields(given, {}, frozenset(ranks.per_rank))
    with ranks.channel() as channel:
        tell_failure(error, channel, fields=fields)


def agreed(
    plan: Plan, own: Statement, channel: Channel, check: Callable[[Plan], None] = lambda _: None
) -> Plan:
    """Come to one plan with all ranks.

    No rank has a plan before every rank has told that it has come to the same one.

    Args:
        plan: this rank's own, which has been checked.
        own: what this rank says of it.
        channel: to the other ranks.
        check: raises where this rank cannot start from a joined plan.

    Raises:
        RankFailedError: another rank has no plan.
        RanksDifferError: ranks differ in what must be the same.
        MissingRanksError: a round did not end; the channel raises it.
    """
    said = _heard_unless_alike(own, plan, channel, _COMPARING)
    if not said:
        channel.met(_ENDING)
        return plan
    require_same(said)
    try:
        joint = judge(plan, said)
        check(joint)
    except Exception as error:  # of this rank's own flags: the others may have a plan
        tell_failure(error, channel, _ENDING)
        raise
    last = Statement(fields={"joint plan": (Treatment.EQUAL, joint.fingerprint)})
    require_same(_heard_unless_alike(last, joint, channel, _ENDING))
    return joint


def tell_failure(
    error: Exception, channel: Channel, round_name: str = _COMPARING, fields: Fields | None = None
) -> None:
    """Tell the other ranks that this one has no plan, and why; the caller raises it.

    Args:
        error: what was raised. It gets a note on whether the others were told, and one for each
            field in which the ranks differ: that may be the cause.
        channel: to the other ranks.
        round_name: the round that the others are in.
        fields: what this rank was started with, where the others state it too.
    """
    try:
        said = _heard_unless_alike(failure_of(error, fields), None, channel, round_name)
    except MissingRanksError as missing:
        error.add_note(f"The other ranks could not all be told: {missing}")
    else:
        error.add_note("The other ranks were told.")
        for each in differences_beside(said):
            error.add_note(f"The ranks differ: {each.told(hosts_of(said))}.")


def _heard_unless_alike(
    own: Statement, plan: Plan | None, channel: Channel, round_name: str
) -> list[Statement]:
    """Compare the marks of all ranks, and return the statements of all where they differ."""
    highest, lowest = channel.largest((own.mark, -own.mark), round_name)
    return [] if highest == -lowest else heard(own, plan, channel)


def heard(own: Statement, plan: Plan | None, channel: Channel) -> list[Statement]:
    """Hear each of those who say something different once: the lowest rank of each.

    Args:
        own: what this rank says.
        plan: its own; None where it has none.
        channel: to the other ranks.
    """
    words = pickle.dumps(own.at_length(plan))
    gathered = channel.gathered((own.mark, len(words)), "the gathering of fingerprints")
    alike: dict[int, list[int]] = {}
    for rank, (mark, _) in enumerate(gathered):
        alike.setdefault(mark, []).append(rank)
    said = []
    for ranks in alike.values():
        num_bytes = gathered[ranks[0]][1]
        name = f"the statement of rank {channel.ranks[ranks[0]]}"
        spoken = channel.said_by(ranks[0], words, num_bytes, name)
        numbers = tuple(channel.ranks[rank] for rank in ranks)
        said.append(replace(Statement.read(spoken), ranks=numbers))
    return said


def judge(plan: Plan, said: Sequence[Statement]) -> Plan:
    """Join this rank's plan with those of the others.

    Args:
        plan: this rank's own.
        said: the statements of all ranks, its own among them; they agree where they must.

    Returns:
        Its own flags, facts, uses and choices, with the values that every need of any rank and the
        supports of all leave. A cause that not every rank has names the first that does.

    Raises:
        PlanRefusedError: the policy is strict, and there is a problem with what was joined.
    """
    joint = reduce(Plan.join, _plans(plan, said))
    told = (
        Problem(
            code="ranks-chose-differently",
            message=f"{each.told(hosts_of(said))}.",
            remedy="Where the ranks' machines differ this is as it should be; else name one "
            "backend in the flag.",
        )
        for each in _differences(said, Treatment.TOLD)
    )
    problems = {*plan.problems, *problems_of_values(joint), *told}
    return under_policy(joint, in_order(problems))


def require_same(said: Sequence[Statement]) -> None:
    """Refuse ranks that failed, or that differ in what must be the same.

    Raises:
        RankFailedError: a rank has no plan.
        RanksDifferError: ranks differ in a field.
    """
    hosts = hosts_of(said)
    failures = [(own.failure, own.ranks) for own in said if own.failure]
    if failures:
        beside = [*differences_beside(said)]
        raise RankFailedError(failures=failures, hosts=hosts, differences=beside)
    must_be_equal = (Treatment.EQUAL, Treatment.EQUAL_WHERE_STATED)
    differences = [each for treatment in must_be_equal for each in _differences(said, treatment)]
    if differences:
        raise RanksDifferError(differences=differences, hosts=hosts)


def differences_beside(said: Sequence[Statement]) -> Iterator[Difference]:
    """List in what ranks differ of which some have no plan: it may be why these have none.

    Compared is what a rank knows before it has a plan, where every rank states it.
    """
    failed = [own.fields for own in said if own.failure is not None]
    if not all(failed):
        return
    stated = {name for fields in failed for name in fields}
    for each in _differences(said, Treatment.EQUAL):
        if each.field in stated or each.field.startswith(FLAG):
            yield each


def hosts_of(said: Iterable[Statement]) -> Mapping[int, str]:
    """Name the hosts that are known: of the lowest rank of each that speak alike."""
    return {own.ranks[0]: own.host for own in said}


def _differences(said: Sequence[Statement], treatment: Treatment) -> Iterator[Difference]:
    names = {name for own in said for name, (how, _) in own.fields.items() if how is treatment}
    # Another release explains the other differences.
    for name in sorted(names, key=lambda name: (name != VERSION, name)):
        stated = [
            (own.fields[name][1] if name in own.fields else _ABSENT, own.ranks)
            for own in said
            if name in own.fields or treatment is not Treatment.EQUAL_WHERE_STATED
        ]
        found = Difference.among(name, stated)
        if found is not None:
            yield found


def _plans(plan: Plan, said: Sequence[Statement]) -> Iterator[Plan]:
    """Put the values that crossed, of each statement in turn, in the place of this rank's.

    A cause that every rank has is this rank's own, with the line of its declaration; another names
    the lowest rank that has it.
    """
    own_causes = {
        (phase, own.capability, without_path(cause)): cause
        for phase, own in plan.values()
        for cause in own.causes
    }
    holders: dict[tuple[Phase | None, str, Cause], list[Statement]] = {}
    for each in said:
        for phase, value in each.values:
            for cause in value.causes:
                holders.setdefault((phase, value.capability, cause), []).append(each)

    def cause_of(place: tuple[Phase | None, str, Cause]) -> Cause:
        cause = own_causes.get(place, place[-1])
        if len(holders[place]) == len(said):
            return cause
        first = min(holders[place], key=lambda each: each.ranks)
        return replace(cause, rank=first.ranks[0], host=first.host)

    def read(
        stated: Mapping[tuple[Phase | None, str], Resolved], phase: Phase | None, own: Resolved
    ) -> Resolved:
        value = stated[phase, own.capability]
        causes = (cause_of((phase, own.capability, cause)) for cause in value.causes)
        return resolved_from(own.capability, value.value, causes, own.effect)

    for each in said:
        stated = {(phase, value.capability): value for phase, value in each.values}
        yield plan.with_values(partial(read, stated))
