# mypy: disable-error-code="import-untyped, no-untyped-def, untyped-decorator, no-untyped-call"
# ruff: noqa: ANN001, ANN201, N803 - a kernel's arguments
"""Kernels on tensors of the host, run where they are launched."""

import pytest
import torch
import triton
import triton.language as tl

from backend_caps.simulator import simulate
from backend_caps.simulator.kernels.errors import KernelFaultError
from backend_caps.simulator.kernels.host import HostKernel


@triton.jit
def double(out, x, count, BLOCK: tl.constexpr):
    """Double some numbers."""
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = places < count
    tl.store(out + places, 2 * tl.load(x + places, mask=mask), mask=mask)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
def test_kernel_runs_at_once_on_tensors_of_the_host(dtype: torch.dtype) -> None:
    """The result is there when the launch returns, also through views of a tensor."""
    x = torch.arange(-50, 50).to(dtype)
    out = torch.zeros(200, dtype=dtype)

    HostKernel(double)[(2,)](out[100:], x, 100, BLOCK=64)

    assert torch.equal(out[100:], 2 * x)
    assert not out[:100].any()


def test_element_behind_a_tensor_of_the_host_is_a_fault() -> None:
    """An access out of a tensor's memory names the kernel's line and the argument."""
    with pytest.raises(KernelFaultError, match=r"test_host\.py:\d+: reads element 8 of 'x'"):
        HostKernel(double)[(1,)](torch.zeros(16), torch.zeros(8), 16, BLOCK=16)


def test_kernel_of_both_is_launched_on_each() -> None:
    """A kernel that ran on the host is queued where its tensors are the device's."""
    x = torch.ones(8)
    HostKernel(double)[(1,)](x, x, 8, BLOCK=8)

    with simulate("lazy"):
        there = x.to("sim")
        double[(1,)](there, there, 8, BLOCK=8)
        found = there.cpu()

    assert x.tolist() == [2.0] * 8
    assert found.tolist() == [4.0] * 8
