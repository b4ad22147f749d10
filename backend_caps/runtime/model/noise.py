"""Noise that is a function of a request's seed, a position and a token, and of nothing else.

A counter goes through an integer hash (SplitMix64's, by Steele, Lea and Flood, 2014), so there is
no state to keep, and a request that is computed anew, in another batch, meets the same noise.

Shapes: B requests in the batch, V tokens in the vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor

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
