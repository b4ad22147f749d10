from __future__ import annotations

import random
from collections.abc import Sequence
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend_caps.runtime.chunk_sizes import ChunkSample, ChunkTimeFit, fit_chunk_times
from tests.property.strategies import law

_Row = tuple[Fraction, Fraction, Fraction]
_SHARES = st.floats(0.01, 1)


def _samples(sizes: Sequence[int], a: float, b: float, c: float) -> list[ChunkSample]:
    """Time chunks by a quadratic."""
    return [ChunkSample(num_tokens=size, time_s=(a * size + b) * size + c) for size in sizes]


def _determinant(rows: Sequence[_Row]) -> Fraction:
    (a, b, c), (d, e, f), (g, h, i) = rows
    return a * (e * i - f * h) - b * (d * i - f * g) + c * (d * h - e * g)


def _exact_least_squares(samples: Sequence[ChunkSample]) -> list[float]:
    """Solve the normal equations in fractions, by Cramer's rule."""
    powers = [(own.num_tokens**2, own.num_tokens, 1) for own in samples]
    times = [Fraction(own.time_s) for own in samples]
    left = [[Fraction(sum(p[i] * p[j] for p in powers)) for j in range(3)] for i in range(3)]
    pairs = list(zip(powers, times, strict=True))
    right = [Fraction(sum(p[i] * t for p, t in pairs)) for i in range(3)]
    solved: list[float] = []
    for column in range(3):
        rows = [[*row[:column], right[i], *row[column + 1 :]] for i, row in enumerate(left)]
        replaced = _determinant([(row[0], row[1], row[2]) for row in rows])
        whole = _determinant([(row[0], row[1], row[2]) for row in left])
        solved.append(float(replaced / whole))
    return solved


@law
@given(
    shares=st.tuples(_SHARES, _SHARES, _SHARES),
    step=st.integers(1, 4000),
    num_sizes=st.integers(8, 128),
)
def test_fit_finds_the_quadratic(
    shares: tuple[float, float, float], step: int, num_sizes: int
) -> None:
    """Times that lie on a quadratic are fitted by it, for chunks up to half a million tokens."""
    longest = step * num_sizes
    a, b, c = shares[0] / longest**2, shares[1] / longest, shares[2]
    samples = _samples(range(step, longest + 1, step), a, b, c)

    fit = fit_chunk_times(samples)

    assert isinstance(fit, ChunkTimeFit)
    assert (fit.a, fit.b, fit.c) == pytest.approx((a, b, c), rel=1e-6)


@pytest.mark.parametrize("seed", range(5))
def test_fit_of_noisy_times_is_the_least_squares_one(seed: int) -> None:
    """Times that lie on no quadratic are fitted as exact normal equations say."""
    draw = random.Random(seed)  # noqa: S311 - noise
    samples = [
        ChunkSample(num_tokens=size, time_s=3e-9 * size**2 + 1e-5 * size + draw.uniform(0, 0.02))
        for size in range(80, 10241, 80)
    ]

    fit = fit_chunk_times(samples)

    assert isinstance(fit, ChunkTimeFit)
    assert [fit.a, fit.b, fit.c] == pytest.approx(_exact_least_squares(samples), rel=1e-9)


def test_fit_does_not_ask_for_an_order() -> None:
    """The order in which chunks were timed does not matter."""
    samples = _samples(range(10, 130, 10), 1e-6, 1e-4, 1e-3)

    fit = fit_chunk_times(samples)
    backwards = fit_chunk_times(samples[::-1])

    assert isinstance(fit, ChunkTimeFit)
    assert isinstance(backwards, ChunkTimeFit)
    assert backwards.a == pytest.approx(fit.a)


def test_fit_time_is_the_quadratic() -> None:
    """The time of a chunk by the fit is a * l**2 + b * l + c."""
    fit = ChunkTimeFit(a=2.0, b=3.0, c=5.0)

    assert fit.time_s(10) == 235.0


@pytest.mark.parametrize(
    ("sizes", "terms", "reason"),
    [
        pytest.param(
            range(10, 80, 10),
            (1e-6, 1e-4, 1e-3),
            "7 chunk sizes were timed, and a fit takes 8. Make the KV cache, the context or "
            "--chunked-prefill-size larger.",
            id="seven sizes",
        ),
        pytest.param(
            [10, 20, 30] * 4,
            (1e-6, 1e-4, 1e-3),
            "3 chunk sizes were timed, and a fit takes 8. Make the KV cache, the context or "
            "--chunked-prefill-size larger.",
            id="three sizes four times",
        ),
        pytest.param(
            range(10, 110, 10),
            (-1e-6, 1e-3, 1e-3),
            "the fit over 10 chunks of 10 to 100 tokens has a=-1e-06, b=0.001, c=0.001; a > 0 was "
            "expected: time has to bend upwards",
            id="bends down",
        ),
        pytest.param(
            range(10, 110, 10),
            (0.0, -1e-4, 1e-2),
            "the fit over 10 chunks of 10 to 100 tokens has a=-8.63e-07, b=0, c=0.00782; a > 0 "
            "was expected: time has to bend upwards",
            id="falls",
        ),
    ],
)
def test_fit_that_cannot_be_used_has_a_reason(
    sizes: Sequence[int], terms: tuple[float, float, float], reason: str
) -> None:
    """Times that no useful quadratic fits are answered with the reason and its numbers."""
    fit = fit_chunk_times(_samples(sizes, *terms))

    assert fit == reason


def test_fit_of_times_that_fall_first_has_no_linear_term() -> None:
    """Where the best quadratic falls at its start, the best one that rises throughout is taken."""
    fit = fit_chunk_times(_samples(range(10, 1010, 10), 1e-6, -1e-4, 1e-2))

    assert isinstance(fit, ChunkTimeFit)
    assert (fit.a > 0, fit.b, fit.time_s(900) > fit.time_s(10)) == (True, 0.0, True)


@pytest.mark.parametrize("b", [0.0, 1e-4])
@pytest.mark.parametrize("num_sizes", range(8, 129, 20))
def test_fit_of_a_line_is_not_convex(b: float, num_sizes: int) -> None:
    """Where time is a line, what rounding bends it by gives no reason to cut chunks smaller."""
    fit = fit_chunk_times(_samples(range(7, 7 + 11 * num_sizes, 11), 0.0, b, 0.5))

    assert isinstance(fit, str)
    assert fit.endswith("time has to bend upwards")
