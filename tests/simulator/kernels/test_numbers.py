import math

import pytest
import torch
from torch import Tensor

from backend_caps.simulator import SimulatorError
from tests.simulator.kernels.expressions import computed, padded

NAN, INF = math.nan, math.inf
LEFT = torch.tensor([1.0, NAN, 2.0, NAN])
RIGHT = torch.tensor([2.0, 1.0, NAN, NAN])
ALL = "propagate_nan=tl.PropagateNan.ALL"
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
NUMBERS = [0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.25, 10.0]

every_float = pytest.mark.parametrize("dtype", FLOATS, ids=str)


def _same(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("symbol", ["<", "<=", ">", ">=", "==", "!="])
def test_comparison_with_nan_is_false_but_for_unequal(symbol: str) -> None:
    """What is no number equals nothing, and comes neither before nor after anything."""
    found = computed(f"a {symbol} b", LEFT, RIGHT, dtype=torch.bool)

    assert found.tolist() == [symbol in {"<", "<=", "!="}, *[symbol == "!="] * 3]


@pytest.mark.parametrize("symbol", ["<", "<=", ">", ">=", "=="])
def test_negated_comparison_with_nan_is_true(symbol: str) -> None:
    """The compiler may turn a comparison around, and what is no number keeps its answer."""
    found = computed(f"not (a {symbol} b)", LEFT, RIGHT, dtype=torch.bool)

    assert found.tolist()[1:] == [True] * 3


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        pytest.param("tl.maximum(a, b)", [2.0, 1.0, 2.0, NAN], id="maximum"),
        pytest.param("tl.minimum(a, b)", [1.0, 1.0, 2.0, NAN], id="minimum"),
        pytest.param(f"tl.maximum(a, b, {ALL})", [2.0, NAN, NAN, NAN], id="maximum with nan"),
        pytest.param(f"tl.minimum(a, b, {ALL})", [1.0, NAN, NAN, NAN], id="minimum with nan"),
        pytest.param("tl.clamp(a, 0.0, 1.5)", [1.0, 0.0, 1.5, 0.0], id="clamp"),
        pytest.param(f"tl.clamp(a, 0.0, 1.5, {ALL})", [1.0, NAN, 1.5, NAN], id="clamp with nan"),
        pytest.param("tl.where(a == a, a, 0.0)", [1.0, 0.0, 2.0, 0.0], id="where"),
    ],
)
def test_choice_between_numbers(expression: str, expected: list[float]) -> None:
    """Of a number and none, the number is chosen where the kernel does not say otherwise."""
    _same(computed(expression, LEFT, RIGHT), torch.tensor(expected))


@pytest.mark.parametrize("symbol", ["+", "-", "*"])
@every_float
def test_numbers_compute_in_their_own_type(symbol: str, dtype: torch.dtype) -> None:
    """Sums and products are rounded to the operands' type."""
    left, right = padded(NUMBERS, dtype), padded(NUMBERS[::-1], dtype)

    found = computed(f"a {symbol} b", left, right)

    _same(found, eval(f"a {symbol} b", {"a": left, "b": right}))  # noqa: S307 - symbols above


@every_float
def test_numbers_divide(dtype: torch.dtype) -> None:
    """Quotients and remainders have the sign of C's."""
    left, right = padded([7.5, -7.5, 1.0, 3.0], dtype), padded([2.0, 2.0, -4.0, 1.0], dtype)

    assert computed("a / b", left, right).tolist() == [3.75, -3.75, -0.25, 3.0]
    assert computed("a % b", left, right).tolist() == [1.5, -1.5, 1.0, 0.0]
    assert computed("-a", left).tolist() == [-7.5, 7.5, -1.0, -3.0]
    assert computed("tl.abs(a)", left).tolist() == [7.5, 7.5, 1.0, 3.0]


def test_fused_product_is_rounded_once() -> None:
    """`fma` keeps what a product of its own would lose."""
    small = 2.0**-13
    left, right, third = (
        padded([number] * 2, torch.float32) for number in (1 + small, 1 - small, -1)
    )

    assert computed("tl.fma(a, b, c)", left, right, third).tolist() == [-(small**2)] * 2
    assert computed("tl.div_rn(a, b)", left, left).tolist() == [1.0] * 2
    assert computed("tl.sqrt_rn(a)", padded([4.0, 9.0], torch.float32)).tolist() == [2.0, 3.0]


@pytest.mark.parametrize(
    "name",
    [
        "ceil",
        "cos",
        "erf",
        "exp",
        "exp2",
        "floor",
        "log",
        "log2",
        "rsqrt",
        "sigmoid",
        "sin",
        "sqrt",
    ],
)
@pytest.mark.parametrize("dtype", FLOATS[2:], ids=str)
def test_functions_are_those_of_torch(name: str, dtype: torch.dtype) -> None:
    """Functions are exact up to torch's rounding."""
    numbers = padded(NUMBERS, dtype)

    torch.testing.assert_close(computed(f"tl.{name}(a)", numbers), getattr(torch, name)(numbers))


