"""From scores to tokens, on the device.

A request's token is a function of its own scores, position and sampling, whatever else is in the
batch: a request that is computed anew and gets the same scores gets the same tokens.

Shapes: B requests in the batch, V tokens in the vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from backend_caps.runtime.model.config import MAX_VOCAB_SIZE
from backend_caps.runtime.model.noise import gumbel

_WEIGHT_ONE = 2.0**62 / MAX_VOCAB_SIZE
"""The weight of the likeliest token. Weights are whole numbers: their sums are exact in any order
of addition, and those of the largest vocabulary fit into int64."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingBatch:
    """How the requests of one step want their tokens chosen."""

    temperature: Tensor
    """[B] float32, device: what scores are divided by; 0 is greedy."""
    seeds: Tensor
    """[B] int64, device: each request's noise."""
    positions: Tensor
    """[B] int64, device: the place in its context of the token that is chosen."""
    top_k: Tensor | None = None
    """[B] int64, device: how many tokens to choose among; V or more is all of them. None: all,
    for every request."""
    top_p: Tensor | None = None
    """[B] float32, device: the least probability of the tokens to choose among, after `top_k`; 1
    is all of them. None: all, for every request."""


def sample_tokens(logits: Tensor, sampling: SamplingBatch | None) -> Tensor:
    """Choose each request's next token.

    logits   [B, V] float32, device
    returns  [B] int64, device

    Stream: the current one. Sync: none. Allocates: the result; with `sampling` some times the
    logits. Keeps: nothing. Capture: yes. Exact: where temperature is 0, or `sampling` None, the
    argmax, and of equal scores whichever `torch.argmax` names.
    """
    likeliest = logits.argmax(dim=-1)
    if sampling is None:
        return likeliest
    is_greedy = sampling.temperature == 0
    divisors = sampling.temperature.masked_fill(is_greedy, 1.0).unsqueeze(1)
    # Below zero after the subtraction, a score that is divided by next to nothing is no NaN.
    scores = (logits - logits.amax(dim=-1, keepdim=True)) / divisors
    noisy = scores + gumbel(sampling.seeds, sampling.positions, logits.shape[1])
    if sampling.top_k is not None or sampling.top_p is not None:
        noisy = noisy.masked_fill(~allowed_tokens(scores, sampling), -torch.inf)
    return torch.where(is_greedy, likeliest, noisy.argmax(dim=-1))


def allowed_tokens(scores: Tensor, sampling: SamplingBatch) -> Tensor:
    """Tell which tokens are among the `top_k`, and of those in `top_p`.

    scores   [B, V] float32, device  0 for the likeliest token
    returns  [B, V] bool, device

    Stream: the current one. Sync: none. Allocates: some times the scores. Keeps: nothing.
    Capture: yes. Exact: of equal scores the first token is the likelier one; the likeliest one is
    always allowed.
    """
    ordered, tokens = scores.sort(dim=-1, descending=True, stable=True)
    ranks = torch.arange(scores.shape[1], device=scores.device)
    kept = torch.ones_like(scores, dtype=torch.bool)
    if sampling.top_k is not None:
        kept = kept & (ranks < sampling.top_k.unsqueeze(1))
    if sampling.top_p is not None:
        kept = kept & _nucleus(ordered, kept, sampling.top_p.unsqueeze(1))
    return torch.zeros_like(kept).scatter(1, tokens, kept | (ranks == 0))


def _nucleus(ordered: Tensor, kept: Tensor, top_p: Tensor) -> Tensor:
    """Tell which of the kept tokens, likeliest first, the probability `top_p` [B, 1] needs."""
    num_tokens = ordered.shape[1]
    assert num_tokens <= MAX_VOCAB_SIZE, f"the weights of {num_tokens} tokens overflow int64"
    weights = (ordered.to(torch.float64).exp() * _WEIGHT_ONE).to(torch.int64).masked_fill(~kept, 0)
    before = weights.cumsum(dim=-1) - weights
    total = weights.sum(dim=-1, keepdim=True)
    # A token may be too unlikely to weigh anything, and still be allowed where all are.
    return (before < top_p.to(torch.float64) * total) | (top_p >= 1)
