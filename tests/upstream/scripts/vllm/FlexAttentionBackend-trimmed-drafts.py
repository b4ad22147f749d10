"""trimmed-drafts of FlexAttentionBackend in vLLM 0.33.0: verify."""
from types import SimpleNamespace
import torch
from vllm.config import AttentionConfig, CUDAGraphMode
from vllm.v1.attention.backend import CommonAttentionMetadata
from vllm.v1.attention.backends.flex_attention import FlexAttentionBackend as Backend
from vllm.v1.kv_cache_interface import FullAttentionSpec

OLD = [32, 23, 11, 11]  # cached tokens of each request
NEW = [1, 3, 3, 2]  # and those that the batch brings
ON_HOST = [2, 2, 2, 3]  # how the host spreads the batch's tokens, where drafts are trimmed
HEADS, KV_HEADS, SIZE, PAGE = 4, 2, 16, 16
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)
lens = torch.tensor([old + new for old, new in zip(OLD, NEW)], dtype=torch.int32)
num, width = len(lens), -(-int(max(lens)) // 128) * 128 // PAGE  # rows of the table are whole 128s
longest = width * PAGE
config = SimpleNamespace(
    model_config=SimpleNamespace(
        max_model_len=longest, rswa_window=None, get_head_size=lambda: SIZE,
        get_num_attention_heads=lambda _: HEADS, get_num_kv_heads=lambda _: KV_HEADS),
    scheduler_config=SimpleNamespace(max_num_seqs=num, max_num_batched_tokens=8192),
    compilation_config=SimpleNamespace(
        cudagraph_mode=CUDAGraphMode.NONE, static_forward_context={}),
    cache_config=SimpleNamespace(num_gpu_blocks=1 + num * width),
    attention_config=AttentionConfig(), parallel_config=None)
spec = FullAttentionSpec(
    block_size=PAGE, num_kv_heads=KV_HEADS, head_size=SIZE, dtype=torch.float32)
scales = torch.tensor([1.0, 1.0, 1.0], device=device)
layer = SimpleNamespace(_q_scale=scales[0], _k_scale=scales[1], _v_scale=scales[2])
builder = Backend.get_builder_cls()(spec, ["layer"], config, device)
backend = Backend.get_impl_cls()(
    num_heads=HEADS, head_size=SIZE, scale=0.1875, num_kv_heads=KV_HEADS, alibi_slopes=None,
    sliding_window=None, kv_cache_dtype="auto")
q = torch.randn(num, longest, HEADS, SIZE, dtype=torch.float32, device=device)
k, v = torch.randn(2, num, longest, KV_HEADS, SIZE, dtype=q.dtype, device=device)
slots = PAGE + torch.arange(num * longest, device=device).view(num, longest)
loc = torch.cat([own[old : old + new] for own, old, new in zip(slots, OLD, NEW)])
cache = torch.cat([k, v], 3).view(num * width, PAGE, KV_HEADS, -1)
cache = torch.cat([cache[:1], cache]).transpose(1, 2)  # the first block is of no request
starts = torch.tensor([0, *NEW], dtype=torch.int32).cumsum(0, dtype=torch.int32)
starts_on_host = torch.tensor([0, *ON_HOST], dtype=torch.int32).cumsum(0, dtype=torch.int32)
metadata = builder.build(0, CommonAttentionMetadata(
    query_start_loc=starts.to(device), query_start_loc_cpu=starts_on_host,
    seq_lens=lens.to(device), num_reqs=num, num_actual_tokens=len(loc), slot_mapping=loc,
    max_query_len=max(ON_HOST), max_seq_len=int(max(lens)), positions=(loc - PAGE) % longest,
    block_table_tensor=(slots[:, ::PAGE] // PAGE).int(),
    is_prefilling=torch.zeros(num, dtype=torch.bool), seq_lens_cpu_upper_bound=lens))
query, key, value = (own.flatten(0, 1)[loc - PAGE] for own in (q, k, v))
backend.do_kv_cache_update(layer, key, value, cache, loc)
found = torch.empty_like(query)
backend.forward(layer, query, key, value, cache, metadata, output=found)
for row, own in enumerate(found.flatten(1).double().split(NEW)):  # beside float64
    query, keys, values = (each[row, : lens[row]].transpose(0, 1).double() for each in (q, k, v))
    keys, values = (each.repeat_interleave(2, 0) for each in (keys, values))
    scores = query @ keys.mT * 0.1875
    scores += torch.full_like(scores, -torch.inf).triu(1)
    expected = (scores.softmax(2)[:, OLD[row] :] @ values).transpose(0, 1).flatten(1)
    torch.testing.assert_close(own, expected, atol=2e-05, rtol=2e-05)
