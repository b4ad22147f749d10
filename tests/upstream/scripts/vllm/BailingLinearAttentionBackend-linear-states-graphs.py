"""linear-states-graphs of BailingLinearAttentionBackend in vLLM 0.33.0."""
from inspect import signature
from types import SimpleNamespace
import torch
from vllm.v1.attention.backends.linear_attn import BailingLinearAttentionBackend as Backend
from vllm.v1.worker.gpu.model_states.mamba_hybrid import MambaHybridAttnMetadata

config = SimpleNamespace(
    num_speculative_tokens=2, parallel_config=SimpleNamespace(decode_context_parallel_size=1),
    speculative_config=SimpleNamespace(num_speculative_tokens=2, parallel_drafting=False),
    cache_config=SimpleNamespace(mamba_cache_mode="none"),
    compilation_config=SimpleNamespace(cudagraph_mode=None, max_cudagraph_capture_size=None),
    scheduler_config=SimpleNamespace(max_num_seqs=2))
builder = Backend.get_builder_cls()(None, ["layer"], config, torch.device("cpu"))
assert "num_accepted_tokens" in signature(builder.build).parameters  # it counts on them
batch = MambaHybridAttnMetadata(
    is_prefilling=torch.zeros(2, dtype=torch.bool),
    num_accepted_tokens=torch.tensor([2, 1], dtype=torch.int32),
    num_decode_draft_tokens_cpu=torch.tensor([2, 2], dtype=torch.int32))
extra = batch.get_extra_attn_kwargs(builder, 2)
assert "num_accepted_tokens" in extra, "the builder gets no number of accepted drafts"
