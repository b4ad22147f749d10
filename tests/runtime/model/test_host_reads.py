"""What runs on the meta device reads no number: a meta tensor has none to read."""

from __future__ import annotations

import torch
from torch import Tensor

from backend_caps.runtime.model.config import LlamaConfig
from backend_caps.runtime.model.layers import AttentionLayer
from backend_caps.runtime.model.llama import LlamaModel
from backend_caps.runtime.model.sampling import SamplingBatch, sample_tokens

META = torch.device("meta")
CONFIG = LlamaConfig(
    vocab_size=64,
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=8,
)


class Echo:
    """A context whose attention is the queries."""

    def attend(self, layer: AttentionLayer, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Give the queries back, keys and values having the layer's shape."""
        assert q.shape[1] == layer.tp_q_head_num * layer.qk_head_dim
        assert k.shape[1] == layer.tp_k_head_num * layer.qk_head_dim
        assert v.shape[1] == layer.tp_k_head_num * layer.v_head_dim
        return q


def test_forward_reads_no_number_on_the_host() -> None:
    """A forward neither reads the device's numbers nor makes shapes of them."""
    model = LlamaModel(CONFIG, META, torch.bfloat16)
    ids = torch.zeros(7, dtype=torch.int64, device=META)
    lasts = torch.zeros(3, dtype=torch.int64, device=META)

    logits = model(ids, ids, Echo(), lasts)

    assert logits.shape == (3, 64)
    assert logits.device == META


def test_sampling_reads_no_number_on_the_host() -> None:
    """Sampling neither reads the device's numbers nor makes shapes of them."""
    numbers = torch.zeros(3, dtype=torch.int64, device=META)
    shares = torch.zeros(3, device=META)
    sampling = SamplingBatch(
        temperature=shares, seeds=numbers, positions=numbers, top_k=numbers, top_p=shares
    )

    tokens = sample_tokens(torch.zeros(3, 64, device=META), sampling)

    assert tokens.shape == (3,)
    assert tokens.dtype is torch.int64
