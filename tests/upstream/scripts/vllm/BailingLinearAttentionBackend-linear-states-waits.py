"""linear-states-waits of BailingLinearAttentionBackend in vLLM 0.33.0."""
from types import SimpleNamespace
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from vllm.model_executor.layers.mamba.linear import bailing_linear_attn as layer


class NoWaits(TorchDispatchMode):
    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        assert "_local_scalar_dense" not in str(operator), "the host waits for a number"
        return operator(*args, **kwargs or {})


device = "cuda" if torch.cuda.is_available() else "cpu"
states = torch.zeros(3, 2, 128, 128, device=device)
starts, lens, blocks = (
    torch.tensor(own, dtype=torch.int32, device=device) for own in ([0, 64, 67], [64, 10], [1, 2]))
metadata = SimpleNamespace(
    num_prefills=2, num_decodes=0, num_decode_tokens=0, query_start_loc=starts, seq_lens=lens,
    state_indices_tensor_p=blocks)
with NoWaits():  # each layer does so for each prompt of a batch
    layer.clear_linear_attention_cache_for_new_sequences(states, blocks, metadata)
