"""From requests to tokens: whose each token of a batch is, and where it stands.

Shapes: B requests in the batch, T tokens in all.
"""

from __future__ import annotations

import torch
from torch import Tensor


def token_positions(
    prefix_lens: Tensor, extend_lens: Tensor, num_tokens: int
) -> tuple[Tensor, Tensor]:
    """Lay a batch's tokens out, request after request.

    prefix_lens  [B] int64 or int32, device  tokens before this step's
    extend_lens  [B] int64 or int32, device  this step's tokens, `num_tokens` in all
    returns      [T] int64, device           the place in the batch of each token's request
                 [T] int64, device           each token's position in its context

    Stream: the current one. Sync: none; T is known on the host. Allocates: both results.
    """
    device = prefix_lens.device
    places = torch.arange(prefix_lens.shape[0], device=device)
    owners = torch.repeat_interleave(places, extend_lens, output_size=num_tokens)
    starts = extend_lens.cumsum(0) - extend_lens
    offsets = (prefix_lens - starts)[owners]
    return owners, torch.arange(num_tokens, device=device) + offsets
