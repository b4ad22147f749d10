# mypy: disable-error-code="import-untyped, no-untyped-def, untyped-decorator, no-untyped-call"
# ruff: noqa: ANN001, ANN201, N803 - a kernel's arguments
import pytest
import torch
import triton
import triton.language as tl

from backend_caps.simulator import simulate


@triton.jit(noinline=True)
def clipped(number, least, most):
    """Leave early on one side."""
    if number < least:
        return least
    return tl.minimum(number, most)


@triton.jit(noinline=True)
def pair_of(number):
    """Return two results."""
    return number + 1, number * 2


@triton.jit(noinline=True)
def write(out, number):
    """Write to an argument's memory, and return nothing."""
    if number > 0:
        tl.store(out, number)


@triton.jit(noinline=True)
def moved(pointer, count):
    """Return a pointer."""
    return pointer + count


@triton.jit
def calls(numbers, out):
    """Call functions, within a branch too."""
    place = tl.program_id(0)
    number = tl.load(numbers + place)
    first, second = pair_of(clipped(number, 1, 3))
    if number != 2:
        write(out + place, clipped(first * 10 + second, 0, 45))


@triton.jit
def call_for_pointers(source, out, N: tl.constexpr):
    """Call a function that returns a pointer, and one that returns two numbers."""
    at = tl.arange(0, N)
    first, second = pair_of(tl.load(source))
    tl.store(out + at, tl.load(moved(source, 1) + at) * first + second)


@triton.jit
def inlined(number):
    """Be compiled into who calls it."""
    if number > 1:
        number *= 10
    return number


@triton.jit
def calls_inlined(numbers, out):
    """Call a helper."""
    place = tl.program_id(0)
    tl.store(out + place, inlined(tl.load(numbers + place)) + inlined(place))


def _run(kernel: object, numbers: list[int], *, size: int | None = None) -> list[int]:
    """Run a program for each number, on tensors of int32."""
    with simulate("lazy"):
        given = torch.tensor(numbers, dtype=torch.int32).to("sim")
        out = torch.zeros(size or len(numbers), dtype=torch.int32, device="sim")
        kernel[(len(numbers),)](given, out)  # type: ignore[index]
        return out.tolist()


@pytest.mark.parametrize(
    "numbers",
    [
        pytest.param([0, 1, 2, 3, 9], id="all ways"),
        pytest.param([1, 1], id="one way"),
        pytest.param([2], id="one program"),
    ],
)
def test_functions_are_called(numbers: list[int]) -> None:
    """A function that is not compiled in runs with the programs that call it."""
    ways = {0: 22, 1: 22, 2: 0, 3: 45, 9: 45}

    assert _run(calls, numbers) == [ways[number] for number in numbers]


def test_functions_return_pointers() -> None:
    """A function may return a pointer, and several results."""
    with simulate("lazy"):
        source, out = torch.arange(5.0, device="sim"), torch.empty(4, device="sim")
        call_for_pointers[(1,)](source, out, N=4)

        assert out.tolist() == [1.0, 2.0, 3.0, 4.0]


def test_helpers_are_compiled_in() -> None:
    """A helper is part of the kernel that calls it."""
    assert _run(calls_inlined, [0, 1, 2, 3]) == [0, 2, 40, 60]
