"""vLLM's configuration of a server whose layers keep states."""

from __future__ import annotations

from types import SimpleNamespace

import torch

from backend_caps.kit.scenarios import MOST_REQUESTS
from backend_caps_vllm.kit.engine_modules import VLLM
from backend_caps_vllm.kit.linear_layers import LinearLayers
from backend_caps_vllm.kit.servers import one_rank, speculative_config

_BLOCK = 512
"""Tokens of a block of states; a request has one state whatever its tokens."""
_CHUNK = 32
"""Tokens of a chunk in Mamba2's prefills: prompts have fewer, as many, and more."""


def state_config(vllm: VLLM, dtype: torch.dtype, layers: LinearLayers) -> SimpleNamespace:
    """Make vLLM's configuration of a server whose layers keep states in float32.

    Prefixes are not cached, so a request has one state, and one more for each draft.

    Args:
        vllm: its modules.
        dtype: of the model.
        layers: the model's.
    """
    num_tokens = MOST_REQUESTS * (1 + layers.num_drafts)
    model = layers.config_of()
    return SimpleNamespace(
        model_config=SimpleNamespace(
            dtype=dtype, hf_config=model, hf_text_config=model, get_mamba_chunk_size=lambda: _CHUNK
        ),
        cache_config=SimpleNamespace(
            mamba_cache_dtype=layers.kept_dtype,
            mamba_ssm_cache_dtype="float32",
            mamba_cache_mode="none",
            mamba_block_size=_BLOCK,
            mamba_page_size_padded=None,
            use_replayssm=False,
            replayssm_buffer_len=None,
        ),
        mamba_config=vllm.config.MambaConfig(),
        compilation_config=vllm.config.CompilationConfig(
            custom_ops=["none"],
            cudagraph_mode=vllm.config.CUDAGraphMode.FULL_AND_PIECEWISE,
            cudagraph_capture_sizes=[num_tokens],
            max_cudagraph_capture_size=num_tokens,
        ),
        additional_config={"gdn_prefill_backend": "triton"},
        kernel_config=vllm.config.KernelConfig(),
        scheduler_config=SimpleNamespace(max_num_seqs=MOST_REQUESTS),
        parallel_config=one_rank(),
        quant_config=None,
        speculative_config=speculative_config(1 + layers.num_drafts),
        num_speculative_tokens=layers.num_drafts,
        use_v2_model_runner=True,
    )
