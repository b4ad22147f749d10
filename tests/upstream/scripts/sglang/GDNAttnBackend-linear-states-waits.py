"""linear-states-waits of GDNAttnBackend in SGLang 0.5.23: prompts of the gated delta rule."""
from contextlib import nullcontext
import torch
from sglang.kernels.ops.attention.fla.chunk import chunk_gated_delta_rule

HEADS, SIZE, LENGTHS = 2, 128, [64, 64, 64]
device = "cuda" if torch.cuda.is_available() else "cpu"
if device == "cpu":
    torch.cpu.device = lambda index: nullcontext()  # which torch.cuda has
torch.manual_seed(0)
q, k, v = torch.randn(3, 1, sum(LENGTHS), HEADS, SIZE, dtype=torch.bfloat16, device=device)
gates = -torch.rand(1, sum(LENGTHS), HEADS, device=device)
betas = torch.rand(1, sum(LENGTHS), HEADS, device=device)
states = torch.zeros(len(LENGTHS), HEADS, SIZE, SIZE, device=device)
ends = torch.tensor([0, *LENGTHS], device=device).cumsum(0)


def read_by_host(tensor):
    raise AssertionError(f"the host waits for {tensor.numel()} numbers of the device")


torch.Tensor.tolist = read_by_host
chunk_gated_delta_rule(
    q, k, v, gates, betas, initial_state=states, cu_seqlens=ends, use_qk_l2norm_in_kernel=True,
    initial_state_indices=torch.arange(len(LENGTHS), device=device, dtype=torch.int32))
