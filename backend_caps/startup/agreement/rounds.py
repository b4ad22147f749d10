"""The rounds in which ranks come to one plan, whatever carries them.

All agree: two integers are compared, and as every rank knows that then, it is acknowledged by
coming to a barrier. They do not: the marks of all are gathered, and of ranks that say the same the
lowest speaks. So what crosses grows by 16 bytes a rank, and by one statement for each that is
different.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from backend_caps.report.document import json_text
from backend_caps.resolution.plan import Plan
from backend_caps.startup.agreement.errors import MissingRanksError
from backend_caps.startup.agreement.judging import (
    Said,
    differences_beside,
    hosts_of,
    judge,
    require_same,
)
from backend_caps.startup.agreement.statement import (
    Statement,
    Treatment,
    failure_of,
    last_statement,
)
from backend_caps.startup.agreement.words import Words

_COMPARING = "the comparison of fingerprints"
_ENDING = "the acknowledgement"


class Channel(Protocol):
    """What carries rounds between ranks. Each rank takes part in each, in one order.

    A round that does not end in time raises on every rank that is still there.
    """

    @property
    def ranks(self) -> Sequence[int]:
        """The number that each of these ranks has in the job."""
        ...

    def largest(self, values: Sequence[int], round_name: str) -> list[int]:
        """Return the largest of all ranks' int64 values, place by place."""
        ...

    def met(self, round_name: str) -> None:
        """Wait until every rank has come to this round; nothing is said in it."""
        ...

    def gathered(self, values: Sequence[int], round_name: str) -> list[list[int]]:
        """Return every rank's int64 values, by rank."""
        ...

    def said_by(self, rank: int, own: bytes, num_bytes: int, round_name: str) -> bytes:
        """Return the bytes of one rank; those of the others are not looked at."""
        ...


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
    mark = own.mark
    if _all_say(mark, channel, _COMPARING):
        channel.met(_ENDING)
        return plan
    said = heard(own, plan, channel)
    require_same(said)
    try:
        joint = judge(plan, said)
        check(joint)
    except Exception as error:  # of this rank's own flags: the others may have a plan
        tell_failure(error, channel, _ENDING)
        raise
    last = last_statement(joint)
    if not _all_say(last.mark, channel, _ENDING):
        require_same(heard(last, joint, channel))
    return joint


def tell_failure(
    error: Exception,
    channel: Channel,
    round_name: str = _COMPARING,
    fields: Mapping[str, tuple[Treatment, str]] | None = None,
) -> None:
    """Tell the other ranks that this one has no plan, and why; the caller raises it.

    Args:
        error: what was raised. It gets a note on whether the others were told, and one for each
            field in which the ranks differ: that may be the cause.
        channel: to the other ranks.
        round_name: the round that the others are in.
        fields: what this rank was started with, where the others state it too.
    """
    own = failure_of(error, fields)
    said: list[Said] = []
    try:
        if not _all_say(own.mark, channel, round_name):
            said = heard(own, None, channel)
    except MissingRanksError as missing:
        error.add_note(f"The other ranks could not all be told: {missing}")
    else:
        error.add_note("The other ranks were told.")
        for each in differences_beside(said):
            error.add_note(f"The ranks differ: {each.told(hosts_of(said))}.")


def _all_say(mark: int, channel: Channel, round_name: str) -> bool:
    highest, lowest = channel.largest((mark, -mark), round_name)
    return highest == -lowest


def heard(own: Statement, plan: Plan | None, channel: Channel) -> list[Said]:
    """Hear each of those who say something different once: the lowest rank of each.

    Args:
        own: what this rank says.
        plan: its own; None where it has none.
        channel: to the other ranks.
    """
    words = json_text(Words.of(own, plan)).encode()
    gathered = channel.gathered((own.mark, len(words)), "the gathering of fingerprints")
    alike: dict[int, list[int]] = {}
    for rank, (mark, _) in enumerate(gathered):
        alike.setdefault(mark, []).append(rank)
    said = []
    for ranks in alike.values():
        num_bytes = gathered[ranks[0]][1]
        name = f"the statement of rank {channel.ranks[ranks[0]]}"
        spoken = channel.said_by(ranks[0], words, num_bytes, name)
        said.append(Said(Words.read(spoken), tuple(channel.ranks[rank] for rank in ranks)))
    return said
