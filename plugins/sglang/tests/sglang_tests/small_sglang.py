"""SGLang made small: the names that its adapter asks for, and a backend that is plain torch.

It stands in for an installed SGLang, which the tests of `make upstream` alone have.

Shapes: T tokens in a batch, Hq query heads, Dv the values' size.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from types import ModuleType, SimpleNamespace

import torch
from backend_caps_sglang.kit.engine_modules import SGLang
from torch import Tensor, nn


class ForwardMode(Enum):
    """What kind of step a batch is."""

    EXTEND = "extend"
    DECODE = "decode"
    MIXED = "mixed"
    TARGET_VERIFY = "verify"
    DRAFT_EXTEND_V2 = "draft extend"

    def is_decode(self) -> bool:
        """Return whether each request brings one token."""
        return self is ForwardMode.DECODE


class CaptureHiddenMode(Enum):
    """Which hidden states a model keeps."""

    NULL = "none"


@dataclass
class ForwardBatch:
    """SGLang's batch, as far as a backend reads it."""

    forward_mode: ForwardMode
    batch_size: int
    input_ids: Tensor
    req_pool_indices: Tensor
    seq_lens: Tensor
    out_cache_loc: Tensor
    seq_lens_sum: int | None
    seq_lens_cpu: Tensor | None = None
    positions: Tensor | None = None
    spec_info: SimpleNamespace | None = None
    extend_seq_lens: Tensor | None = None
    extend_prefix_lens: Tensor | None = None
    extend_seq_lens_cpu: list[int] | None = None
    extend_prefix_lens_cpu: list[int] | None = None

    @property
    def logical_forward_mode(self) -> ForwardMode:
        """The mode that its requests have."""
        return self.forward_mode


class StatePool:
    """SGLang's pool of requests whose layers keep states."""

    def __init__(
        self,
        *,
        size: int,
        mamba_size: int,
        mamba_spec_state_size: int,
        device: str,
        cache_params: SimpleNamespace,
        speculative_num_draft_tokens: int,
        **_others: object,
    ) -> None:
        self.req_index_to_mamba_index_mapping = torch.zeros(
            size + 1, dtype=torch.int32, device=device
        )
        shape, layers = cache_params.shape, len(cache_params.layers)
        slots, steps = (layers, mamba_size + 1), speculative_num_draft_tokens
        spare = layers, mamba_spec_state_size + 1, steps
        self.mamba_pool = self
        self.mamba_cache = SimpleNamespace(
            temporal=torch.zeros(*slots, *shape.temporal, device=device),
            conv=[torch.zeros(*slots, *own, device=device) for own in shape.conv],
            intermediate_ssm=torch.zeros(*spare, *shape.temporal, device=device),
            intermediate_conv_window=[
                torch.zeros(*spare, *own, device=device) for own in shape.conv
            ],
        )

    def clear_slots(self, slots: Tensor) -> None:
        """Put zeros into slots."""
        for states in (self.mamba_cache.temporal, *self.mamba_cache.conv):
            states.index_fill_(1, slots, 0)


class WindowPool:
    """SGLang's KV pool of a model whose layers with a window have memory of their own."""

    full_to_swa_index_mapping: Tensor
    layers_mapping: dict[int, tuple[int, bool]]
    full_kv_pool: SimpleNamespace
    swa_kv_pool: SimpleNamespace

    def get_kv_buffer(self, layer_id: int) -> tuple[Tensor, Tensor]:
        """Return keys and values of a layer, as its kind of layer has them."""
        place, has_window = self.layers_mapping[layer_id]
        kind = self.swa_kv_pool if has_window else self.full_kv_pool
        buffers: tuple[Tensor, Tensor] = kind.get_kv_buffer(place)
        alone = kind.get_key_buffer(place), kind.get_value_buffer(place)
        assert [own.data_ptr() for own in alone] == [own.data_ptr() for own in buffers]
        return buffers

    def set_kv_buffer(
        self, layer: RadixAttention, info: SimpleNamespace, k: Tensor, v: Tensor, *_scales: object
    ) -> None:
        """Store new tokens where their kind of layer has them."""
        place, has_window = self.layers_mapping[layer.layer_id]
        kind, loc = (self.full_kv_pool, info.loc)
        if has_window:
            kind, loc = self.swa_kv_pool, self.full_to_swa_index_mapping[info.loc]
        kind.set_kv_buffer(None, loc, k, v, 1.0, 1.0, layer_id_override=place)


