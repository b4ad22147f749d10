"""Trees of drafts, on the device: how they grow, and what a verify accepts of them.

Trees grow as in EAGLE-2 (Li et al., 2024): a draft's score is the probability that the draft model
gives to it and to all that it continues. Each step goes on from the K best drafts of the step
before, its beams; at the end the best of all drafts make the tree. A child's score is at most its
parent's, so the best drafts are a tree.

Candidates are numbered in the order in which they are drafted: step 0's from 0 to K - 1, then K
children of each of K beams a step.

A step's tokens are those that the target would have chosen one by one. At each node it chooses the
next token as plain decoding does; where a child of the node has that token, the draft was right,
and the choice at the child comes next. The last choice, which no child has, is the bonus token.

With sampling this is rejection sampling (Leviathan et al., 2023), over all children of a node as
in SpecInfer (Miao et al., 2024). Drafts are here the draft model's likeliest tokens, taken without
chance: a draft's own distribution has all its weight on one token. The rule then accepts a child
with the probability p that the target gives to its token, and after a refusal takes that token out
of p, scales the rest up to one and asks the next child; when all are refused it draws from what is
left. So each child's token comes with its probability in p, and so does every other token. One draw
from p, and a look whether a child has what was drawn, is the same experiment.

Noise depends on a request's seed and a position alone. At each depth one node at most is on the
accepted path, and which one it is follows from the noise of positions before it, so nodes of equal
depth may share theirs. Plain decoding meets the same noise at the same positions: the tokens are
the same, one by one, and not only as likely.

Shapes: B requests in the batch, K candidates that a draft step keeps, S draft steps, M candidates
so far, N tokens in a tree, C draft tokens of each request that a draft step's forward sees, V
tokens in the vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from backend_caps.runtime.model.sampling import SamplingBatch, sample_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftTree:
    """A batch's drafts.

    Node 0 is the root: the last token of the request, whose keys and values are not stored yet.
    Parents come before their children.
    """

    tokens: Tensor
    """[B, N] int64, device: siblings differ."""
    parents: Tensor
    """[B, N] int64, device: the node that each continues; the root is its own."""
    depths: Tensor
    """[B, N] int64, device: 0 for the root."""
    visible: Tensor | None
    """[B, N, N] bool, device: visible[b, i, j] where j is i, or i continues it; None for a chain,
    where each token sees all before it."""


def rows_of(states: Tensor, places: Tensor) -> Tensor:
    """Pick rows of [B, R, H] by places [B, Q], which may be expanded: [B, Q, H]."""
    return states.gather(1, places.unsqueeze(2).expand(-1, -1, states.shape[2]))


def visible_nodes(parents: Tensor, num_steps: int) -> Tensor:
    """Tell for each node of a tree which nodes it continues.

    parents  [B, N] int64, device    a node's parent comes before it; the root is its own
    returns  [B, N, N] bool, device  `DraftTree.visible`

    Args:
        parents: as above.
        num_steps: the depth of the tree, or more.

    Stream: the current one. Sync: none. Allocates: the result, some times over.
    Keeps: nothing. Capture: yes.
    """
    own = torch.eye(parents.shape[1], dtype=torch.bool, device=parents.device)
    visible = own.expand(parents.shape[0], -1, -1)
    for _ in range(num_steps):
        visible = own | rows_of(visible, parents)
    return visible


@dataclass(frozen=True, slots=True, kw_only=True)
class Beams:
    """The drafts that the next draft forward goes on from."""

    tokens: Tensor
    """[B, K] int64, device: its input."""
    scores: Tensor
    """[B, K] float32, device."""
    parents: Tensor
    """[B, K] int64, device: the beam of the step before that each continues; of step 0, whose
    beams all continue the root, 0."""
    numbers: Tensor
    """[B, K] int64, device: which candidates they are."""
    ancestors: Tensor | None
    """[B, K, C] bool, device: which of the tokens that draft forwards took each continues, or is;
    C is K for each forward, this one included. None where K is 1: each continues all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidates:
    """All that was drafted for a batch so far, a tree of which the root is not part."""

    topk: int
    """K."""
    tokens: Tensor
    """[B, M] int64, device."""
    scores: Tensor
    """[B, M] float32, device: from 0 to 1."""
    parents: Tensor
    """[B, M] int64, device: the candidate that each continues; -1 is the root."""
    last_beams: Beams | None
    """The beams whose children came last; None after step 0."""

    @classmethod
    def start(cls, topk_p: Tensor, topk_index: Tensor) -> Self:
        """Take step 0's drafts, which continue the root.

        topk_p      [B, K] float32, device  probabilities
        topk_index  [B, K] int64, device    their tokens, which differ

        Stream: the current one. Sync: none. Allocates: scores and parents. Keeps: `topk_index`.
        Capture: yes.
        """
        return cls(
            topk=topk_p.shape[1],
            tokens=topk_index,
            scores=_probabilities(topk_p),
            parents=torch.full_like(topk_index, -1),
            last_beams=None,
        )

    def beams(self) -> Beams:
        """Choose the drafts to go on from: the K best of the last step.

        Stream: the current one. Sync: none. Allocates: the result. Keeps: nothing, views of
        step 0's drafts aside. Capture: yes. Exact: of equal scores the lower number is the
        better one; step 0's are taken in the order in which they came.
        """
        if self.last_beams is None:
            return self._first_beams()
        num_before = self.tokens.shape[1] - self.topk**2
        places = _best(self.scores[:, num_before:], self.topk)
        parents = places // self.topk
        numbers = places + num_before
        return Beams(
            tokens=self.tokens.gather(1, numbers),
            scores=self.scores.gather(1, numbers),
            parents=parents,
            numbers=numbers,
            ancestors=_continued(self.last_beams.ancestors, parents),
        )

    def grown(self, beams: Beams, topk_p: Tensor, topk_index: Tensor) -> Self:
        """Add the children of a step's beams.

        topk_p      [B, K, K] float32, device  probabilities, of each beam's children
        topk_index  [B, K, K] int64, device    their tokens; those of one beam differ

        Stream: the current one. Sync: none. Allocates: the result. Keeps: the beams.
        Capture: yes.
        """
        scores = _probabilities(topk_p) * beams.scores.unsqueeze(2)
        parents = beams.numbers.unsqueeze(2).expand(-1, -1, self.topk)
        return type(self)(
            topk=self.topk,
            tokens=torch.cat((self.tokens, topk_index.flatten(1)), dim=1),
            scores=torch.cat((self.scores, scores.flatten(1)), dim=1),
            parents=torch.cat((self.parents, parents.flatten(1)), dim=1),
            last_beams=beams,
        )

    def _first_beams(self) -> Beams:
        numbers = torch.arange(self.topk, device=self.tokens.device)
        own = numbers.unsqueeze(1) == numbers
        return Beams(
            tokens=self.tokens,
            scores=self.scores,
            parents=torch.zeros_like(self.tokens),
            numbers=numbers.expand(self.tokens.shape[0], -1),
            ancestors=None if self.topk == 1 else own.expand(self.tokens.shape[0], -1, -1),
        )


