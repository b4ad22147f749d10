# mypy: disable-error-code="import-untyped, no-untyped-def, untyped-decorator, no-untyped-call"
# ruff: noqa: ANN001, ANN201, SIM108 - of what is compiled
import math
from collections.abc import Callable

import pytest
import torch
import triton
from torch import Tensor

from tests.simulator.kernels.expressions import computed

NUMBERS = torch.tensor([5.0, -1.0, 7.0, 3.0, 2.0, 8.0, -4.0, 7.0])
MATRIX = NUMBERS.reshape(2, 4)
ROWS = "tl.reshape(a, (2, 4))"
INTEGERS = NUMBERS.to(torch.int32)


@triton.jit
def first_of(left, right):
    """Take the left one, so only the order of the operands counts."""
    return left + 0 * right


@triton.jit
def capped(left, right):
    """Add up to a bound: it begins with a sum."""
    total = left + right
    return tl_minimum(total, 10.0)


@triton.jit
def doubled(left, right):  # noqa: ARG001 - the point of it
    """Use one operand twice."""
    return left + left


@triton.jit
def chosen(left, right):
    """Part, with an operation on each side."""
    if left > right:
        result = left * 1.0 + 0.5 * right
    else:
        result = right * 1.0 + 0.5 * left
    return result


@triton.jit(noinline=True)
def larger(left, right):
    """Be a function that is called."""
    return tl_maximum(left, right)


@triton.jit
def called(left, right):
    """Call a function."""
    return larger(left, right)


@triton.jit
def linear(slope, offset, next_slope, next_offset):
    """Compose two linear functions."""
    return slope * next_slope, offset * next_slope + next_offset


@triton.jit
def constant_second(left, index, right, next_index):  # noqa: ARG001 - the point of it
    """Give a number that is the same everywhere."""
    return left + right, index * 0 + 1


tl_minimum, tl_maximum = triton.language.minimum, triton.language.maximum


@pytest.mark.parametrize(
    ("name", "reduce"),
    [
        pytest.param("sum", torch.sum, id="sum"),
        pytest.param("max", torch.amax, id="max"),
        pytest.param("min", torch.amin, id="min"),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int32, torch.int64], ids=str)
def test_reductions_along_an_axis(
    name: str, reduce: Callable[..., Tensor], dtype: torch.dtype
) -> None:
    """Sums and extremes are taken along each axis, and of all."""
    numbers = NUMBERS.to(dtype)
    matrix = MATRIX.to(dtype)

    assert computed(f"tl.{name}({ROWS}, axis=0)", numbers, size=4).tolist() == (
        reduce(matrix, 0).tolist()
    )
    assert computed(f"tl.{name}({ROWS}, axis=1)", numbers, size=2).tolist() == (
        reduce(matrix, 1).tolist()
    )
    assert computed(f"tl.{name}({ROWS})", numbers, size=1).tolist() == [reduce(numbers, 0).item()]


def test_reduction_keeps_its_axis() -> None:
    """With `keep_dims`, an axis of one element is left."""
    found = computed(f"tl.ravel({ROWS} - tl.max({ROWS}, axis=1, keep_dims=True))", NUMBERS)

    assert found.tolist() == (MATRIX - MATRIX.amax(1, keepdim=True)).flatten().tolist()


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        pytest.param("tl.argmax(a, 0)", 5, id="argmax"),
        pytest.param("tl.argmin(-a, 0)", 5, id="argmin"),
        pytest.param("tl.argmax(a * 0, 0)", 0, id="all are tied"),
        pytest.param("tl.argmax(tl.where(a == 8, 7.0, a), 0)", 2, id="three are tied"),
    ],
)
def test_place_of_an_extreme(expression: str, expected: int) -> None:
    """Of elements that are tied, the first one is meant."""
    assert computed(expression, NUMBERS, dtype=torch.int32, size=1).tolist() == [expected]


def test_extreme_comes_with_its_place() -> None:
    """A reduction of two operands gives two results."""
    value, place = (f"tl.max({ROWS}, 1, return_indices=True)[{each}]" for each in (0, 1))

    assert computed(value, NUMBERS, size=2).tolist() == [7.0, 8.0]
    assert computed(place, NUMBERS, dtype=torch.int32, size=2).tolist() == [2, 1]


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        pytest.param("tl.xor_sum(a, 0)", 5 ^ -1 ^ 7 ^ 3 ^ 2 ^ 8 ^ -4 ^ 7, id="xor"),
        pytest.param("tl.reduce_or(a, 0)", -1, id="or"),
        pytest.param("tl.sum(a > 2, 0)", 5, id="count of what is true"),
        pytest.param("tl.max((a > 7).to(tl.int32), 0)", 1, id="any"),
    ],
)
def test_reductions_of_integers(expression: str, expected: int) -> None:
    """Integers are combined by their bits too."""
    assert computed(expression, INTEGERS, size=1).tolist() == [expected]


def test_narrow_integers_are_summed_in_wider_ones() -> None:
    """A sum of small integers does not wrap, as Triton promotes them."""
    numbers = torch.full((8,), 100, dtype=torch.int8)

    assert computed("tl.sum(a, 0)", numbers, dtype=torch.int32, size=1).tolist() == [800]


