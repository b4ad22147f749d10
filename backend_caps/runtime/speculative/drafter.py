"""Who drafts: what a speculative step asks of it, around the verify of the target.

Shapes: B requests and T tokens in the batch, N tokens in a tree, A the most tokens that a step
accepts, F features that a draft head reads of a token.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from backend_caps.runtime.batch import ScheduleBatch
from backend_caps.runtime.forward_batch import ForwardBatch
from backend_caps.runtime.speculative.contexts import Contexts
from backend_caps.runtime.speculative.state import DraftState, Followed
from backend_caps.runtime.speculative.tree import DraftTree
from backend_caps.runtime.speculative.verify import Accepted


class Drafter(Protocol):
    """Guess what the target will say. All of it runs on the forward stream, and never waits."""

    @property
    def reads_table_last(self) -> bool:
        """Whether it reads the page table behind the verify."""

    def tree(self, batch: ScheduleBatch, contexts: Contexts) -> DraftTree:
        """Draft from what the last step left, which the relay has put into `batch.spec_info`."""

    def follow_prompts(
        self, forward: ForwardBatch, features: Tensor, next_ids: Tensor
    ) -> DraftState:
        """Take in prompts, and one token behind each.

        forward   the target's forward of them
        features  [T, F] device      the target's `Hidden.features`
        next_ids  [B] int64, device  the token behind each request's tokens
        """

    def follow_accepted(self, contexts: Contexts, accepted: Accepted, features: Tensor) -> Followed:
        """Take in what the target accepted of a tree.

        contexts  as the step found them
        accepted  [B, A] each
        features  [B, N, F] device  the target's `Hidden.features`
        """
