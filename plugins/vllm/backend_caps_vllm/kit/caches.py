"""KV caches in vLLM's layout, over pools of the kit.

vLLM stores a token's keys and values of one head beside each other, in blocks of tokens. So the
kit's two tensors become views of one tensor with that memory, and what either side writes is there
for the other.

Shapes: A layers in the KV cache, S slots in each, N tokens in a block, S / N blocks, Hk key and
value heads, D and Dv their sizes.
"""

from __future__ import annotations

from collections.abc import MutableMapping

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from backend_caps.kit.scenes import Pools

_JOINED: MutableMapping[Tensor, Tensor] = WeakTensorKeyDictionary()
"""By the keys of pools, the memory that they share with the values."""


def joined_cache(pools: Pools) -> Tensor:
    """Return the KV cache of pools, with its keys and values as views of one memory.

    Pools whose keys and values are apart are changed: both tensors are replaced by views, which
    have the same contents.

    returns  [A, S / N, Hk, N, D + Dv], device: vLLM's logical order; a token's heads lie together
    """
    joined = _JOINED.get(pools.key_buffers)
    if joined is None:
        joined = torch.cat([pools.key_buffers, pools.value_buffers], dim=-1)
        size = pools.key_buffers.shape[-1]
        # `object.__setattr__` sets fields of frozen dataclasses.
        object.__setattr__(pools, "key_buffers", joined[..., :size])
        object.__setattr__(pools, "value_buffers", joined[..., size:])
        _JOINED[pools.key_buffers] = joined
    num_layers, _, *of_token = joined.shape
    return joined.view(num_layers, -1, pools.page_size, *of_token).transpose(2, 3)