EXTREMES = [0.0, 1.0, -2.5, 448.0, 500.0, 1e6, INF, -INF, NAN, 7e4, -0.0, 1e-3, 0.1, 3e-6, 464.0, 2]


@pytest.mark.parametrize(
    ("target", "dtype"),
    [
        pytest.param("float16", torch.float16, id="float16"),
        pytest.param("bfloat16", torch.bfloat16, id="bfloat16"),
        pytest.param("float64", torch.float64, id="float64"),
    ],
)
@pytest.mark.parametrize("source", FLOATS, ids=str)
def test_numbers_round_to_the_nearest(source: torch.dtype, target: str, dtype: torch.dtype) -> None:
    """A conversion rounds to the nearest, and beyond the largest to infinity."""
    numbers = padded(EXTREMES, source)

    _same(computed(f"a.to(tl.{target})", numbers, dtype=dtype), numbers.to(dtype))


@pytest.mark.parametrize(
    ("target", "dtype"),
    [
        pytest.param("float8e4nv", torch.float8_e4m3fn, id="e4m3"),
        pytest.param("float8e5", torch.float8_e5m2, id="e5m2"),
    ],
)
@pytest.mark.parametrize("source", FLOATS[:3], ids=str)
def test_float8_saturates(source: torch.dtype, target: str, dtype: torch.dtype) -> None:
    """What lies beyond float8 becomes its largest number, infinity too, and NaN stays NaN."""
    numbers, most = padded(EXTREMES, source), torch.finfo(dtype).max

    found = computed(f"a.to(tl.{target})", numbers, dtype=dtype)

    expected = numbers.float().clamp(-most, most).to(dtype)
    _same(found.float(), expected.float())


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2], ids=str)
@pytest.mark.parametrize("target", ["float16", "bfloat16", "float32"])
def test_float8_widens_exactly(dtype: torch.dtype, target: str) -> None:
    """Every number of float8 is one of the wider types."""
    numbers = torch.arange(256, dtype=torch.int32).to(torch.uint8).view(dtype)

    found = computed(f"a.to(tl.{target})", numbers, dtype=torch.float32)

    _same(found, numbers.float())


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2], ids=str)
def test_float8_moves_as_it_is(dtype: torch.dtype) -> None:
    """Loads, choices and stores of float8 keep its bits."""
    numbers = torch.arange(256, dtype=torch.int32).to(torch.uint8)

    found = computed("tl.where(a == a, a, a)", numbers.view(dtype))

    assert found.view(torch.uint8).equal(numbers)
    bits = computed("a.to(tl.uint8, bitcast=True)", numbers.view(dtype), dtype=torch.uint8)
    assert bits.equal(numbers)


def test_arithmetic_of_float8_is_refused() -> None:
    """A kernel that adds float8 without a conversion is named, with the line."""
    numbers = padded([1.0, 2.0], torch.float8_e5m2)

    with pytest.raises(SimulatorError, match=r"'computed'.*arith.addf of float8.*a \+ a"):
        computed("a + a", numbers)


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        pytest.param("float16", [65504.0, INF, -1.0, 0.0999755859375, 0.0], id="float16"),
        pytest.param("bfloat16", [999424.0, INF, -1.0, 0.099609375, 2.0**-26], id="bfloat16"),
        pytest.param("float8e5", [57344.0, 57344.0, -1.0, 0.09375, 0.0], id="float8"),
    ],
)
def test_rounding_towards_zero_enlarges_nothing(target: str, expected: list[float]) -> None:
    """Rounded towards zero, a number too large is the largest one, and a tiny one is cut."""
    numbers = padded([1e6, INF, -1.001, 0.1, 2.0**-26], torch.float32)

    found = computed(f"a.to(tl.{target}, fp_downcast_rounding='rtz')", numbers)

    torch.testing.assert_close(found[:5], torch.tensor(expected), rtol=0.004, atol=0)


@pytest.mark.parametrize(
    ("literal", "expected"),
    [
        pytest.param("float('inf')", INF, id="infinity"),
        pytest.param("float('-inf')", -INF, id="negative infinity"),
        pytest.param("float('nan')", NAN, id="nan"),
        pytest.param("1e-45", 1e-45, id="the smallest"),
        pytest.param("16777217", 16777216.0, id="an integer"),
        pytest.param("True", 1.0, id="a bool"),
    ],
)
@pytest.mark.parametrize("shape", ["{}", "tl.full([2], {}, tl.float32)"], ids=["number", "block"])
def test_constants_are_read(literal: str, expected: float, shape: str) -> None:
    """Constants are read as the compiler prints them, also those without digits."""
    found = computed(f"tl.where(a > 0, {shape.format(literal)}, a)", torch.tensor([1.0, 2.0]))

    _same(found, torch.tensor([expected] * 2))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64", "float8e5", "float8e4nv"])
def test_constants_of_other_types_are_read(dtype: str) -> None:
    """Constants of every type of floating point are read."""
    found = computed(f"tl.full([2], 1.5, tl.{dtype}).to(tl.float32) * a", torch.ones(2))

    assert found.tolist() == [1.5, 1.5]