def best_tree(candidates: Candidates, root_tokens: Tensor, num_draft_tokens: int) -> DraftTree:
    """Make a tree of the best candidates, after the last step.

    root_tokens  [B] int64, device  each request's last token

    Args:
        candidates: those of all steps, at least N - 1.
        root_tokens: as above.
        num_draft_tokens: N. Where K is 1 the tree is the chain of all candidates: N is S + 1.

    Stream: the current one. Sync: none. Allocates: the tree. Keeps: nothing. Capture: yes.
    Exact: of equal scores the lower number is the better one, so that a parent is in wherever its
    child is; nodes come in the order of their numbers.
    """
    num_candidates = candidates.tokens.shape[1]
    assert num_draft_tokens <= num_candidates + 1, f"{num_candidates} drafts fill no such tree"
    if candidates.topk == 1:
        assert num_draft_tokens == num_candidates + 1, "a chain is verified whole"
        return _chain(candidates.tokens, root_tokens)
    chosen = _best(candidates.scores, num_draft_tokens - 1).sort(dim=1).values
    parents = _parent_nodes(candidates.parents, chosen)
    of_a_step = candidates.topk**2
    # Of each step but the first as many are drafted.
    own_depths = (chosen + (of_a_step - candidates.topk)) // of_a_step + 1
    return DraftTree(
        tokens=torch.cat((root_tokens.unsqueeze(1), candidates.tokens.gather(1, chosen)), dim=1),
        parents=parents,
        depths=_behind_root(own_depths),
        visible=visible_nodes(parents, 1 + (num_candidates - candidates.topk) // of_a_step),
    )


def _probabilities(given: Tensor) -> Tensor:
    """Keep scores from growing with depth, also those of padded requests, which may be NaN."""
    return given.nan_to_num(nan=0.0).clamp(0.0, 1.0)


def _best(scores: Tensor, count: int) -> Tensor:
    """Number the best, the best first; of equal ones the first is the better."""
    return scores.sort(dim=1, descending=True, stable=True).indices[:, :count]


def _continued(ancestors: Tensor | None, parents: Tensor) -> Tensor | None:
    """Let each beam see what its parent sees, and itself behind that."""
    if ancestors is None:
        return None
    own = torch.eye(parents.shape[1], dtype=torch.bool, device=parents.device)
    inherited = rows_of(ancestors, parents)
    return torch.cat((inherited, own.expand(len(parents), -1, -1)), dim=2)


def _parent_nodes(parents: Tensor, chosen: Tensor) -> Tensor:
    """Turn parents' numbers into nodes: chosen candidates come behind the root, in their order.

    parents  [B, M] int64, device  -1 is the root
    chosen   [B, N - 1] int64, device
    returns  [B, N] int64, device
    """
    nodes = torch.arange(1, chosen.shape[1] + 1, device=chosen.device).expand_as(chosen)
    # One place more than candidates, in front: the root's, which is node 0.
    node_of = _behind_root(torch.zeros_like(parents)).scatter(1, chosen + 1, nodes)
    return _behind_root(node_of.gather(1, parents.gather(1, chosen) + 1))


def _behind_root(values: Tensor) -> Tensor:
    """Put the root's, which is 0, before those of candidates."""
    return torch.nn.functional.pad(values, (1, 0))


def _chain(tokens: Tensor, root_tokens: Tensor) -> DraftTree:
    depths = torch.arange(tokens.shape[1] + 1, device=tokens.device).repeat(tokens.shape[0], 1)
    return DraftTree(
        tokens=torch.cat((root_tokens.unsqueeze(1), tokens), dim=1),
        parents=(depths - 1).clamp(min=0),
        depths=depths,
        visible=None,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted:
    """What a verify accepted of a batch's trees, and the tokens that follow from it."""

    path: Tensor
    """[B, S + 1] int64, device: accepted nodes, the root first; behind the last one, that again."""
    accept_lens: Tensor
    """[B] int64, device: how many there are, the root included: 1 to S + 1 tokens a step."""
    tokens: Tensor
    """[B, S + 1] int64, device: what the target chose at each, the step's new tokens."""
    bonus_tokens: Tensor
    """[B] int64, device: the last of them, the next tree's root."""


def accepted(tree: DraftTree, predicted: Tensor, *, num_steps: int) -> Accepted:
    """Follow the target's choices through each tree, for as long as drafts have them.

    predicted  [B, N] int64, device  what the target chose at each node

    Args:
        tree: the drafts, no deeper than S.
        predicted: as above.
        num_steps: S.

    Stream: the current one. Sync: none. Allocates: the result, and B times N times N or S + 1
    numbers. Keeps: nothing. Capture: yes.
    """
    agrees = tree.tokens == predicted.gather(1, tree.parents)
    agrees = agrees | (tree.depths == 0)
    if tree.visible is None:
        on_path = agrees.cumprod(dim=1).to(torch.bool)
    else:
        on_path = (agrees.unsqueeze(1) | ~tree.visible).all(dim=2)
    nodes = torch.arange(agrees.shape[1], device=agrees.device)
    steps = torch.arange(num_steps + 1, device=agrees.device).unsqueeze(1)
    # Numbers grow along a path, so the largest one within a depth is the last one.
    within = on_path.unsqueeze(1) & (tree.depths.unsqueeze(1) <= steps)
    path = torch.where(within, nodes, 0).amax(dim=2)
    tokens = predicted.gather(1, path)
    return Accepted(
        path=path, accept_lens=on_path.sum(dim=1), tokens=tokens, bonus_tokens=tokens[:, -1]
    )


def predict(
    logits: Tensor, depths: Tensor, seq_lens: Tensor, sampling: SamplingBatch | None
) -> Tensor:
    """Choose the target's next token at each node, as plain decoding would there.

    logits    [B * N, V] float32, device  the target's scores, node after node of each request
    depths    [B, N] int64, device        `DraftTree.depths`
    seq_lens  [B] int64, device           each context's length before the tree: without its root
    returns   [B, N] int64, device

    Args:
        logits: as above.
        depths: as above.
        seq_lens: as above.
        sampling: how each request's tokens are chosen; its positions are not read. None where
            every request is greedy.

    Stream: the current one. Sync: none. Allocates: as `sample_tokens` of so many requests.
    Keeps: nothing. Capture: yes. Exact: of equal scores the tokens are those of plain decoding.
    """
    if sampling is None:
        return sample_tokens(logits, None).view(depths.shape)
    num_nodes = depths.shape[1]
    top_k, top_p = sampling.top_k, sampling.top_p
    of_nodes = SamplingBatch(
        temperature=sampling.temperature.repeat_interleave(num_nodes),
        seeds=sampling.seeds.repeat_interleave(num_nodes),
        positions=(seq_lens.unsqueeze(1) + depths + 1).flatten(),
        top_k=None if top_k is None else top_k.repeat_interleave(num_nodes),
        top_p=None if top_p is None else top_p.repeat_interleave(num_nodes),
    )
    return sample_tokens(logits, of_nodes).view(depths.shape)
