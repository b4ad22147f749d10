"""What everybody has to know of one attention layer of a model."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionLayer:
    """Say what a backend has to know of a model's layer; SGLang's names."""

    layer_id: int
    """Its place in the KV cache."""
    tp_q_head_num: int
    tp_k_head_num: int
    qk_head_dim: int
    v_head_dim: int
    scaling: float
    """The factor on the scores."""
