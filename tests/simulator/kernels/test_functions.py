import math

import pytest
import torch

from backend_caps.simulator import SimulatorError
from tests.simulator.kernels.expressions import computed, padded

NUMBERS = [0.25, -0.5, 0.75, 1.0, -1.5, 2.5, 0.0, -2.5]
SPECIAL = [math.nan, math.inf, -math.inf, 1.0]


def _assembly(text: str, constraints: str, arguments: str, dtype: str = "float32") -> str:
    options = f"dtype=tl.{dtype}, is_pure=True, pack=1"
    return f"tl.inline_asm_elementwise({text!r}, {constraints!r}, [{arguments}], {options})"


@pytest.mark.parametrize(
    "name",
    [
        "asinh",
        "atan",
        "ceil",
        "cos",
        "cosh",
        "erf",
        "erfc",
        "exp",
        "exp2",
        "expm1",
        "floor",
        "lgamma",
        "sin",
        "sinh",
        "tan",
        "tanh",
        "trunc",
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_library_functions_are_those_of_torch(name: str, dtype: torch.dtype) -> None:
    """Functions of libdevice that torch has under the same name are torch's."""
    numbers = padded(NUMBERS, dtype)

    found = computed(f"libdevice.{name}(a)", numbers)

    torch.testing.assert_close(found, getattr(torch, name)(numbers))


@pytest.mark.parametrize(
    "name",
    ["acos", "acosh", "asin", "atanh", "erfinv", "log", "log10", "log1p", "log2", "rsqrt", "sqrt"],
)
def test_library_functions_of_part_of_the_numbers(name: str) -> None:
    """Outside of a function's numbers its result is NaN, as torch's is."""
    numbers = padded([0.25, 0.5, 1.0, -3.0], torch.float32)

    found = computed(f"libdevice.{name}(a)", numbers)

    torch.testing.assert_close(found, getattr(torch, name)(numbers), equal_nan=True)


@pytest.mark.parametrize("name", ["atan2", "copysign", "fmod", "hypot", "nextafter", "pow"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_library_functions_of_two_numbers(name: str, dtype: torch.dtype) -> None:
    """Functions of two numbers take them in the same order."""
    left, right = padded([1.5, 2.0, 3.0, 0.5], dtype), padded([0.5, -3.0, 2.0, 1.0], dtype)

    found = computed(f"libdevice.{name}(a, b)", left, right)

    torch.testing.assert_close(found, getattr(torch, name)(left, right))


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        pytest.param("libdevice.abs(a)", [0.25, 0.5, 0.75, 1, 1.5, 2.5, 0, 2.5], id="abs"),
        pytest.param("libdevice.rint(a)", [0, 0, 1, 1, -2, 2, 0, -2], id="to the nearest even"),
        pytest.param("libdevice.nearbyint(a)", [0, 0, 1, 1, -2, 2, 0, -2], id="nearbyint"),
        pytest.param("libdevice.round(a)", [0, -1, 1, 1, -2, 3, 0, -3], id="halves from zero"),
        pytest.param("libdevice.llrint(a)", [0, 0, 1, 1, -2, 2, 0, -2], id="llrint"),
        pytest.param("libdevice.saturatef(a)", [0.25, 0, 0.75, 1, 0, 1, 0, 0], id="saturate"),
        pytest.param("libdevice.add_rn(a, a)", [2 * each for each in NUMBERS], id="add_rn"),
        pytest.param("libdevice.sub_rn(a, a)", [0] * 8, id="sub_rn"),
        pytest.param("libdevice.mul_rn(a, a)", [each**2 for each in NUMBERS], id="mul_rn"),
        pytest.param("libdevice.fma(a, a, a)", [e * e + e for e in NUMBERS], id="fma"),
        pytest.param("libdevice.fast_dividef(a, 2.0)", [e / 2 for e in NUMBERS], id="divide"),
        pytest.param("libdevice.div_rn(a, a + 8)", [e / (e + 8) for e in NUMBERS], id="div_rn"),
        pytest.param("libdevice.rcp_rn(a + 8)", [1 / (e + 8) for e in NUMBERS], id="rcp_rn"),
        pytest.param("libdevice.fast_expf(a)", [math.exp(e) for e in NUMBERS], id="fast_expf"),
        pytest.param("libdevice.exp10(a)", [10**e for e in NUMBERS], id="exp10"),
        pytest.param(
            "libdevice.int_as_float(libdevice.float_as_int(a))", NUMBERS, id="there and back"
        ),
        pytest.param("libdevice.signbit(a)", [0, 1, 0, 0, 1, 0, 0, 1], id="signbit"),
    ],
)
def test_library_functions_of_other_names(expression: str, expected: list[float]) -> None:
    """Functions that torch calls otherwise, or does not have, compute what CUDA's do."""
    found = computed(expression, padded(NUMBERS, torch.float32))

    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float32))


