"""Drafts that are looked up on the host, in each request's own tokens.

They continue tokens that the host has, so each step waits for the result of the one before
(`Decoding.follows_results`): this is the algorithm that speculates without a draft model, and
overlaps nothing.

Shapes: B requests in the batch, N tokens in a tree.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from backend_caps.runtime.batch import ScheduleBatch
from backend_caps.runtime.forward_batch import ForwardBatch
from backend_caps.runtime.request import Request
from backend_caps.runtime.speculative.contexts import Contexts
from backend_caps.runtime.speculative.ngram import HostTree, NgramIndex
from backend_caps.runtime.speculative.settings import SpecSettings
from backend_caps.runtime.speculative.state import DraftState, Followed
from backend_caps.runtime.speculative.tree import DraftTree, visible_nodes
from backend_caps.runtime.speculative.verify import Accepted
from backend_caps.runtime.staging import Staging


class NgramDrafter:
    """Draft what followed the same tokens before.

    Args:
        settings: how large a tree is.
        staging: carries trees to the device.
    """

    def __init__(self, settings: SpecSettings, staging: Staging) -> None:
        self._settings = settings
        self._staging = staging
        self._indices: dict[int, NgramIndex] = {}

    @property
    def reads_table_last(self) -> bool:
        """False: there is no draft model."""
        return False

    def tree(self, batch: ScheduleBatch, contexts: Contexts) -> DraftTree:  # noqa: ARG002
        """Look each request's drafts up, and upload them.

        Stream: the current one, which must be the forward stream. Sync: none.
        """
        settings = self._settings
        trees = self._trees(batch.requests)
        size = len(trees), settings.num_draft_tokens
        tokens, parents, depths = self._staging.upload(
            (
                [token for tree in trees for token in tree.tokens],
                [parent for tree in trees for parent in tree.parents],
                [depth for tree in trees for depth in tree.depths],
            )
        ).view(3, *size)
        return DraftTree(
            tokens=tokens,
            parents=parents,
            depths=depths,
            visible=None if settings.is_chain else visible_nodes(parents, settings.num_steps),
        )

    def follow_prompts(
        self, forward: ForwardBatch, features: Tensor, next_ids: Tensor
    ) -> DraftState:
        """Need nothing of it: the host's tokens are all that there is."""
        del forward, features, next_ids
        return DraftState()

    def follow_accepted(self, contexts: Contexts, accepted: Accepted, features: Tensor) -> Followed:
        """Need nothing of it: the host's tokens are all that there is."""
        del contexts, accepted, features
        return Followed(state=DraftState())

    def _trees(self, requests: Sequence[Request]) -> list[HostTree]:
        """Draft for each request; whoever is not among them any more is forgotten."""
        settings = self._settings
        self._indices = {own.number: self._index_of(own) for own in requests}
        return [
            index.draft(
                topk=settings.topk,
                num_steps=settings.num_steps,
                num_draft_tokens=settings.num_draft_tokens,
            )
            for index in self._indices.values()
        ]

    def _index_of(self, request: Request) -> NgramIndex:
        """Return a request's index, with every token that the host has of it."""
        index = self._indices.get(request.number) or NgramIndex()
        num_output = max(0, len(index) - len(request.prompt))
        if not len(index):
            index.extend(request.prompt)
        index.extend(request.output[num_output:])
        return index
