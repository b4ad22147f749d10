"""From what the target says at each node of a tree to the tokens of a step.

A step's tokens are those that the target would have chosen one by one. At each node it chooses the
next token as plain decoding does; where a child of the node has that token, the draft was right,
and the choice at the child comes next. The last choice, which no child has, is the bonus token.

With sampling this is rejection sampling (Leviathan et al., 2023), over all children of a node as
in SpecInfer (Miao et al., 2024). Drafts are here the draft model's likeliest tokens, taken without
chance: a draft's own distribution has all its weight on one token. The rule then accepts a child
with the probability p that the target gives to its token, and after a refusal takes that token out
of p, scales the rest up to one and asks the next child; when all are refused it draws from what is
left. So each child's token comes with its probability in p, the scaling undoing the refusals
before it, and so does every other token. One draw from p, and a look whether a child has what was
drawn, is the same experiment: equal events of equal probability, without a second random number.

Noise depends on a request's seed and a position alone. At each depth one node at most is on the
accepted path, and which one it is follows from the noise of positions before it, so nodes of equal
depth may share theirs. Plain decoding meets the same noise at the same positions: the tokens are
the same, one by one, and not only as likely.

Shapes: B requests in the batch, N tokens in a tree, S draft steps, V tokens in the vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from backend_caps.runtime.model.sampling import SamplingBatch, sample_tokens
from backend_caps.runtime.speculative.tree import DraftTree


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
        temperature=_of_nodes(sampling.temperature, num_nodes),
        seeds=_of_nodes(sampling.seeds, num_nodes),
        positions=(seq_lens.unsqueeze(1) + depths + 1).flatten(),
        top_k=None if top_k is None else _of_nodes(top_k, num_nodes),
        top_p=None if top_p is None else _of_nodes(top_p, num_nodes),
    )
    return sample_tokens(logits, of_nodes).view(depths.shape)


def _of_nodes(of_requests: Tensor, num_nodes: int) -> Tensor:
    """Repeat each request's value for its nodes."""
    return of_requests.unsqueeze(1).expand(-1, num_nodes).flatten()
