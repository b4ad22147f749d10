# mypy: disable-error-code="import-untyped, no-untyped-def, untyped-decorator, no-untyped-call"
# ruff: noqa: ANN001, ANN201, N803 - a kernel's arguments
from collections.abc import Callable, Mapping, Sequence

import pytest
import torch
import triton
import triton.language as tl
from torch import Tensor

from backend_caps.simulator import simulate

CHANGES: Mapping[str, Callable[[int, int], int]] = {
    "add": lambda before, value: before + value,
    "max": max,
    "min": min,
    "and": lambda before, value: before & value,
    "or": lambda before, value: before | value,
    "xor": lambda before, value: before ^ value,
    "xchg": lambda before, value: value,  # noqa: ARG005
}


@triton.jit
def change(numbers, places, values, before, OPERATION: tl.constexpr, N: tl.constexpr):
    """Change numbers at places, in each program N of them."""
    at = tl.program_id(0) * N + tl.arange(0, N)
    target, value = numbers + tl.load(places + at), tl.load(values + at)
    if OPERATION == "add":
        found = tl.atomic_add(target, value)
    elif OPERATION == "max":
        found = tl.atomic_max(target, value)
    elif OPERATION == "min":
        found = tl.atomic_min(target, value)
    elif OPERATION == "and":
        found = tl.atomic_and(target, value)
    elif OPERATION == "or":
        found = tl.atomic_or(target, value)
    elif OPERATION == "xor":
        found = tl.atomic_xor(target, value)
    else:
        found = tl.atomic_xchg(target, value)
    tl.store(before + at, found)


@triton.jit
def swap(numbers, places, before, N: tl.constexpr):
    """Put a lane's number plus 1 where there is 0."""
    at = tl.arange(0, N)
    zero = tl.zeros((N,), numbers.dtype.element_ty)
    found = tl.atomic_cas(numbers + tl.load(places + at), zero, at.to(zero.dtype) + 1)
    tl.store(before + at, found)


@triton.jit
def count(total, BLOCK: tl.constexpr):
    """Count programs in a number, and lanes in the next one."""
    tl.atomic_add(total, 1)
    tl.atomic_add(total + 1 + tl.zeros((BLOCK,), tl.int32), 1)


@triton.jit
def ticket(total, out):
    """Take the next number."""
    tl.store(out + tl.program_id(0), tl.atomic_add(total, 1, sem="relaxed", scope="gpu"))


@triton.jit
def add_masked(numbers, count, N: tl.constexpr):
    """Add to a part of the numbers."""
    at = tl.arange(0, N)
    tl.atomic_add(numbers + at, 1.0, mask=at < count)


def _changed(
    operation: str,
    numbers: Sequence[float],
    places: Sequence[int],
    values: Sequence[float],
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:
    """Return what a kernel of two programs leaves, and what it found."""
    with simulate("lazy"):
        target = torch.tensor(numbers, dtype=dtype).to("sim")
        given = torch.tensor(values, dtype=dtype).to("sim")
        index = torch.tensor(places, dtype=torch.int32).to("sim")
        before = torch.empty_like(given)
        change[(2,)](target, index, given, before, operation, len(values) // 2)
        return target.cpu(), before.cpu()


@pytest.mark.parametrize("operation", CHANGES)
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.uint32, torch.uint64], ids=str)
def test_atomic_changes_come_one_after_the_other(operation: str, dtype: torch.dtype) -> None:
    """Each lane finds what the one before it left, also at one place."""
    numbers, places, values = [5, 9, 12, 3], [0, 1, 1, 2, 1, 0, 1, 3], [3, 7, 1, 12, 6, 10, 8, 4]
    expected = []
    after = list(numbers)
    for place, value in zip(places, values, strict=True):
        expected.append(after[place])
        after[place] = CHANGES[operation](after[place], value)

    left, found = _changed(operation, numbers, places, values, dtype)

    assert left.tolist() == after
    assert found.tolist() == expected


@pytest.mark.parametrize("dtype", [torch.uint32, torch.uint64], ids=str)
def test_atomic_order_of_unsigned_integers(dtype: torch.dtype) -> None:
    """The larger of unsigned integers is one with its upper bit."""
    upper = 2 ** (8 * dtype.itemsize - 1)

    most, _ = _changed("max", [5, 5], [0, 1], [upper, 3], dtype)
    least, _ = _changed("min", [5, upper], [0, 1], [upper, 3], dtype)

    assert most.tolist() == [upper, 5]
    assert least.tolist() == [5, 3]


@pytest.mark.parametrize(
    ("operation", "expected"),
    [
        pytest.param("add", [3.5, -4.0], id="add"),
        pytest.param("max", [2.0, -1.0], id="max"),
        pytest.param("min", [0.0, -3.0], id="min"),
        pytest.param("xchg", [1.0, -3.0], id="xchg"),
    ],
)
def test_atomic_changes_of_numbers(operation: str, expected: list[float]) -> None:
    """Floating point is changed too, negative numbers in their order."""
    left, _ = _changed(operation, [0.5, -1.0], [0, 0, 1, 0], [2.0, 0.0, -3.0, 1.0], torch.float32)

    assert left.tolist() == expected


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64], ids=str)
def test_atomic_addition_of_other_numbers(dtype: torch.dtype) -> None:
    """Numbers of other types are added to."""
    left, found = _changed("add", [1.0, 2.0], [0, 1, 0, 0], [0.5, 1.0, 0.25, 1.0], dtype)

    assert (left.tolist(), found.tolist()) == ([2.75, 3.0], [1.0, 2.0, 1.5, 1.75])


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
def test_exchange_is_made_by_the_first_who_finds_what_it_expects(dtype: torch.dtype) -> None:
    """Of lanes that compare and swap at one place, one succeeds."""
    with simulate("lazy"):
        numbers = torch.tensor([0, 7, 0], device="sim").to(dtype)
        places = torch.tensor([0, 0, 1, 2], dtype=torch.int32, device="sim")
        before = torch.empty(4, dtype=dtype, device="sim")
        swap[(1,)](numbers, places, before, N=4)

        assert numbers.tolist() == [1, 7, 4]
        assert before.tolist() == [0, 1, 7, 0]


def test_one_change_of_a_program_is_made_once() -> None:
    """A number is added once by each program, and a block by each of its lanes."""
    with simulate("lazy"):
        total = torch.zeros(2, dtype=torch.int32, device="sim")
        count[(3, 2)](total, BLOCK=8)

        assert total.tolist() == [6, 48]


def test_programs_take_numbers_in_turn() -> None:
    """What an atomic addition returns is each program's own."""
    with simulate("lazy"):
        total = torch.zeros(1, dtype=torch.int32, device="sim")
        out = torch.empty(5, dtype=torch.int32, device="sim")
        ticket[(5,)](total, out)

        assert sorted(out.tolist()) == [0, 1, 2, 3, 4]


def test_masked_lanes_change_nothing() -> None:
    """A mask leaves lanes out."""
    with simulate("lazy"):
        numbers = torch.zeros(4, device="sim")
        add_masked[(1,)](numbers, 3, N=4)
        add_masked[(1,)](numbers, 0, N=4)

        assert numbers.tolist() == [1, 1, 1, 0]
