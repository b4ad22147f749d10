"""One rank's way to the joint plan: decide, tell the others, and take what all came to."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from torch import distributed as dist

from backend_caps.capability.facts import Facts
from backend_caps.resolution.flags import ServerFlags
from backend_caps.resolution.plan import Plan
from backend_caps.settings.settings import AGREEMENT_DEADLINE_S
from backend_caps.startup.agreement.errors import UnknownPerRankFlagError
from backend_caps.startup.agreement.group import GroupChannel
from backend_caps.startup.agreement.rounds import agreed, tell_failure
from backend_caps.startup.agreement.statement import (
    Treatment,
    host_name,
    start_fields,
    statement_of,
)


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
        UnknownPerRankFlagError: there is no such flag or fact.
    """

    group: dist.ProcessGroup
    deadline_s: float = AGREEMENT_DEADLINE_S
    per_rank: Collection[str] = ()

    def __post_init__(self) -> None:
        known = tuple(dict.fromkeys((*ServerFlags.model_fields, *Facts.model_fields, *_ARGUMENTS)))
        unknown = tuple(sorted({*self.per_rank} - {*known}))
        if unknown:
            raise UnknownPerRankFlagError(names=unknown, known=known)

    @classmethod
    def of(cls, group: dist.ProcessGroup | Ranks) -> Ranks:
        """Return ranks as they are, and of a group alone those that differ in nothing."""
        return group if isinstance(group, Ranks) else cls(group=group)


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
        ControlGroupError: the group has no gloo, or this rank is no member.
        AgreementDeadlineError: the deadline is none.

    Stream: none. Sync: waits for every rank, on the host. Not for use under capture.
    """
    channel = GroupChannel(ranks.group, host=host_name(), deadline_s=ranks.deadline_s)
    per_rank = frozenset(ranks.per_rank)
    try:
        plan = _decided(decide, channel, start_fields(given, arguments or {}, per_rank))
        own = statement_of(plan, given=given, arguments=arguments, per_rank=per_rank)
        return agreed(plan, own, channel, check)
    finally:
        channel.ended()


def send_failure(error: Exception, ranks: Ranks, *, given: ServerFlags) -> None:
    """Send the other ranks, which call `agree`, the error that keeps this one from calling it.

    Args:
        error: what was raised; the caller raises it again. It gets a note on whether it was sent.
        ranks: who agrees.
        given: the flags as they were given.

    Raises:
        ControlGroupError: the group has no gloo, or this rank is no member.
        AgreementDeadlineError: the deadline is none.

    Sync: waits for every rank, on the host, until the deadline.
    """
    channel = GroupChannel(ranks.group, host=host_name(), deadline_s=ranks.deadline_s)
    try:
        tell_failure(error, channel, fields=start_fields(given, {}, frozenset(ranks.per_rank)))
    finally:
        channel.ended()


def _decided(
    decide: Callable[[], Plan], channel: GroupChannel, fields: Mapping[str, tuple[Treatment, str]]
) -> Plan:
    try:
        return decide()
    except Exception as error:
        tell_failure(error, channel, fields=fields)
        raise
