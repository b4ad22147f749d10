"""linear-states-short-prompts of LinearAttentionBackend in vLLM 0.33.0."""
from types import SimpleNamespace
import torch
from vllm.v1.attention.backend import CommonAttentionMetadata
from vllm.v1.attention.backends.linear_attn import LinearAttentionBackend as Backend

new = torch.ones(1, dtype=torch.int32)
starts = torch.tensor([0, 1], dtype=torch.int32)
config = SimpleNamespace(
    num_speculative_tokens=0, speculative_config=None,
    parallel_config=SimpleNamespace(decode_context_parallel_size=1),
    cache_config=SimpleNamespace(mamba_cache_mode="none"),
    compilation_config=SimpleNamespace(cudagraph_mode=None, max_cudagraph_capture_size=None),
    scheduler_config=SimpleNamespace(max_num_seqs=1))
builder = Backend.get_builder_cls()(None, ["layer"], config, torch.device("cpu"))
metadata = builder.build(0, CommonAttentionMetadata(
    query_start_loc=starts, query_start_loc_cpu=starts, seq_lens=new, num_reqs=1,
    num_actual_tokens=1, max_query_len=1, max_seq_len=1, block_table_tensor=new[:, None],
    slot_mapping=new.long(), seq_lens_cpu_upper_bound=new, is_prefilling=new.bool()))
# A layer clears the states of new prefills alone; vLLM clears no blocks of states by itself.
assert metadata.num_prefills == 1, "a decode, which begins with the state of the block's last owner"
