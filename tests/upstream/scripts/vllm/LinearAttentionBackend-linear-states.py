"""linear-states of LinearAttentionBackend in vLLM 0.33.0."""
import torch
from vllm.model_executor.layers.lightning_attn import lightning_attention

HEADS, SIZE, LENGTH = 2, 128, 260  # a block of the kernel has 256
device = "cuda" if torch.cuda.is_available() else "cpu"
torch.cuda.get_device_capability = lambda *_: (9, 0)  # asked before the kernels are launched
torch.manual_seed(0)
slopes = 2.0 ** -(torch.arange(1, HEADS + 1, device=device) * 8 / HEADS)  # as of ALiBi
q, k, v = torch.randn(3, 1, HEADS, LENGTH, SIZE, device=device) / SIZE**0.25
found, _ = lightning_attention(q, k, v, slopes)

state = torch.zeros(HEADS, SIZE, SIZE, dtype=torch.float64, device=device)
expected = []
for place in range(LENGTH):  # each token decays the state, adds to it, and reads it
    query, key, value = (own[0, :, place].double() for own in (q, k, v))
    state = state * torch.exp(-slopes.double())[:, None, None] + key[:, :, None] * value[:, None]
    expected.append(torch.einsum("hd,hde->he", query, state))
own, expected = found[0].double(), torch.stack(expected, 1)
torch.testing.assert_close(own[:, :256], expected[:, :256], atol=1e-3, rtol=1e-3)
torch.testing.assert_close(own[:, 256:], expected[:, 256:], atol=1e-3, rtol=1e-3)
