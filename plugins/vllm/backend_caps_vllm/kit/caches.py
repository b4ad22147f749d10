"""KV caches in vLLM's layout, over pools of the kit.

vLLM stores a token's keys and values of one head beside each other, in blocks of tokens. So the
kit's two tensors become views of one tensor with that memory, and what either side writes is there
for the other.

Shapes: S slots in the KV cache, N tokens in a block, S / N blocks, Hk key and value heads, D and Dv
their sizes.
"""

from __future__ import annotations

from collections.abc import MutableMapping

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from backend_caps.kit.scenes import Pools

_JOINED: MutableMapping[Tensor, Tensor] = WeakTensorKeyDictionary()
"""By a pool's keys, the memory that they share with its values."""


def joined_cache(pools: Pools) -> Tensor:
    """Return the KV cache of a pool, with its keys and values as views of one memory.

    Pools whose keys and values are apart are changed: both tensors are replaced by views, which
    have the same contents.

    returns  [S / N, Hk, N, D + Dv], device: vLLM's logical order; a token's heads lie together
    """
    joined = _JOINED.get(pools.keys)
    if joined is None:
        joined = torch.cat([pools.keys, pools.values], dim=-1)
        size = pools.keys.shape[-1]
        # `object.__setattr__` sets fields of frozen dataclasses.
        object.__setattr__(pools, "keys", joined[..., :size])
        object.__setattr__(pools, "values", joined[..., size:])
        _JOINED[pools.keys] = joined
    return joined.view(-1, pools.page_size, *joined.shape[1:]).transpose(1, 2)
