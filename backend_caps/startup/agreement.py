"""Agreement: every rank of a job starts from one plan, or none of them starts. Loads torch.

Each rank resolves by itself, from its own environment; the plans are compared before anything is
captured. docs/explanation/how-ranks-agree.md describes the protocol and its cost. Where all plans
are the same, two integers are compared and a barrier acknowledges it. Where they differ, the
digests of all ranks are gathered, and the lowest rank of each digest broadcasts its statement: 16
bytes a rank cross, and one statement for each different digest.
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
from backend_caps.startup import errors
from backend_caps.startup.channel import Channel, GroupChannel
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
    """The ranks that have to agree on one plan, and the fields in which they may differ.

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
            raise errors.StartupError(
                "per-rank",
                f"per_rank names {', '.join(map(repr, unknown))}; expected names of ServerFlags or "
                f"Facts: {', '.join(known)}. Correct the name, or take it out.",
            )

    @classmethod
    def of(cls, group: dist.ProcessGroup | Ranks) -> Ranks:
        """Wrap a group whose ranks may differ in no field; return `Ranks` unchanged."""
        return group if isinstance(group, Ranks) else cls(group=group)

    def channel(self) -> closing[GroupChannel]:
        """Open a channel between the ranks, which the end of a `with` block closes."""
        return closing(GroupChannel(self.group, host=host_name(), deadline_s=self.deadline_s))


_ARGUMENTS = ("pool_size", "draft", "graph_sizes")
"""Arguments of `configure` beside the flags that must be the same on all ranks."""


