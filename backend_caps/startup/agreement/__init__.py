"""Agreement: every rank of a job starts from one plan, or none of them starts. Loads torch.

Each rank resolves by itself, from its own environment. What they come to is compared before
anything is captured; docs/explanation/how-ranks-agree.md says how, and what it costs.
"""

from backend_caps.startup.agreement.agree import Ranks, agree, send_failure
from backend_caps.startup.agreement.errors import (
    AgreementDeadlineError,
    ControlGroupError,
    Difference,
    MissingRanksError,
    RankFailedError,
    RanksDifferError,
    UnknownPerRankFlagError,
)
from backend_caps.startup.agreement.group import GroupChannel
from backend_caps.startup.agreement.rounds import Channel, agreed, tell_failure
from backend_caps.startup.agreement.statement import (
    Statement,
    Treatment,
    failure_of,
    statement_of,
)

__all__ = [
    "AgreementDeadlineError",
    "Channel",
    "ControlGroupError",
    "Difference",
    "GroupChannel",
    "MissingRanksError",
    "RankFailedError",
    "Ranks",
    "RanksDifferError",
    "Statement",
    "Treatment",
    "UnknownPerRankFlagError",
    "agree",
    "agreed",
    "failure_of",
    "send_failure",
    "statement_of",
    "tell_failure",
]
