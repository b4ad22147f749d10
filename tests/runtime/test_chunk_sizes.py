from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend_caps.runtime.chunk_sizes import ChunkSample, ChunkSizes, ChunkTimeFit, fit_chunk_times
from backend_caps.runtime.errors import EngineError
from tests.property.strategies import law
from tests.runtime.memories import make_request


@st.composite
def _chunks(draw: st.DrawFn) -> ChunkSizes:
    """Draw a fit and limits, b below 0 too where the largest chunk still takes time."""
    granularity = draw(st.sampled_from([1, 3, 16, 64]))
    size = granularity * draw(st.integers(1, 200)) + draw(st.integers(0, granularity - 1))
    a = draw(st.floats(1e-12, 1e-3))
    b = draw(st.floats(-0.9 * a * size, 1e-2))
    return ChunkSizes(
        chunked_prefill_size=size, granularity=granularity, fit=ChunkTimeFit(a=a, b=b, c=0.1)
    )


def _added_s(chunks: ChunkSizes, prefix_len: int, num_tokens: int) -> Fraction:
    """Return f(h + x) - f(h) exactly."""
    assert chunks.fit is not None
    a, b = Fraction(chunks.fit.a), Fraction(chunks.fit.b)
    end = prefix_len + num_tokens
    return a * end**2 + b * end - a * prefix_len**2 - b * prefix_len


def _target_s(chunks: ChunkSizes) -> Fraction:
    return _added_s(chunks, 0, chunks.chunked_prefill_size)


@law
@given(chunks=_chunks(), prefix_len=st.integers(0, 1_000_000))
def test_chunk_is_the_largest_one_in_time(chunks: ChunkSizes, prefix_len: int) -> None:
    """It takes at most the first one's time, unless there is no smaller one; the next one more."""
    size = chunks.next_chunk(prefix_len)
    larger = size + chunks.granularity

    is_in_time = _added_s(chunks, prefix_len, size) <= _target_s(chunks)
    is_late = _added_s(chunks, prefix_len, larger) > _target_s(chunks)
    assert is_in_time or size == chunks.granularity
    assert is_late or larger > chunks.chunked_prefill_size


@pytest.mark.parametrize("b", [-1.0, 0.0, 1.0, 2.0])
@pytest.mark.parametrize("a", [1.0, 1.5, 2.0])
@pytest.mark.parametrize("granularity", [1, 2])
def test_chunk_is_what_a_search_finds(a: float, b: float, granularity: int) -> None:
    """Also where a chunk takes exactly the first one's time, it is the largest one in time."""
    for size, prefix_len in product(range(2, 14), range(30)):
        chunks = ChunkSizes(
            chunked_prefill_size=size, granularity=granularity, fit=ChunkTimeFit(a=a, b=b, c=0.0)
        )
        sizes = range(granularity, size + 1, granularity)
        target_s = _target_s(chunks)

        in_time = [own for own in sizes if _added_s(chunks, prefix_len, own) <= target_s]

        assert chunks.next_chunk(prefix_len) == max(in_time, default=granularity)


FITTED = ChunkSizes(chunked_prefill_size=64, granularity=4, fit=ChunkTimeFit(a=1.0, b=0.0, c=0.0))


@pytest.mark.parametrize(
    ("chunks", "has_row", "expected"),
    [
        # (64 + 26.5)**2 - 64**2 = 64**2
        pytest.param(FITTED, True, 24, id="after its prefix"),
        pytest.param(FITTED, False, 64, id="retracted, so from the beginning"),
        pytest.param(replace(FITTED, fit=None, off="because"), True, 64, id="fixed"),
    ],
)
def test_chunk_of_a_request_follows_what_is_prefilled(
    chunks: ChunkSizes, expected: int, *, has_row: bool
) -> None:
    """A request whose prompt has begun gets the chunk after its prefix, where there is a fit."""
    request = make_request(prompt=range(200))
    request.enter(row=3, generation=1)
    request.num_prefilled = 64
    if not has_row:
        request.leave()

    assert chunks.chunk_size(request) == expected


@pytest.mark.parametrize(
    ("size", "granularity"),
    [
        pytest.param(8, 16, id="a page above the chunk"),
        pytest.param(8, 0, id="a granularity of none"),
        pytest.param(0, 0, id="a chunk of none"),
    ],
)
def test_limits_without_a_size_are_refused(size: int, granularity: int) -> None:
    """Limits that no chunk size is within are an error with both numbers."""
    with pytest.raises(EngineError) as caught:
        ChunkSizes(chunked_prefill_size=size, granularity=granularity)

    assert caught.value.code == "chunk-sizes"
    assert str(caught.value) == (
        f"chunks of at most {size} tokens were asked for in multiples of {granularity}; "
        "1 <= granularity <= chunked_prefill_size was expected. Give a larger "
        "--chunked-prefill-size, or a smaller granularity."
    )


_SHARES = st.floats(0.01, 1)


def _samples(sizes: Sequence[int], a: float, b: float, c: float) -> list[ChunkSample]:
    """Time chunks by a quadratic."""
    return [ChunkSample(num_tokens=size, time_s=(a * size + b) * size + c) for size in sizes]


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
    """Times that lie on no quadratic are fitted as NumPy fits them."""
    draw = random.Random(seed)  # noqa: S311 - noise
    samples = [
        ChunkSample(num_tokens=size, time_s=3e-9 * size**2 + 1e-5 * size + draw.uniform(0, 0.02))
        for size in range(80, 10241, 80)
    ]

    fit = fit_chunk_times(samples)

    assert isinstance(fit, ChunkTimeFit)
    sizes, times = [own.num_tokens for own in samples], [own.time_s for own in samples]
    assert [fit.a, fit.b, fit.c] == pytest.approx(np.polyfit(sizes, times, 2), rel=1e-9)


RISES = (1e-6, 1e-4, 1e-3)
TOO_FEW = (
    "chunk sizes were timed, and a fit takes 8. Make the KV cache, the context or "
    "--chunked-prefill-size larger."
)
OF_TEN, UPWARDS = "the fit over 10 chunks of 10 to 100 tokens has", "time has to bend upwards"


@pytest.mark.parametrize(
    ("sizes", "terms", "reason"),
    [
        (range(10, 80, 10), RISES, f"7 {TOO_FEW}"),
        ([10, 20, 30] * 4, RISES, f"3 {TOO_FEW}"),
        (
            range(10, 110, 10),
            (-1e-6, 1e-3, 1e-3),
            f"{OF_TEN} a=-1e-06, b=0.001, c=0.001; a > 0 was expected: {UPWARDS}",
        ),
        (
            range(10, 110, 10),
            (0.0, -1e-4, 1e-2),
            f"{OF_TEN} a=-8.63e-07, b=0, c=0.00782; a > 0 was expected: {UPWARDS}",
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
