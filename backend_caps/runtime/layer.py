"""What everybody has to know of one attention layer of a model."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionLayer:
    """Say what a backend has to know of a model's layer; SGLang's names."""

    layer_id: int
    """Its place in the KV cache."""
    tp_q_head_num: int
    """Hq: query heads, on this rank."""
    tp_k_head_num: int
    """Hk: key and value heads, on this rank; it divides Hq."""
    qk_head_dim: int
    """D: features of a query and of a key."""
    v_head_dim: int
    """Dv: features of a value."""
    scaling: float
    """The factor on the scores."""
