"""Drafts from what followed the same tokens before, looked up on the host."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import count

from torch import Tensor

from backend_caps.relay import RelayPayload
from backend_caps.relay.streams import EventLike
from backend_caps.runtime.batch import ScheduleBatch
from backend_caps.runtime.forward_batch import ForwardBatch
from backend_caps.runtime.request import Request
from backend_caps.runtime.speculation import SpecSettings
from backend_caps.runtime.speculative.contexts import Contexts
from backend_caps.runtime.speculative.tree import Accepted, DraftTree, visible_nodes
from backend_caps.runtime.staging import Staging


class HostTree:
    """One request's drafts, on the host: at first the root alone.

    Node 0 is the root: the request's last token. Parents come before their children.

    Args:
        root: its token.
        settings: how many nodes it has, how many children each, and how deep it is.
    """

    def __init__(self, root: int, settings: SpecSettings) -> None:
        self._settings = settings
        self.tokens = [root]
        """By node: siblings differ."""
        self.parents = [0]
        """By node: the node that it continues; the root is its own."""
        self.depths = [0]
        """By node: 0 for the root."""
        self._children: list[dict[int, int]] = [{}]

    @property
    def is_full(self) -> bool:
        """Whether it has all its nodes."""
        return len(self.tokens) >= self._settings.num_draft_tokens

    def add(self, tokens: Iterable[int]) -> None:
        """Merge a path from the root, as far as there is room for it."""
        node = 0
        for token in tokens:
            child = self._children[node].get(token)
            if child is None:
                if self.is_full or len(self._children[node]) >= self._settings.topk:
                    return
                child = self._append(token, node)
            node = child

    def pad(self) -> None:
        """Fill it up with the smallest tokens that differ from their siblings."""
        node, sizes = 0, self._settings
        while not self.is_full:
            assert node < len(self.tokens), (
                f"a tree of {sizes.num_draft_tokens} tokens has no room in"
                f" {sizes.num_steps} steps of {sizes.topk} candidates"
            )
            if self.depths[node] < sizes.num_steps:
                self._fill(node)
            node += 1

    def _fill(self, node: int) -> None:
        siblings = self._children[node]
        unused = (token for token in count() if token not in siblings)
        while not self.is_full and len(siblings) < self._settings.topk:
            self._append(next(unused), node)

    def _append(self, token: int, parent: int) -> int:
        node = len(self.tokens)
        self.tokens.append(token)
        self.parents.append(parent)
        self.depths.append(self.depths[parent] + 1)
        self._children.append({})
        self._children[parent][token] = node
        return node


class NgramIndex:
    """Remember which tokens followed which, in one request's own tokens.

    An append costs at most `max_match` look-ups, a draft at most `max_match * max_recent`
    continuations, however long the context is.

    Args:
        max_match: the longest suffix that is looked up.
        max_recent: how many places of one suffix are remembered, the latest ones.
    """

    def __init__(self, *, max_match: int = 12, max_recent: int = 8) -> None:
        assert max_match >= 1, f"no match has {max_match} tokens"
        assert max_recent >= 1, f"{max_recent} places of a suffix are none to continue from"
        self._max_match = max_match
        self._max_recent = max_recent
        self._tokens: list[int] = []
        self._suffixes: dict[int, _Suffix] = {}

    def __len__(self) -> int:
        return len(self._tokens)

    def extend(self, tokens: Sequence[int]) -> None:
        """Append tokens: the prompt first, then what is accepted."""
        for token in tokens:
            self._tokens.append(token)
            self._remember(len(self._tokens) - 1)

    def draft(self, settings: SpecSettings) -> HostTree:
        """Guess how the tokens go on, as a tree of `settings.num_draft_tokens` nodes.

        The longest suffix that came before is continued first, where it came last; then its earlier
        places, then shorter suffixes. Nodes that no continuation fills are padding, made of tokens
        below `topk`, so the vocabulary must have as many.
        """
        assert self._tokens, "a tree's root is the last token, and there is none"
        tree = HostTree(self._tokens[-1], settings)
        for end in self._places():
            if tree.is_full:
                break
            tree.add(self._continuation(end, settings.num_steps))
        tree.pad()
        return tree

    def _remember(self, end: int) -> None:
        """Store that the suffixes before place `end` are followed by what stands there."""
        longer = self._suffixes
        for length in range(1, min(self._max_match, end) + 1):
            token = self._tokens[end - length]
            found = longer.get(token)
            if found is None:
                longer[token] = _Suffix(end)
                return
            if found.longer is None:
                found.longer = self._lengthened(found.ends[0], length + 1)
            found.ends = (end, *found.ends[: self._max_recent - 1])
            longer = found.longer

    def _lengthened(self, end: int, length: int) -> dict[int, _Suffix]:
        """Store a suffix's only place one token longer, now that it has another."""
        if length > min(self._max_match, end):
            return {}
        return {self._tokens[end - length]: _Suffix(end)}

    def _places(self) -> Iterable[int]:
        """List where the last tokens came before, each place once: the longest match first."""
        return dict.fromkeys(end for found in reversed([*self._found()]) for end in found.ends)

    def _found(self) -> Iterator[_Suffix]:
        """Yield what is stored of the last tokens, the shortest suffix first."""
        longer: dict[int, _Suffix] | None = self._suffixes
        for token in reversed(self._tokens):
            found = longer.get(token) if longer else None
            if found is None:
                return
            yield found
            longer = found.longer

    def _continuation(self, end: int, num_steps: int) -> Iterator[int]:
        """Yield what follows a place; behind the last token, the same once more."""
        period = len(self._tokens) - end
        return (self._tokens[end + step % period] for step in range(num_steps))


class _Suffix:
    """Tokens of the context, and the places right behind them."""

    __slots__ = ("ends", "longer")

    def __init__(self, end: int) -> None:
        self.ends: tuple[int, ...] = (end,)
        """The latest places, the last one first."""
        self.longer: dict[int, _Suffix] | None = None
        """The suffixes with one token more, by that token; None while there is but one place,
        which keeps the index small where nothing repeats."""


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

    def tree(self, batch: ScheduleBatch, contexts: Contexts) -> DraftTree:  # noqa: ARG002
        """Look each request's drafts up, and upload them.

        Stream: the current one, which must be the forward stream. Sync: none.
        """
        settings = self._settings
        # The indices of all other requests are forgotten.
        self._indices = {own.number: self._index_of(own) for own in batch.requests}
        trees = [index.draft(settings) for index in self._indices.values()]
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
    ) -> RelayPayload:
        """Hand the tokens on: drafts are looked up on the host."""
        del forward, features
        return RelayPayload(next_ids)

    def follow_accepted(
        self, contexts: Contexts, accepted: Accepted, features: Tensor, verified: EventLike | None
    ) -> tuple[RelayPayload, EventLike | None]:
        """Hand the tokens on, and the verify's mark: no forward comes behind it."""
        del contexts, features
        return RelayPayload(accepted.bonus_tokens), verified

    def _index_of(self, request: Request) -> NgramIndex:
        """Return a request's index, with every token that the host has of it."""
        index = self._indices.get(request.number) or NgramIndex()
        num_output = max(0, len(index) - len(request.prompt))
        if not len(index):
            index.extend(request.prompt)
        index.extend(request.output[num_output:])
        return index