@pytest.mark.parametrize(
    ("name", "dtype", "expected"),
    [
        pytest.param("isnan", torch.float32, [1, 0, 0, 0], id="isnan"),
        pytest.param("isnan", torch.float64, [1, 0, 0, 0], id="isnan of float64"),
        pytest.param("isinf", torch.float32, [0, 1, 1, 0], id="isinf"),
        pytest.param("isinf", torch.float64, [0, 1, 1, 0], id="isinf of float64"),
        pytest.param("finitef", torch.float32, [0, 0, 0, 1], id="finitef"),
        pytest.param("isfinited", torch.float64, [0, 0, 0, 1], id="isfinited"),
    ],
)
def test_library_says_what_a_number_is(name: str, dtype: torch.dtype, expected: list[int]) -> None:
    """Questions about a number are answered by 0 or 1."""
    found = computed(f"libdevice.{name}(a)", padded(SPECIAL, dtype), dtype=torch.int32)

    assert found.tolist() == expected


def test_unknown_library_function_is_refused() -> None:
    """A function that is not known is named, with the launch."""
    with pytest.raises(SimulatorError, match=r"'computed'.*__nv_y0f\", which is not known here"):
        computed("libdevice.y0(a)", torch.ones(2))


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        pytest.param("ex2.approx.ftz.f32 $0, $1;", [2.0, 16.0], id="exp2"),
        pytest.param("lg2.approx.f32 $0, $1;", [0.0, 2.0], id="log2"),
        pytest.param("rcp.approx.ftz.f32 $0, $1;", [1.0, 0.25], id="reciprocal"),
        pytest.param("rsqrt.approx.f32 $0, $1;", [1.0, 0.5], id="rsqrt"),
        pytest.param("sqrt.rn.f32 $0, $1;", [1.0, 2.0], id="sqrt"),
        pytest.param("mul.f32 $0, $1, 0f40000000;", [2.0, 8.0], id="number in bits"),
        pytest.param("{ mul.f32 $0, $1, $1; add.f32 $0, $0, $1; }", [2.0, 20.0], id="two lines"),
        pytest.param(
            "{ .reg .f32 t; mov.f32 t, $1; sub.f32 $0, t, $1; }", [0.0, 0.0], id="register"
        ),
    ],
)
def test_assembly_of_one_number(line: str, expected: list[float]) -> None:
    """Lines of PTX that kernels write by hand compute what they do on a GPU."""
    found = computed(_assembly(line, "=f,f", "a"), torch.tensor([1.0, 4.0]))

    torch.testing.assert_close(found, torch.tensor(expected))


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        pytest.param("add.rn.f32 $0, $1, $2;", [3.0, 1.5], id="add"),
        pytest.param("div.full.f32 $0, $1, $2;", [0.5, -3.0], id="div"),
        pytest.param("max.f32 $0, $1, $2;", [2.0, 2.25], id="max"),
        pytest.param("min.f32 $0, $1, $2;", [1.0, -0.75], id="min"),
    ],
)
def test_assembly_of_two_numbers(line: str, expected: list[float]) -> None:
    """Operands of PTX are numbered in their order."""
    found = computed(
        _assembly(line, "=f,f,f", "a, b"), torch.tensor([1.0, 2.25]), torch.tensor([2.0, -0.75])
    )

    assert found.tolist() == expected


def test_assembly_converts_to_narrower_types() -> None:
    """Conversions give bits, of 16 for a half and of 8 in a pair for float8."""
    numbers = torch.tensor([1.5, -3.0])
    half = _assembly("cvt.rn.f16.f32 $0, $1;", "=h,r", "a", "int16")
    brain = _assembly("cvt.rn.bf16.f32 $0, $1;", "=h,r", "a", "int16")
    line = (
        "{ .reg .b16 p; cvt.rn.satfinite.e4m3x2.f32 p, $1, $1; cvt.u32.u16 $0, p; }"  # both halves
    )
    eighth = f"{_assembly(line, '=r,f', 'a', 'int32')}.to(tl.uint8)"

    for expression, dtype in (
        (half, torch.float16),
        (brain, torch.bfloat16),
        (eighth, torch.float8_e4m3fn),
    ):
        bits = torch.int16 if dtype.itemsize == 2 else torch.uint8
        found = computed(expression, numbers, dtype=bits)
        assert found.view(dtype).float().tolist() == [1.5, -3.0]


@pytest.mark.parametrize(
    ("line", "pack", "words"),
    [
        pytest.param("vote.sync.any.pred $0, $1;", 1, "'vote.sync.any.pred", id="instruction"),
        pytest.param("add.f32 $0, $1, lane;", 1, "'add.f32 .*lane'", id="register"),
        pytest.param("add.f32 $0, $1, $1;", 2, "2 elements at a time", id="packed"),
    ],
)
def test_unknown_assembly_is_refused(line: str, pack: int, words: str) -> None:
    """Lines of PTX that are not known are shown."""
    expression = _assembly(line, "=f,f", "a").replace("pack=1", f"pack={pack}")

    with pytest.raises(SimulatorError, match=f"'computed'.*{words}.*not known here"):
        computed(expression, torch.ones(2))
