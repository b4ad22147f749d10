"""From scores to tokens, on the device.

A request's token is a function of its own scores, position and sampling, whatever else is in the
batch: a request that is computed anew and gets the same scores gets the same tokens.

Its noise is a counter that goes through an integer hash (SplitMix64's, by Steele, Lea and Flood,
2014), so there is no state to keep.

Shapes: B requests in the batch, V tokens in the vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from backend_caps.runtime.model.config import MAX_VOCAB_SIZE

# int64 multiplication wraps around in torch; 2**64 is taken off what has the sign bit set.
_GOLDEN = 0x9E3779B97F4A7C15 - 2**64
_MIX = (0xBF58476D1CE4E5B9 - 2**64, 0x94D049BB133111EB - 2**64)
_UNIFORM_BITS = 53
"""What a float64 holds exactly."""


def gumbel(seeds: Tensor, positions: Tensor, vocab_size: int) -> Tensor:
    """Draw Gumbel noise: the argmax of log probabilities and it is a draw from them.

    seeds      [B] int64, device
    positions  [B] int64, device
    returns    [B, V] float32, device

    Stream: the current one. Sync: none. Allocates: the result, and some of it in 64 bits.
    Keeps: nothing. Capture: yes. Exact: the bits depend on seed, position and token alone; the
    logarithms are taken in float64, so that how a kernel cuts a batch up is rounded off.
    """
    tokens = torch.arange(vocab_size, device=seeds.device)
    keys = hashed(hashed(seeds) + positions)
    return gumbel_of(hashed(keys.unsqueeze(1) + tokens))


def gumbel_of(bits: Tensor) -> Tensor:
    """Turn evenly distributed bits into Gumbel noise, which is finite for all of them.

    bits     int64, device
    returns  float32, device, of the same shape

    Stream: the current one. Sync: none. Allocates: the result, and some of it in 64 bits.
    Keeps: nothing. Capture: yes.
    """
    uniform = (_shifted(bits, 64 - _UNIFORM_BITS).to(torch.float64) + 0.5) * 2.0**-_UNIFORM_BITS
    # Small numbers have the finer grid, and make the large noise that decides.
    exponential = -torch.log1p(-uniform.clamp_(max=1 - 2.0**-_UNIFORM_BITS))
    return -torch.log(exponential).to(torch.float32)


def hashed(counters: Tensor) -> Tensor:
    """Scatter counters over all of int64, each to a place of its own.

    counters  int64, device
    returns   int64, device, of the same shape

    Stream: the current one. Sync: none. Allocates: the result, and as much beside it.
    Keeps: nothing. Capture: yes. Exact: the same bits on every device.
    """
    bits = (counters + 1) * _GOLDEN
    bits = (bits ^ _shifted(bits, 30)) * _MIX[0]
    bits = (bits ^ _shifted(bits, 27)) * _MIX[1]
    return bits ^ _shifted(bits, 31)


def _shifted(bits: Tensor, count: int) -> Tensor:
    """Shift right as if the numbers had no sign."""
    return (bits >> count) & ((1 << (64 - count)) - 1)


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