def test_unsigned_extremes_have_no_sign() -> None:
    """The largest unsigned integer is one with its upper bit."""
    numbers = torch.tensor([1, 2**31 + 1, 5, 2**32 - 1], dtype=torch.int64).to(torch.uint32)

    assert computed("tl.max(a, 0)", numbers, size=1).tolist() == [2**32 - 1]
    assert computed("tl.min(a, 0)", numbers, size=1).tolist() == [1]


@pytest.mark.parametrize(
    ("name", "expected"), [pytest.param("max", 3.0, id="max"), pytest.param("min", 1.0, id="min")]
)
def test_extremes_pass_over_nan(name: str, expected: float) -> None:
    """An extreme is one of the numbers; of none it is NaN."""
    numbers = torch.tensor([math.nan, 1.0, 3.0, math.nan])

    assert computed(f"tl.{name}(a, 0)", numbers, size=1).tolist() == [expected]
    assert computed(f"tl.{name}(a, 0)", numbers[[0, 3]], size=1).isnan().all()


def test_reduction_of_the_same_everywhere() -> None:
    """A block that is one number is summed as often as it has elements."""
    found = computed("tl.sum(tl.full((8,), 3.0, tl.float32), 0) + a", torch.zeros(1))

    assert found.tolist() == [24.0]


@pytest.mark.parametrize(
    ("helper", "expected"),
    [
        pytest.param(first_of, 5.0, id="order is kept"),
        pytest.param(capped, 10.0, id="two operations"),
        pytest.param(called, 8.0, id="call"),
    ],
)
def test_custom_reductions(helper: object, expected: float) -> None:
    """Any function of two elements that is associative reduces a block."""
    found = computed("tl.reduce(a, 0, helper)", NUMBERS.abs(), size=1, helper=helper)

    assert found.tolist() == [expected]


def test_custom_reduction_that_parts() -> None:
    """A function that branches takes each pair of elements on its own way."""
    numbers = torch.tensor([1.0, 3.0, 8.0, 2.0])

    found = computed("tl.reduce(a, 0, helper)", numbers, size=1, helper=chosen)

    assert found.tolist() == [9.0 + 0.5 * 3.5]


def test_custom_reduction_of_one_operand_twice() -> None:
    """A function whose only operation is a sum need not be the sum of both."""
    found = computed("tl.reduce(a, 0, helper)", NUMBERS[:4], size=1, helper=doubled)

    assert found.tolist() == [20.0]


def test_custom_reduction_to_a_constant() -> None:
    """A result may be the same everywhere."""
    expression = "tl.reduce((a, a.to(tl.int32)), 0, helper)[{}]"

    total = computed(expression.format(0), NUMBERS, size=1, helper=constant_second)
    one = computed(expression.format(1), NUMBERS, size=1, helper=constant_second)

    assert (total.item(), one.item()) == (27.0, 1.0)


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        pytest.param("tl.cumsum(a, 0)", NUMBERS.cumsum(0), id="cumsum"),
        pytest.param("tl.cumprod(a, 0)", NUMBERS.cumprod(0), id="cumprod"),
        pytest.param(
            "tl.cumsum(a, 0, reverse=True)", NUMBERS.flip(0).cumsum(0).flip(0), id="backwards"
        ),
        pytest.param(f"tl.ravel(tl.cumsum({ROWS}, 1))", MATRIX.cumsum(1), id="along rows"),
        pytest.param(f"tl.ravel(tl.cumsum({ROWS}, 0))", MATRIX.cumsum(0), id="along columns"),
        pytest.param("tl.cumsum(a * 0 + 1, 0)", torch.arange(1, 9), id="of the same everywhere"),
    ],
)
def test_scans(expression: str, expected: Tensor) -> None:
    """A scan gives each element what comes of all up to it."""
    assert computed(expression, NUMBERS).tolist() == expected.flatten().tolist()


def test_scan_of_integers() -> None:
    """Integers are summed in their own type."""
    assert computed("tl.cumsum(a, 0)", INTEGERS).tolist() == INTEGERS.cumsum(0).tolist()


@pytest.mark.parametrize(
    ("helper", "expected"),
    [
        pytest.param(first_of, [5.0] * 8, id="order is kept"),
        pytest.param(capped, [5.0, 6.0, *[10.0] * 6], id="two operations"),
        pytest.param(called, [5.0, 5.0, 7.0, 7.0, 7.0, 8.0, 8.0, 8.0], id="call"),
    ],
)
def test_custom_scans(helper: object, expected: list[float]) -> None:
    """Any function of two elements scans a block, in the order of its elements."""
    found = computed("tl.associative_scan(a, 0, helper)", NUMBERS.abs(), helper=helper)

    assert found.tolist() == expected


def test_scan_backwards_combines_from_the_end() -> None:
    """A scan backwards takes the last element first."""
    expression = "tl.associative_scan(a, 0, helper, reverse=True)"

    assert computed(expression, NUMBERS, helper=first_of).tolist() == [7.0] * 8


def test_scan_of_pairs() -> None:
    """A scan of two operands, as a recurrence is computed."""
    slopes, offsets = torch.tensor([0.5, 2.0, -1.0, 0.25]), torch.tensor([1.0, 3.0, 0.5, 2.0])
    expression = "tl.associative_scan((a, b), 0, helper)[1]"

    found = computed(expression, slopes, offsets, helper=linear)

    state, expected = 0.0, []
    for slope, offset in zip(slopes.tolist(), offsets.tolist(), strict=True):
        state = state * slope + offset
        expected.append(state)
    assert found.tolist() == expected
