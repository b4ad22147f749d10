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


class RadixAttention(nn.Module):
    """SGLang's layer, which says what it was made of."""

    def __init__(self, *, num_heads: int, sliding_window_size: int, **sizes: float) -> None:
        super().__init__()
        self.num_heads, self.window = num_heads, sliding_window_size
        self.layer_id, self.scaling = int(sizes["layer_id"]), sizes["scaling"]


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
        self.static = torch.zeros(3, max_bs, dtype=torch.int64)

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
    ) -> Tensor:
        """Attend, request by request: [T, Hq * Dv]."""
        if save_kv_cache:
            loc = SimpleNamespace(loc=batch.out_cache_loc)
            self.pool.set_kv_buffer(layer, loc, k, v)
        keys, values = self.pool.get_kv_buffer(layer.layer_id)
        queries = q.view(len(q), layer.num_heads, -1)
        outputs = list(self._attended(queries, keys, values, layer, batch))
        missing = len(q) - sum(len(own) for own in outputs)
        spare = q.new_zeros(missing, layer.num_heads, values.shape[-1])
        return torch.cat([*outputs, spare]).flatten(1)

    def _attended(
        self, q: Tensor, keys: Tensor, values: Tensor, layer: RadixAttention, batch: ForwardBatch
    ) -> Iterator[Tensor]:
        start, mask_start, group = 0, 0, q.shape[1] // keys.shape[1]
        mask = None if batch.spec_info is None else batch.spec_info.custom_mask
        for row, cached, new in zip(*(own.tolist() for own in self.forward_metadata), strict=True):
            length = cached + new
            slots = self.table[row, :length].long()
            own_keys, own_values = (
                own[slots].repeat_interleave(group, dim=1) for own in (keys, values)
            )
            seen = torch.ones(new, length, dtype=torch.bool).tril(cached)
            if mask is not None:
                seen = mask[mask_start : mask_start + new * length].bool().view(new, length)
                mask_start += new * length
            if layer.window > -1:
                is_decode = batch.forward_mode is ForwardMode.DECODE
                width = layer.window + (self.window_in_decode if is_decode else 0)
                seen = seen & seen.new_ones(new, length).triu(cached - width)
            scores = torch.einsum("nhd,chd->hnc", q[start : start + new], own_keys)
            weights = (scores * layer.scaling).masked_fill(~seen, -torch.inf).softmax(-1)
            yield torch.einsum("hnc,chd->nhd", weights.to(own_values.dtype), own_values)
            start += new


def small_sglang() -> SGLang:
    """Make the modules that a real one has."""
    return SGLang(
        version="0",
        batches=_module(
            ForwardBatch=ForwardBatch, ForwardMode=ForwardMode, CaptureHiddenMode=CaptureHiddenMode
        ),
        layers=_module(RadixAttention=RadixAttention),
        translating=_module(KVIndexTranslator=KVIndexTranslator),
        models=_module(AttentionArch=SimpleNamespace(MHA="mha")),
        speculating=_module(EagleVerifyInput=SimpleNamespace),
        context=_module(get_spec=lambda: SimpleNamespace(override=_overridden)),
        capturing=_module(model_capture_mode=_overridden),
    )


def _module(**names: object) -> ModuleType:
    made = ModuleType("small")
    vars(made).update(names)
    return made


@contextmanager
def _overridden(**_leaves: object) -> Iterator[None]:
    yield
