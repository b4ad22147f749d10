"""mixed-windows of TritonAttnBackend in SGLang 0.5.23: decode."""
from types import SimpleNamespace
import torch
from sglang.srt.layers.attention.triton_backend import TritonAttnBackend
from sglang.srt.layers.radix_attention import RadixAttention
from sglang.srt.mem_cache.kv_index_translator import KVIndexTranslator
from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool, ReqToTokenPool
from sglang.srt.model_executor.forward_batch_info import ForwardBatch, ForwardMode
from sglang.srt.runtime_context import get_context, get_parallel

OLD = [23, 1, 0, 6, 1, 16, 1, 0, 1, 13, 23, 0, 1, 2, 2, 8, 23]  # cached tokens of each request
NEW = [1] * 17  # and those that the batch brings
HEADS, KV_HEADS, SIZE, PAGE = 1, 1, 16, 1
device = "cuda" if torch.cuda.is_available() else "cpu"
get_context().override_server_args(device=device).install()
get_parallel().override_permanently(attn_dcp_rank=0)
torch.manual_seed(0)
lens = [old + new for old, new in zip(OLD, NEW)]
num, longest = len(lens), -(-max(lens) // PAGE) * PAGE
rows = ReqToTokenPool(num, longest, device, False)
pool = MHATokenToKVPool(num * longest, PAGE, torch.float32, KV_HEADS, SIZE, 1, device, False)
rows.req_to_token[:num] = slots = PAGE + torch.arange(num * longest, device=device).view(num, -1)
common = dict(token_to_kv_pool_allocator=None, token_to_kv_pool=pool, page_size=PAGE, device=device)
model = SimpleNamespace(
    hf_config=SimpleNamespace(architectures=None, get_text_config=lambda: None), kv_lora_rank=0,
    linear_attn_registry_result=None, attention_arch=None, context_len=longest, head_dim=SIZE,
    v_head_dim=SIZE, swa_v_head_dim=SIZE, qk_nope_head_dim=SIZE, is_encoder_decoder=False,
    get_max_num_attention_heads=lambda: HEADS, get_num_kv_heads=lambda *_: KV_HEADS)
runner = SimpleNamespace(
    **common, kv_index_translator=KVIndexTranslator(req_to_token=rows.req_to_token, **common),
    req_to_token_pool=rows, kv_cache_dtype=pool.dtype, sliding_window_size=5, gpu_id=0,
    is_draft_worker=False, model_config=model, server_args=get_context().server_args,
    decode_num_tokens_per_req=lambda: 1)
backend = TritonAttnBackend(runner)
layer = RadixAttention(HEADS, SIZE, 0.1875, KV_HEADS, 0, sliding_window_size=5)
q, k, v = torch.randn(3, num, longest, HEADS, SIZE, dtype=torch.float32, device=device)
pool.set_kv_buffer(layer, slots.flatten(), k.flatten(0, 1).clone(), v.flatten(0, 1).clone())
loc = torch.cat([own[old:end] for own, old, end in zip(slots, OLD, lens)])
tokens = [own.flatten(0, 1)[loc - PAGE] for own in (q, k, v)]
seq_lens = torch.tensor(lens)
batch = ForwardBatch(
    ForwardMode.DECODE, num, loc, torch.arange(num, device=device), seq_lens.to(device), loc,
    seq_lens_sum=int(seq_lens.sum()), seq_lens_cpu=seq_lens)
backend.init_forward_metadata(batch)
found = backend.forward(*tokens, layer, batch).flatten(1).double()
for row, own in enumerate(found.split(NEW)):  # beside the definition, in float64
    query, keys, values = (each[row, : lens[row]].transpose(0, 1).double() for each in (q, k, v))
    scores = query @ keys.mT * layer.scaling
    scores[torch.ones_like(scores).triu(1) + torch.ones_like(scores).tril(-6) > 0] = -torch.inf
    expected = (scores.softmax(2)[:, OLD[row] :] @ values).transpose(0, 1).flatten(1)
    torch.testing.assert_close(own, expected, atol=2e-05, rtol=2e-05)
