"""Agreement: every rank of a job starts from one plan, or none of them starts. Loads torch.

Each rank resolves by itself, from its own environment. What they come to is compared before
anything is captured; docs/explanation/how-ranks-agree.md says how, and what it costs.
"""

from backend_caps.startup.agreement.agree import Ranks, agree, send_failure
from backend_caps.startup.agreement.statement import Statement, Treatment, statement_of

__all__ = ["Ranks", "Statement", "Treatment", "agree", "send_failure", "statement_of"]