class RadixAttention(nn.Module):
    """SGLang's layer, which says what it was made of."""

    def __init__(
        self, *, num_heads: int, sliding_window_size: int, attn_type: str, **sizes: float
    ) -> None:
        super().__init__()
        self.num_heads, self.window = num_heads, sliding_window_size
        self.is_encoder, self.logit_cap = attn_type == "encoder", sizes["logit_cap"]
        self.layer_id, self.scaling = int(sizes["layer_id"]), sizes["scaling"]
        self.k_scale: Tensor | None = None
        self.v_scale: Tensor | None = None


class KVIndexTranslator:
    """SGLang's translator of a plain pool, which translates nothing."""

    def __init__(self, **made_of: object) -> None:
        self.page_size = made_of["page_size"]

    def plan(self, *, write_virtual: Tensor, **_lengths: object) -> SimpleNamespace:
        """Plan to write where the batch says."""

        def bind(batch: ForwardBatch, _reader: KVIndexTranslator) -> None:
            batch.out_cache_loc = write_virtual

        return SimpleNamespace(bind=bind)


class PlainTorch:
    """A backend in SGLang's form: eager, and with metadata in static buffers for graphs.

    Args:
        runner: what stands in for SGLang's model runner.
    """

    window_in_decode = 0
    """Tokens that a decode sees beside those that its layer's window has."""
    left_out: frozenset[str] = frozenset()
    """What it does not do, of `sinks`, `logit_cap`, `kv_scales`, `window_pool` and `encoder`."""

    def __init__(self, runner: SimpleNamespace) -> None:
        self.pool, self.table = runner.token_to_kv_pool, runner.req_to_token_pool.req_to_token
        self.num_rows: int = runner.req_to_token_pool.size
        self.num_draft_tokens: int = runner.decode_num_tokens_per_req()
        self.forward_metadata: tuple[Tensor, Tensor, Tensor]

    def init_forward_metadata(self, batch: ForwardBatch) -> None:
        """Say of each request its row, what is cached of it, and what it brings."""
        self.forward_metadata = self._planned(batch)

    def _planned(self, batch: ForwardBatch) -> tuple[Tensor, Tensor, Tensor]:
        if batch.extend_seq_lens is not None:
            assert batch.extend_prefix_lens is not None, "both, or none"
            return batch.req_pool_indices, batch.extend_prefix_lens, batch.extend_seq_lens
        each = 1 if batch.spec_info is None else batch.spec_info.draft_token_num
        cached = batch.seq_lens - 1 if batch.spec_info is None else batch.seq_lens
        return batch.req_pool_indices, cached, torch.full_like(cached, each)

    def init_cuda_graph_state(self, max_bs: int, max_num_tokens: int) -> None:
        """Make static buffers."""
        assert max_num_tokens == max_bs * self.num_draft_tokens, "it was told how many it verifies"
        self.static = torch.zeros(3, max_bs, dtype=torch.int64, device=self.table.device)

    def get_cuda_graph_seq_len_fill_value(self) -> int:
        """Give a request of padding one token."""
        return 1

    def init_forward_metadata_out_graph(self, batch: ForwardBatch, *, in_capture: bool) -> None:
        """Fill the buffers; a capture takes views of them."""
        size = batch.batch_size
        self.static[:, :size] = torch.stack([own.long() for own in self._planned(batch)])
        if in_capture:
            rows, cached, new = self.static[:, :size].unbind()
            self.forward_metadata = rows, cached, new

    def init_forward_metadata_in_graph(self, _batch: ForwardBatch) -> None:
        """Do nothing: it was all done before."""

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        layer: RadixAttention,
        batch: ForwardBatch,
        *,
        save_kv_cache: bool,
        sinks: Tensor | None = None,
    ) -> Tensor:
        """Attend, to all of each request's table: [T, Hq * Dv]."""
        if save_kv_cache:
            loc = SimpleNamespace(loc=batch.out_cache_loc)
            self.pool.set_kv_buffer(layer, loc, k.clone(), v.clone(), layer.k_scale, layer.v_scale)
        keys, values = self.pool.get_kv_buffer(layer.layer_id)
        if "kv_scales" not in self.left_out and layer.k_scale is not None:
            keys, values = keys.to(q.dtype) * layer.k_scale, values.to(q.dtype) * layer.v_scale
        keys, values = keys.to(q.dtype), values.to(q.dtype)
        if "latent" in self.left_out:
            values = keys[..., -values.shape[-1] :]
        queries = q.view(len(q), layer.num_heads, -1)
        rows, cached, new = self.forward_metadata
        if batch.extend_seq_lens is None:
            number = len(q) // len(rows)
            owners = torch.arange(len(q), device=q.device) // number
            places = cached[owners] + torch.arange(len(q), device=q.device) % number
        else:
            owners = torch.arange(len(rows)).repeat_interleave(new.cpu())
            ends = torch.cat([torch.arange(each) for each in new.tolist()])
            places = cached[owners] + ends.to(cached)
        visible = self._visible(owners, places, cached + new, layer, batch)
        slots = self.table[rows[owners]].long()
        has_memory = isinstance(self.pool, WindowPool) and layer.window > -1
        if has_memory and "window_pool" not in self.left_out:
            slots = self.pool.full_to_swa_index_mapping[slots]
        sinks = None if "sinks" in self.left_out else sinks
        cap = 0.0 if "logit_cap" in self.left_out else layer.logit_cap
        output = attended(queries, keys[slots], values[slots], visible, layer.scaling, cap, sinks)
        spare = len(q) - len(owners)
        return torch.nn.functional.pad(output, (0, 0, 0, 0, 0, spare)).flatten(1)

    def _visible(
        self,
        owners: Tensor,
        places: Tensor,
        lengths: Tensor,
        layer: RadixAttention,
        batch: ForwardBatch,
    ) -> Tensor:
        """Say of each token which places of its context it sees: [T, L] bool."""
        context = torch.arange(self.table.shape[1], device=places.device)
        seen = context <= places[:, None]
        mask = None if batch.spec_info is None else batch.spec_info.custom_mask
        if mask is not None:
            each = len(owners) // len(lengths)
            starts = (each * (lengths.cumsum(0) - lengths))[owners]
            own = torch.arange(len(owners), device=places.device) % each
            index = starts[:, None] + own[:, None] * lengths[owners, None] + context
            seen = mask.bool()[index.clamp(max=len(mask) - 1)] & (context < lengths[owners, None])
        if layer.is_encoder and "encoder" not in self.left_out:
            seen = context < lengths[owners, None]
        if layer.window > -1:
            is_decode = batch.forward_mode is ForwardMode.DECODE
            width = layer.window + (self.window_in_decode if is_decode else 0)
            seen = seen & (context >= places[:, None] - width)
        return seen


