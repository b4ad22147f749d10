"""sliding-window of TorchFlexAttnBackend in SGLang 0.5.23: prefill."""
from types import SimpleNamespace
import torch
from sglang.srt.layers.attention.torch_flex_backend import TorchFlexAttnBackend
from sglang.srt.layers.radix_attention import RadixAttention
from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool, ReqToTokenPool
from sglang.srt.model_executor.forward_batch_info import ForwardBatch, ForwardMode
from sglang.srt.runtime_context import get_context

OLD = [0]  # cached tokens of each request
NEW = [24]  # and those that the batch brings
HEADS, KV_HEADS, SIZE, PAGE = 4, 2, 16, 1
device = "cuda" if torch.cuda.is_available() else "cpu"
get_context().override_server_args(device=device).install()
torch.manual_seed(0)
lens = [old + new for old, new in zip(OLD, NEW)]
num, longest = len(lens), -(-max(lens) // PAGE) * PAGE
rows = ReqToTokenPool(num, longest, device, False)
pool = MHATokenToKVPool(num * longest, PAGE, torch.float32, KV_HEADS, SIZE, 1, device, False)
rows.req_to_token[:num] = slots = PAGE + torch.arange(num * longest, device=device).view(num, -1)
runner = SimpleNamespace(
    device=device, page_size=PAGE, req_to_token_pool=rows, token_to_kv_pool=pool)
backend = TorchFlexAttnBackend(runner)
layer = RadixAttention(HEADS, SIZE, 0.1875, KV_HEADS, 0, sliding_window_size=5)
q, k, v = torch.randn(3, num, longest, HEADS, SIZE, dtype=torch.float32, device=device)
k, v = k[:, :, :KV_HEADS], v[:, :, :KV_HEADS]
pool.set_kv_buffer(layer, slots.flatten(), k.flatten(0, 1).clone(), v.flatten(0, 1).clone())
loc = torch.cat([own[old:end] for own, old, end in zip(slots, OLD, lens)])
tokens = [own.flatten(0, 1)[loc - PAGE] for own in (q, k, v)]
seq_lens = torch.tensor(lens)
batch = ForwardBatch(
    ForwardMode.EXTEND, num, loc, torch.arange(num, device=device), seq_lens.to(device), loc,
    seq_lens_sum=int(seq_lens.sum()), seq_lens_cpu=seq_lens)
batch.extend_seq_lens_cpu, batch.extend_prefix_lens_cpu = NEW, OLD
batch.extend_seq_lens, batch.extend_prefix_lens = torch.tensor([NEW, OLD]).int().to(device)
batch.extend_start_loc = batch.extend_seq_lens.cumsum(0).int() - batch.extend_seq_lens
backend.init_forward_metadata(batch)
found = backend.forward(*tokens, layer, batch).flatten(1).double()
for row, own in enumerate(found.split(NEW)):  # beside the definition, in float64
    query, keys, values = (each[row, : lens[row]].transpose(0, 1).double() for each in (q, k, v))
    keys, values = (each.repeat_interleave(2, 0) for each in (keys, values))
    scores = query @ keys.mT * layer.scaling
    scores[torch.ones_like(scores).triu(1) + torch.ones_like(scores).tril(-6) > 0] = -torch.inf
    expected = (scores.softmax(2)[:, OLD[row] :] @ values).transpose(0, 1).flatten(1)
    torch.testing.assert_close(own, expected, atol=2e-05, rtol=2e-05)
