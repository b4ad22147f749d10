"""A stand-in for the prefill kernels of latent attention, which vLLM has for CUDA alone.

vLLM gives them the keys and values of all heads, request behind request: those of new tokens, and
those of a chunk of their contexts.

Shapes: T query tokens and C context tokens of some requests, B requests, Hq query heads, D and Dv
the sizes of keys and values.
"""

from __future__ import annotations

from types import ModuleType, SimpleNamespace

import torch
from torch import Tensor

from backend_caps.runtime.model.layers import AttentionLayer

STAND_IN = "the prefill kernels of latent attention, by their definition"
"""What is stood in for."""


def prefill_backend(
    base: ModuleType, layer: AttentionLayer, sizes: dict[str, int | None], config: SimpleNamespace
) -> SimpleNamespace:
    """Make a prefill backend of vLLM that attends by torch's operators.

    Args:
        base: vLLM's module of the base class.
        layer: the kit's.
        sizes: those of the latents.
        config: the server's.
    """
    methods = {
        "get_name": staticmethod(lambda: "RAGGED_TORCH"),
        "run_prefill_new_tokens": _new_tokens,
        "run_prefill_context_chunk": _context_chunk,
    }
    made: SimpleNamespace = type("RaggedPrefill", (base.MLAPrefillBackend,), methods)(
        num_heads=layer.tp_q_head_num,
        scale=layer.scaling,
        vllm_config=config,
        **{name: size for name, size in sizes.items() if name != "q_lora_rank"},
    )
    return made


def _new_tokens(
    self: SimpleNamespace,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    return_softmax_lse: bool,
    out: Tensor | None = None,
    output_scale: Tensor | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """Attend from new tokens to those of them that are not behind."""
    assert out is None, "it takes no tensor for its output"
    assert output_scale is None, "nothing here is quantized"
    starts = self._prefill_metadata.query_start_loc  # set by vLLM's base class
    output, sums = ragged_attention(q, k, v, starts, starts, self.scale, is_causal=True)
    return (output, sums) if return_softmax_lse else output


def _context_chunk(
    self: SimpleNamespace,
    chunk: SimpleNamespace,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Attend from new tokens to a chunk of their contexts."""
    assert out is None, "it takes no tensor for its output"
    return ragged_attention(
        q, k, v, chunk.query_start_loc, chunk.cu_seq_lens, self.scale, is_causal=False
    )


def ragged_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    query_starts: Tensor,
    key_starts: Tensor,
    scale: float,
    *,
    is_causal: bool,
) -> tuple[Tensor, Tensor]:
    """Attend within each request, in float64, so that no bit depends on the batch. Sync: none.

    q             [T, Hq, D]
    k, v          [C, Hq, D] and [C, Hq, Dv]
    query_starts  [B + 1]
    key_starts    [B + 1]
    returns       [T, Hq, Dv], and the logarithms of the sums of weights, [Hq, T] float32
    """
    queries, keys = (torch.arange(len(own), device=q.device) for own in (q, k))
    of_query = torch.searchsorted(query_starts.long(), queries, right=True)
    of_key = torch.searchsorted(key_starts.long(), keys, right=True)
    visible = of_query[:, None] == of_key
    if is_causal:
        visible = visible & (queries[:, None] >= keys)
    scores = torch.einsum("thd,chd->htc", q.double(), k.double()) * scale
    scores = scores.masked_fill(~visible, -torch.inf)
    output = torch.einsum("htc,chd->thd", scores.softmax(-1), v.double())
    return output.to(v.dtype).contiguous(), scores.logsumexp(-1).float()