def attended(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    visible: Tensor,
    scaling: float,
    logit_cap: float,
    sinks: Tensor | None,
) -> Tensor:
    """Attend from q [T, Hq, D] to keys [T, L, Hk, D] and values [T, L, Hk, Dv]: [T, Hq, Dv]."""
    group = q.shape[1] // keys.shape[2]
    hidden = ~visible[:, :, None, None]
    keys, values = (
        own.masked_fill(hidden, 0).repeat_interleave(group, 2) for own in (keys, values)
    )
    scores = torch.einsum("thd,tchd->thc", q[: len(keys)], keys) * scaling
    if logit_cap:
        scores = logit_cap * torch.tanh(scores / logit_cap)
    scores = scores.masked_fill(~visible[:, None], -torch.inf)
    if sinks is not None:
        column = sinks.to(scores)[None, :, None].expand(len(scores), -1, 1)
        scores = torch.cat([scores, column], dim=2)
    weights = scores.softmax(-1)[:, :, : keys.shape[1]].nan_to_num(0)
    return torch.einsum("thc,tchd->thd", weights, values)


def small_sglang() -> SGLang:
    """Make the modules that a real one has."""
    return SGLang(
        version="0",
        batches=_module(
            ForwardBatch=ForwardBatch, ForwardMode=ForwardMode, CaptureHiddenMode=CaptureHiddenMode
        ),
        layers=_module(
            RadixAttention=RadixAttention,
            AttentionType=SimpleNamespace(DECODER="decoder", ENCODER_ONLY="encoder"),
        ),
        translating=_module(KVIndexTranslator=KVIndexTranslator),
        models=_module(AttentionArch=SimpleNamespace(MHA="mha", MLA="mla")),
        speculating=_module(EagleVerifyInput=SimpleNamespace, EagleDraftInput=SimpleNamespace),
        context=_module(
            get_spec=lambda: _BAG,
            get_exec=lambda: _PARTS,
            get_schedule=lambda: _BAG,
            get_context=lambda: SimpleNamespace(server_args=None),
        ),
        capturing=_module(model_capture_mode=_overridden),
        linear_layers=_module(RadixLinearAttention=SimpleNamespace),
        memory=_module(HybridReqToTokenPool=StatePool),
        windows=_module(SWAKVPool=WindowPool),
        states=_module(
            Mamba2StateShape=SimpleNamespace,
            Mamba2StateDType=SimpleNamespace,
            Mamba2CacheParams=SimpleNamespace,
        ),
    )


def _module(**names: object) -> ModuleType:
    made = ModuleType("small")
    vars(made).update(names)
    return made


@contextmanager
def _overridden(**_leaves: object) -> Iterator[None]:
    yield


_BAG = SimpleNamespace(override=_overridden)
_PARTS = SimpleNamespace(kernel=_BAG, deterministic=_BAG)
