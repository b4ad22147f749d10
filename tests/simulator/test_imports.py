"""What the simulated device does not load: each import takes as long as a hundred cases."""

from __future__ import annotations

import subprocess
import sys

RUN = """\
import sys
import torch
from torch.nn.functional import scaled_dot_product_attention
from backend_caps.simulator import simulate

with torch.no_grad(), simulate("eager"):
    query = torch.ones(1, 2, 5, 16).to("sim")
    mask = torch.ones(5, 5, dtype=torch.bool, device="sim").tril()
    rows = torch.tensor([0, 1], device="sim")
    out = scaled_dot_product_attention(query, query, query, attn_mask=mask)
    print((out[0, rows] + 1).nan_to_num().sum().item())
print(sorted({"torch._dynamo", "torch.distributed.tensor"}.intersection(sys.modules)))
"""


def test_run_loads_neither_dynamo_nor_dtensor() -> None:
    """Copies to the device, factories, operators and attention take neither."""
    finished = subprocess.run(
        [sys.executable, "-c", RUN], capture_output=True, text=True, check=True
    )

    assert finished.stdout.splitlines()[-1] == "[]"
