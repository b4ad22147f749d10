"""SGLang's KV pools, over the kit's own memory.

Shapes: A layers in the KV cache, S slots of the kit, T new tokens, Hk key and value heads, D and Dv
their sizes.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from dataclasses import dataclass
from types import SimpleNamespace

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from backend_caps.kit.scenes import Pools
from backend_caps.protocols import Layer
from backend_caps_sglang.kit.engine_modules import SGLang
from backend_caps_sglang.kit.variants import ServedVariant


@dataclass(frozen=True, slots=True)
class LayeredPool:
    """SGLang's KV pool of all layers, over the kit's own memory."""

    pools: Pools
    is_latent: bool = False
    """Whether values are the first features of keys, and only keys are stored."""
    start_layer: int = 0

    @property
    def size(self) -> int:
        """The slots that requests may have: all but the first page, which is the padding's."""
        return len(self.pools.keys) - self.pools.page_size

    def get_key_buffer(self, layer_id: int) -> Tensor:
        """Return keys: [S, Hk, D], device."""
        return self.pools.get_key_buffer(layer_id)

    def get_value_buffer(self, layer_id: int) -> Tensor:
        """Return values: [S, Hk, Dv], device."""
        values = self.pools.get_value_buffer(layer_id)
        if self.is_latent:
            return self.get_key_buffer(layer_id)[..., : values.shape[-1]]
        return values

    def get_kv_buffer(self, layer_id: int) -> tuple[Tensor, Tensor]:
        """Return both."""
        return self.get_key_buffer(layer_id), self.get_value_buffer(layer_id)

    def set_kv_buffer(
        self,
        layer: Layer,
        loc_info: SimpleNamespace | Tensor,
        cache_k: Tensor,
        cache_v: Tensor,
        k_scale: Tensor | None = None,
        v_scale: Tensor | None = None,
    ) -> None:
        """Store new tokens.

        loc_info  [T] int64, device  their slots, or what has them as `loc`
        cache_k   [T, Hk, D], device  divided in place where there is a scale
        cache_v   [T, Hk, Dv], device  likewise
        """
        if k_scale is not None:  # in place, as SGLang's own pool does
            cache_k.div_(k_scale)
        if v_scale is not None:
            cache_v.div_(v_scale)
        loc = loc_info if isinstance(loc_info, Tensor) else loc_info.loc
        self.pools.set_kv_buffer(layer, loc, cache_k, cache_v)


@dataclass(frozen=True, slots=True)
class _Memory:
    """The memory of some layers, as `SWAKVPool` has one for each kind of layer."""

    keys: Tensor
    """[A, slots, Hk, D], device."""
    values: Tensor
    """[A, slots, Hk, Dv], device."""
    start_layer: int = 0

    def get_key_buffer(self, layer_id: int) -> Tensor:
        """Return keys: [slots, Hk, D], device."""
        return self.keys[layer_id]

    def get_value_buffer(self, layer_id: int) -> Tensor:
        """Return values: [slots, Hk, Dv], device."""
        return self.values[layer_id]

    def get_kv_buffer(self, layer_id: int) -> tuple[Tensor, Tensor]:
        """Return both."""
        return self.keys[layer_id], self.values[layer_id]

    def set_kv_buffer(
        self,
        _layer: None,
        loc: Tensor,
        cache_k: Tensor,
        cache_v: Tensor,
        *_scales: float,
        layer_id_override: int,
    ) -> None:
        """Store new tokens of a model without scales: [T], [T, Hk, D] and [T, Hk, Dv]."""
        self.keys[layer_id_override][loc] = cache_k
        self.values[layer_id_override][loc] = cache_v


_PAGES_BEFORE = 3
"""Pages by which a slot's number is higher in layers with a window."""
_WIDER: MutableMapping[Tensor, Tensor] = WeakTensorKeyDictionary()
"""By keys or values of pools, the memory that they are a part of."""


def pool_of(sglang: SGLang, pools: Pools, variant: ServedVariant) -> LayeredPool | SimpleNamespace:
    """Make SGLang's pool of a model whose layers are of a variant."""
    if variant.has_window_pool:
        return _window_pool(sglang, pools, variant)
    return LayeredPool(pools, variant.is_latent)


def _window_pool(sglang: SGLang, pools: Pools, variant: ServedVariant) -> SimpleNamespace:
    """Make `SWAKVPool`, over memory of the kit in place of its own.

    A token is found by other numbers in layers with a window. Here these see all of a tensor, and
    the others, as the kit, what is behind its first pages: so a layer that is given a slot's number
    of the other kind finds another token. The kit's keys and values are replaced by such views.
    """
    num_before = _PAGES_BEFORE * pools.page_size
    for name in ("key_buffers", "value_buffers"):
        own: Tensor = getattr(pools, name)
        if own not in _WIDER:
            wider = torch.cat([torch.zeros_like(own[:, :num_before]), own], dim=1)
            # `object.__setattr__` sets fields of frozen dataclasses.
            object.__setattr__(pools, name, wider[:, num_before:])
            _WIDER[getattr(pools, name)] = wider
    keys, values = pools.key_buffers, pools.value_buffers
    slots = torch.arange(keys.shape[1] + 1, device=keys.device)
    numbers = torch.where(slots < pools.page_size, slots, slots + num_before)
    numbers[-1] = -1  # the last place is that of -1
    with_window = {place: variant.window_of(place) is not None for place in range(len(keys))}
    made: SimpleNamespace = object.__new__(sglang.windows.SWAKVPool)
    vars(made).update(
        size=keys.shape[1] - pools.page_size,
        page_size=pools.page_size,
        dtype=keys.dtype,
        start_layer=0,
        layer_transfer_counter=None,
        full_kv_pool=_Memory(keys, values),
        swa_kv_pool=_Memory(_WIDER[keys], _WIDER[values]),
        layers_mapping={place: (place, own) for place, own in with_window.items()},
        swa_layer_nums=sum(with_window.values()),
        full_layer_nums=len(keys) - sum(with_window.values()),
        full_to_swa_index_mapping=numbers,
    )
    return made
