import numpy as np
import pytest
import torch
from torch import Tensor

from tests.simulator.kernels.expressions import computed, padded

SIGNED = (torch.int8, torch.int16, torch.int32, torch.int64)
UNSIGNED = (torch.uint8, torch.uint16, torch.uint32, torch.uint64)

every_integer = pytest.mark.parametrize("dtype", [*SIGNED, *UNSIGNED], ids=str)
every_signed = pytest.mark.parametrize("dtype", SIGNED, ids=str)
every_unsigned = pytest.mark.parametrize("dtype", UNSIGNED, ids=str)


def _samples(dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return pairs of numbers, at the ends of their type and in the middle."""
    limits = np.iinfo(str(dtype).removeprefix("torch."))
    middle = int(limits.max) // 2 + 1
    left = [0, 1, 7, 100, limits.max, limits.max - 1, limits.min, middle]
    right = [1, 3, 2, 7, limits.max, 2, 5, middle - 3]
    return padded(left, dtype), padded(right, dtype)


@pytest.mark.parametrize("symbol", ["+", "-", "*", "&", "|", "^", "<", "<=", ">", ">=", "==", "!="])
@every_integer
def test_integers_compute_as_in_numpy(symbol: str, dtype: torch.dtype) -> None:
    """Sums, products, bits and comparisons of integers wrap and order as their type says."""
    left, right = _samples(dtype)
    is_comparison = symbol in {"<", "<=", ">", ">=", "==", "!="}

    found = computed(f"a {symbol} b", left, right, dtype=torch.bool if is_comparison else dtype)

    expected = eval(f"a {symbol} b", {"a": left.numpy(), "b": right.numpy()})  # noqa: S307
    np.testing.assert_array_equal(found.numpy(), expected)


@every_signed
def test_signed_division_cuts_towards_zero(dtype: torch.dtype) -> None:
    """Quotients and remainders of signed integers are those of C."""
    left, right = padded([7, -7, 7, -7], dtype), padded([2, 2, -2, -2], dtype)

    assert computed("a // b", left, right).tolist() == [3, -3, -3, 3]
    assert computed("a % b", left, right).tolist() == [1, -1, 1, -1]


@every_unsigned
def test_unsigned_division_has_no_sign(dtype: torch.dtype) -> None:
    """Quotients and remainders of unsigned integers take the whole range for positive."""
    left, right = _samples(dtype)

    np.testing.assert_array_equal(computed("a // b", left, right), left.numpy() // right.numpy())
    np.testing.assert_array_equal(computed("a % b", left, right), left.numpy() % right.numpy())


@every_integer
def test_division_by_zero_is_no_error(dtype: torch.dtype) -> None:
    """Lanes that a mask drops later may divide by zero, as on a GPU."""
    left, right = padded([6, 6], dtype), padded([0, 3], dtype)

    assert computed("tl.where(b == 0, 9, a // b)", left, right).tolist() == [9, 2]
    assert computed("tl.where(b == 0, 9, a % b)", left, right).tolist() == [9, 0]


@every_integer
def test_shift_to_the_right_keeps_the_sign_where_there_is_one(dtype: torch.dtype) -> None:
    """A shift to the right brings in the sign, or zeros where there is none."""
    left, _ = _samples(dtype)

    np.testing.assert_array_equal(computed("a >> 3", left), left.numpy() >> 3)


@every_integer
def test_shift_to_the_left_drops_the_upper_bits(dtype: torch.dtype) -> None:
    """A shift to the left wraps."""
    left, _ = _samples(dtype)

    np.testing.assert_array_equal(computed("a << 3", left), left.numpy() << 3)


@every_integer
def test_larger_and_smaller_go_by_the_type(dtype: torch.dtype) -> None:
    """The order of integers is that of their type."""
    left, right = _samples(dtype)
    most, least = (function(left.numpy(), right.numpy()) for function in (np.maximum, np.minimum))

    np.testing.assert_array_equal(computed("tl.maximum(a, b)", left, right), most)
    np.testing.assert_array_equal(computed("tl.minimum(a, b)", left, right), least)


@every_signed
def test_sign_is_dropped_and_turned(dtype: torch.dtype) -> None:
    """Integers have an absolute value, and a negative one."""
    numbers = padded([3, -4, 0, 100], dtype)

    assert computed("tl.abs(a)", numbers).tolist() == [3, 4, 0, 100]
    assert computed("-a", numbers).tolist() == [-3, 4, 0, -100]
    assert computed("~a", numbers).tolist() == [-4, 3, -1, -101]


@pytest.mark.parametrize("bits", [32, 64])
def test_upper_half_of_a_product_has_no_sign(bits: int) -> None:
    """`umulhi` takes its operands for unsigned, whatever they are."""
    dtype = {32: torch.int32, 64: torch.int64}[bits]
    numbers = [0, 1, -1, 7, -7, 2 ** (bits - 1) - 1, -(2 ** (bits - 1)), 12345]
    others = [1, 3, -2, 2, 5, -1, -3, 7]

    found = computed("tl.umulhi(a, b)", padded(numbers, dtype), padded(others, dtype))

    whole = 1 << bits
    products = [(a % whole) * (b % whole) >> bits for a, b in zip(numbers, others, strict=True)]
    assert [number % whole for number in found.tolist()] == products


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        pytest.param("a + b", [False, True, True, False], id="sum is of one bit"),
        pytest.param("a - b", [False, True, True, False], id="difference is of one bit"),
        pytest.param("a * b", [True, False, False, False], id="product"),
        pytest.param("a & b", [True, False, False, False], id="and"),
        pytest.param("a | b", [True, True, True, False], id="or"),
        pytest.param("a ^ b", [False, True, True, False], id="xor"),
        pytest.param("~a", [False, False, True, True], id="not"),
        pytest.param("a < b", [False, False, True, False], id="less"),
        pytest.param("a == b", [True, False, False, True], id="equal"),
        pytest.param("tl.maximum(a, b)", [True, True, True, False], id="larger"),
    ],
)
def test_bits_compute(expression: str, expected: list[bool]) -> None:
    """A bool is an integer of one bit."""
    left = torch.tensor([True, True, False, False])
    right = torch.tensor([True, False, True, False])

    assert computed(expression, left, right).tolist() == expected


@pytest.mark.parametrize("target", ["int8", "int16", "int32", "int64", "uint8", "uint32", "uint64"])
@every_integer
def test_integers_convert_by_their_bits(dtype: torch.dtype, target: str) -> None:
    """A narrower type cuts, and a wider one extends by the sign of what is converted."""
    left, _ = _samples(dtype)

    found = computed(f"a.to(tl.{target})", left, dtype=getattr(torch, target))

    np.testing.assert_array_equal(found.numpy(), left.numpy().astype(target))


def test_one_bit_extends_to_one_or_to_minus_one() -> None:
    """A bool is 1 as an integer, and a mask is all bits where it is signed."""
    bits = torch.tensor([True, False])

    assert computed("a.to(tl.int32)", bits, dtype=torch.int32).tolist() == [1, 0]
    assert computed("a.to(tl.int64)", bits, dtype=torch.int64).tolist() == [1, 0]
    assert computed("a.to(tl.float32)", bits, dtype=torch.float32).tolist() == [1.0, 0.0]
    assert computed("(a + 0).to(tl.int1)", padded([2, 0], torch.int32)).tolist() == [1, 0]


@pytest.mark.parametrize("target", ["float16", "bfloat16", "float32", "float64"])
@every_integer
def test_integers_become_numbers(dtype: torch.dtype, target: str) -> None:
    """An integer is rounded to floating point by its value, also above half of 64 bits."""
    if target == "float16":
        left = padded([0, 1, 7, 100], dtype)
    else:
        left, _ = _samples(dtype)

    found = computed(f"a.to(tl.{target})", left, dtype=torch.float64)

    wide = torch.from_numpy(left.numpy().astype(np.float64))
    assert found.tolist() == wide.to(getattr(torch, target)).to(torch.float64).tolist()


@pytest.mark.parametrize(
    ("target", "numbers", "expected"),
    [
        pytest.param("int32", [3.9, -3.9, 0.0, -0.5], [3, -3, 0, 0], id="int32"),
        pytest.param("int64", [2.0**40, -(2.0**40)], [2**40, -(2**40)], id="int64"),
        pytest.param("uint8", [200.7, 3.0], [200, 3], id="uint8"),
        pytest.param("uint32", [4e9, 3.7], [4_000_000_000, 3], id="uint32"),
        pytest.param("uint64", [1e19, 3.7], [10**19, 3], id="uint64"),
        pytest.param("int1", [0.5, 0.0], [True, False], id="int1"),
    ],
)
def test_numbers_become_integers(target: str, numbers: list[float], expected: list[int]) -> None:
    """A number is cut to an integer, of its type's range."""
    dtype = torch.bool if target == "int1" else getattr(torch, target)

    found = computed(f"a.to(tl.{target})", padded(numbers, torch.float64), dtype=dtype)

    assert found.tolist() == expected


def test_bits_are_taken_for_another_type() -> None:
    """A cast of bits moves none."""
    numbers = padded([1.0, -2.5, float("inf"), 0.0], torch.float32)

    found = computed("a.to(tl.int32, bitcast=True)", numbers, dtype=torch.int32)

    assert found.tolist() == numbers.view(torch.int32).tolist()
    assert computed("a.to(tl.float32, bitcast=True)", found, dtype=torch.float32).equal(numbers)
