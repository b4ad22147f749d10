# mypy: disable-error-code="import-untyped, no-untyped-def, untyped-decorator, no-untyped-call"
# ruff: noqa: ANN001, ANN201, N803 - a kernel's arguments
import pytest
import torch
import triton
import triton.language as tl
from torch import Tensor

from backend_caps.simulator import SimulatorError, simulate


@triton.jit
def product(
    left,
    right,
    out,
    M: tl.constexpr,
    N: tl.constexpr,
    K: tl.constexpr,
    OUT: tl.constexpr,
    STEP: tl.constexpr,
):
    """Multiply matrices [M, K] and [K, N], `STEP` columns at a time."""
    rows, columns, inner = tl.arange(0, M), tl.arange(0, N), tl.arange(0, STEP)
    total = tl.zeros((M, N), OUT)
    for start in range(0, K, STEP):
        a = tl.load(left + rows[:, None] * K + start + inner[None, :])
        b = tl.load(right + (start + inner)[:, None] * N + columns[None, :])
        total = tl.dot(a, b, total, out_dtype=OUT)
    tl.store(out + rows[:, None] * N + columns[None, :], total)


@triton.jit
def products(left, right, out, B: tl.constexpr, N: tl.constexpr):
    """Multiply B pairs of matrices [N, N]."""
    batch, row, column = tl.arange(0, B), tl.arange(0, N), tl.arange(0, N)
    at = batch[:, None, None] * N * N + row[None, :, None] * N + column[None, None, :]
    tl.store(out + at, tl.dot(tl.load(left + at), tl.load(right + at)))


@triton.jit
def scaled_product(left, right, out, scale, N: tl.constexpr):
    """Multiply matrices of float8 with a scale for each row's 32 elements."""
    row, column = tl.arange(0, N), tl.arange(0, N)
    at = row[:, None] * N + column[None, :]
    scales = tl.load(scale + row[:, None] * (N // 32) + tl.arange(0, N // 32)[None, :])
    found = tl.dot_scaled(tl.load(left + at), scales, "e4m3", tl.load(right + at), scales, "e4m3")
    tl.store(out + at, found)


def _product(left: Tensor, right: Tensor, out: torch.dtype, accumulator: object) -> Tensor:
    (m, k), n = left.shape, right.shape[1]
    with simulate("lazy"):
        found = torch.empty(m, n, dtype=out, device="sim")
        product[(1,)](left.to("sim"), right.to("sim"), found, m, n, k, accumulator, min(k, 32))
        return found.cpu()


@pytest.mark.parametrize(
    "dtype",
    [torch.float16, torch.bfloat16, torch.float32, torch.float8_e4m3fn, torch.float8_e5m2],
    ids=str,
)
def test_product_is_summed_in_float32(dtype: torch.dtype) -> None:
    """Products are exact, and their sum is one of float32, whatever is multiplied."""
    left, right = torch.randn(16, 64).to(dtype), torch.randn(64, 32).to(dtype)

    found = _product(left, right, torch.float32, tl.float32)

    expected = left.double() @ right.double()
    torch.testing.assert_close(found, expected.float(), rtol=1e-5, atol=1e-5)


def test_product_may_be_summed_in_float16() -> None:
    """With `out_dtype`, the sum is rounded to it at each step."""
    ones = torch.ones(16, 16, dtype=torch.float16)

    found = _product(128 * ones, ones, torch.float32, tl.float16)
    rounded = _product(ones.repeat(1, 2) * 128.125, ones.repeat(2, 1), torch.float32, tl.float16)

    assert found.unique().tolist() == [2048.0]
    assert rounded.unique().tolist() == [torch.tensor(4100.0).half().item()]


def test_product_of_float64() -> None:
    """Matrices of float64 are multiplied in it."""
    left, right = torch.randn(16, 16).double(), torch.randn(16, 16).double()

    found = _product(left, right, torch.float64, tl.float64)

    torch.testing.assert_close(found, left @ right, rtol=1e-12, atol=1e-12)


def test_product_of_int8_is_exact() -> None:
    """Small integers are summed in int32."""
    left = torch.randint(-128, 128, (16, 64), dtype=torch.int8)
    right = torch.randint(-128, 128, (64, 16), dtype=torch.int8)

    found = _product(left, right, torch.int32, tl.int32)

    assert found.equal((left.long() @ right.long()).int())


def test_product_of_stacks() -> None:
    """Blocks of three dimensions are stacks of matrices."""
    left, right = torch.randn(4, 16, 16), torch.randn(4, 16, 16)
    with simulate("lazy"):
        found = torch.empty(4, 16, 16, device="sim")
        products[(1,)](left.to("sim"), right.to("sim"), found, 4, 16)

        torch.testing.assert_close(found.cpu(), left @ right, rtol=1e-5, atol=1e-5)


def test_scaled_product_is_refused() -> None:
    """A product with scales of its own is not known, and its line is named."""
    with simulate("lazy"):
        block = torch.ones(32, 32, dtype=torch.float8_e4m3fn).to("sim")
        scale = torch.full((32, 1), 127, dtype=torch.uint8, device="sim")
        out = torch.empty(32, 32, device="sim")

        with pytest.raises(SimulatorError, match=rf"'tt.dot_scaled', at {__file__}:\d+, which"):
            scaled_product[(1,)](block, block, out, scale, 32)