def agree(
    decide: Callable[[], Plan],
    ranks: Ranks,
    *,
    given: ServerFlags,
    arguments: Mapping[str, object] | None = None,
    check: Callable[[Plan], None] = lambda _: None,
) -> Plan:
    """Decide on a plan, and agree on one with all ranks; raise on every rank where that fails.

    Args:
        decide: makes this rank's plan. An error of it is sent to the other ranks, and raised again.
        ranks: the ranks that agree.
        given: the flags as they were given, before anything was chosen.
        arguments: what else must be the same on all, such as `pool_size`, by name.
        check: raises where this rank cannot start from the joined plan; the error is sent too.

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
            report_failure(error, channel, fields=start_fields(given, arguments or {}, per_rank))
            raise
        statement = statement_of(plan, given=given, arguments=arguments, per_rank=per_rank)
        return agree_over(channel, plan, statement, check)


def send_failure(error: Exception, ranks: Ranks, *, given: ServerFlags) -> None:
    """Send the other ranks, which call `agree`, the error that keeps this one from calling it.

    Args:
        error: what was raised; the caller raises it again. It gets a note on whether it was sent.
        ranks: the ranks that agree.
        given: the flags as they were given.

    Raises:
        StartupError: the group has no gloo, this rank is no member, or the deadline is none.

    Sync: waits for every rank, on the host, until the deadline.
    """
    with ranks.channel() as channel:
        fields = start_fields(given, {}, frozenset(ranks.per_rank))
        report_failure(error, channel, fields=fields)


def agree_over(
    channel: Channel,
    plan: Plan,
    statement: Statement,
    check: Callable[[Plan], None] = lambda _: None,
) -> Plan:
    """Agree on one plan with all ranks of a channel.

    No rank returns a plan before every rank has acknowledged the same one.

    Args:
        channel: to the other ranks.
        plan: this rank's plan, which has been checked.
        statement: this rank's statement of the plan.
        check: raises where this rank cannot start from a joined plan.

    Raises:
        RankFailedError: another rank has no plan.
        RanksDifferError: ranks differ in what must be the same.
        MissingRanksError: a round did not end; the channel raises it.
    """
    statements = _statements_if_different(channel, statement, plan, _COMPARING)
    if not statements:
        channel.barrier(_ENDING)
        return plan
    require_same(statements)
    try:
        joint = join_plans(plan, statements)
        check(joint)
    except Exception as error:  # it depends on this rank's flags: the others may have a plan
        report_failure(error, channel, _ENDING)
        raise
    joint_statement = Statement(fields={"joint plan": (Treatment.EQUAL, joint.digest)})
    require_same(_statements_if_different(channel, joint_statement, joint, _ENDING))
    return joint


def report_failure(
    error: Exception, channel: Channel, round_name: str = _COMPARING, fields: Fields | None = None
) -> None:
    """Send the other ranks the error that leaves this one without a plan; the caller raises it.

    Args:
        error: what was raised. It gets a note on whether the others received it, and one for each
            field in which the ranks differ: that may be the cause.
        channel: to the other ranks.
        round_name: the round that the others are in.
        fields: what this rank was started with, where the others state it too.
    """
    try:
        failure = failure_of(error, fields)
        statements = _statements_if_different(channel, failure, None, round_name)
    except errors.MissingRanksError as missing:
        error.add_note(f"Not every other rank got this failure: {missing}")
    else:
        error.add_note("The other ranks got this failure too.")
        for difference in differences_beside(statements):
            error.add_note(f"The ranks differ: {difference.sentence(hosts_of(statements))}.")


def _statements_if_different(
    channel: Channel, statement: Statement, plan: Plan | None, round_name: str
) -> list[Statement]:
    """Return the statements of all ranks where their digests differ, else an empty list."""
    # One all-reduce gives both ends: the lowest digest is minus the largest of the negated ones.
    highest, negated_lowest = channel.largest((statement.mark, -statement.mark), round_name)
    if highest == -negated_lowest:
        return []
    return exchange(channel, statement, plan)


def exchange(channel: Channel, statement: Statement, plan: Plan | None) -> list[Statement]:
    """Return one statement for each different digest, broadcast by the lowest rank that has it.

    Args:
        channel: to the other ranks.
        statement: this rank's statement.
        plan: this rank's plan; None where it has none.
    """
    payload = pickle.dumps(statement.at_length(plan))
    gathered = channel.gathered((statement.mark, len(payload)), "the gathering of fingerprints")
    ranks_by_mark: dict[int, list[int]] = {}
    for rank, (mark, _) in enumerate(gathered):
        ranks_by_mark.setdefault(mark, []).append(rank)
    statements = []
    for ranks in ranks_by_mark.values():
        num_bytes, numbers = gathered[ranks[0]][1], tuple(channel.ranks[rank] for rank in ranks)
        name = f"the statement of rank {numbers[0]}"
        received = channel.broadcast(ranks[0], payload, num_bytes, name)
        statements.append(replace(Statement.read(received), ranks=numbers))
    return statements


def join_plans(plan: Plan, statements: Sequence[Statement]) -> Plan:
    """Join this rank's plan with those of the others.

    Args:
        plan: this rank's plan.
        statements: of all ranks, this one included; `require_same` has passed them.

    Returns:
        This rank's flags, facts, uses and choices, with the values that result from the needs of
        any rank and the supports of all. A cause that not every rank has names the lowest rank
        that has it.

    Raises:
        PlanRefusedError: the policy is strict, and there is a problem with the joined values.
    """
    joint = reduce(Plan.join, _plans(plan, statements))
    chosen_differently = (
        Problem(
            code="ranks-chose-differently",
            message=f"{difference.sentence(hosts_of(statements))}.",
            remedy="Where the ranks' machines differ this is as it should be; else name one "
            "backend in the flag.",
        )
        for difference in _differences(statements, Treatment.REPORTED)
    )
    problems = {*plan.problems, *problems_of_values(joint), *chosen_differently}
    return under_policy(joint, in_order(problems))


def require_same(statements: Sequence[Statement]) -> None:
    """Refuse ranks that failed, or that differ in what must be the same.

    Raises:
        RankFailedError: a rank has no plan.
        RanksDifferError: ranks differ in a field.
    """
    hosts = hosts_of(statements)
    failures = [(each.failure, each.ranks) for each in statements if each.failure]
    if failures:
        beside = [*differences_beside(statements)]
        raise errors.RankFailedError(failures=failures, hosts=hosts, differences=beside)
    differences = [
        *_differences(statements, Treatment.EQUAL),
        *_differences(statements, Treatment.EQUAL_WHERE_STATED),
    ]
    if differences:
        raise errors.RanksDifferError(differences=differences, hosts=hosts)


def differences_beside(statements: Sequence[Statement]) -> Iterator[errors.Difference]:
    """Yield the fields in which ranks differ where some failed: that may be the cause.

    Only fields that a rank states before it has a plan are compared, where every rank states them.
    """
    failed = [statement.fields for statement in statements if statement.failure is not None]
    if not all(failed):
        return
    stated = {name for fields in failed for name in fields}
    for difference in _differences(statements, Treatment.EQUAL):
        if difference.field in stated or difference.field.startswith(FLAG):
            yield difference


def hosts_of(statements: Iterable[Statement]) -> Mapping[int, str]:
    """Return the known hosts by rank: that of the lowest rank of each statement."""
    return {statement.ranks[0]: statement.host for statement in statements}


def _differences(statements: Sequence[Statement], rule: Treatment) -> Iterator[errors.Difference]:
    names = {
        name
        for statement in statements
        for name, (field_treatment, _) in statement.fields.items()
        if field_treatment is rule
    }
    # The release comes first, because another release explains the other differences.
    for name in sorted(names, key=lambda name: (name != VERSION, name)):
        stated = [
            (each.fields[name][1] if name in each.fields else _ABSENT, each.ranks)
            for each in statements
            if name in each.fields or rule is not Treatment.EQUAL_WHERE_STATED
        ]
        difference = errors.Difference.among(name, stated)
        if difference is not None:
            yield difference


def _plans(plan: Plan, statements: Sequence[Statement]) -> Iterator[Plan]:
    """Yield this rank's plan with the values of each statement in turn.

    A cause that every rank has is this rank's, with the line of its declaration; any other cause
    names the lowest rank that has it.
    """
    # Causes cross without paths, so that the same cause is equal on two machines.
    local_causes = {
        (phase, resolved.capability, without_path(cause)): cause
        for phase, resolved in plan.values()
        for cause in resolved.causes
    }
    holders: dict[tuple[Phase | None, str, Cause], list[Statement]] = {}
    for statement in statements:
        for (phase, capability), value in statement.values.items():
            for cause in value.causes:
                holders.setdefault((phase, capability, cause), []).append(statement)

    def cause_of(key: tuple[Phase | None, str, Cause]) -> Cause:
        cause = local_causes.get(key, key[-1])
        if len(holders[key]) == len(statements):
            return cause
        first = min(holders[key], key=lambda statement: statement.ranks)
        return replace(cause, rank=first.ranks[0], host=first.host)

    def stated_value(statement: Statement, phase: Phase | None, local: Resolved) -> Resolved:
        value = statement.values[phase, local.capability]
        causes = (cause_of((phase, local.capability, cause)) for cause in value.causes)
        return resolved_from(local.capability, value.value, causes, local.effect)

    for statement in statements:
        yield plan.with_values(partial(stated_value, statement))
