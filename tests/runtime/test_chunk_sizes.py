from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from backend_caps.runtime.chunk_sizes import (
    ChunkSample,
    ChunkSizes,
    ChunkTimeFit,
    chunk_lengths,
    fit_chunk_times,
)
from backend_caps.runtime.errors import EngineError
from tests.property.strategies import law
from tests.relay.fake_streams import FakeModule, FakeStreams
from tests.runtime.chunk_stage import make_rank
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

    fit = fit_chunk_times(_samples(range(step, longest + 1, step), a, b, c))

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
    assert fit_chunk_times(_samples(sizes, *terms)) == reason


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


LIMITS = (64, 4)


@pytest.mark.parametrize(
    ("size", "max_tokens", "expected"),
    [
        pytest.param(8, 1000, [10, 9, 8, 7, 6, 5, 4, 3, 2, 1], id="every size"),
        pytest.param(8192, 100_000, list(range(10240, 0, -80)), id="128 sizes"),
        pytest.param(8192, 300, list(range(300, 0, -3)), id="little room"),
        pytest.param(8192, 0, [], id="no room"),
    ],
)
def test_chunk_lengths_step_down_from_a_quarter_above(
    size: int, max_tokens: int, expected: list[int]
) -> None:
    """Sizes step down from 1.25 times the largest chunk, or from what there is room for."""
    assert list(chunk_lengths(size, max_tokens)) == expected


@pytest.mark.parametrize(
    ("max_context_len", "num_pages", "expected"),
    [pytest.param(50, 256, 50, id="the context"), pytest.param(512, 9, 36, id="free pages")],
)
def test_max_tokens_are_what_the_pools_hold(
    max_context_len: int, num_pages: int, expected: int
) -> None:
    """The longest prompt is bounded by the context and by the free pages."""
    rank = make_rank(max_context_len=max_context_len, num_pages=num_pages)

    assert rank.profiler(rank.stage()).max_tokens == expected


def test_profile_fits_what_the_stage_takes() -> None:
    """The fit of a stage that takes quadratic times has its terms, the slow first forward aside."""
    rank = make_rank()

    sizes = rank.profiler(rank.stage(terms=(2e-6, 3e-4, 5e-3))).profile(*LIMITS)

    assert sizes.fit is not None
    assert sizes.fit.a == pytest.approx(2e-6)
    assert sizes.fit.b == pytest.approx(3e-4)


def test_profile_forwards_store_into_pages_of_their_own() -> None:
    """A timed chunk leaves the keys of requests that are there alone."""
    rank = make_rank()
    row, _ = rank.memory.rows.alloc()
    rank.memory.grow([row], [8])
    own = rank.memory.slots_of(torch.tensor([row]), torch.arange(8))
    keys = rank.kv_pool.get_key_buffer(0)
    keys[own] = -7.0

    rank.profiler(rank.stage()).time_chunk(70)

    assert set(keys[own].flatten().tolist()) == {-7.0}
    assert keys.count_nonzero() > 70


def test_profile_that_fails_says_so() -> None:
    """A forward that raised keeps sizes fixed, and its error is the reason."""
    rank = make_rank()

    sizes = rank.profiler(rank.stage(failing_forward=2)).profile(*LIMITS)

    reason = "the forward of 78 tokens raised BrokenKernelError: no kernel image"
    assert (sizes.fit, sizes.off) == (None, reason)


def test_interrupted_profile_gives_everything_back() -> None:
    """What is no failure of the forward goes on to the caller, and frees the pools on its way."""
    rank = make_rank()
    before = rank.num_free()
    stage = rank.stage()

    def interrupt() -> float:
        if stage.seen:
            raise KeyboardInterrupt
        return 0.0

    with pytest.raises(KeyboardInterrupt):
        rank.profiler(stage, interrupt).profile(*LIMITS)
    assert rank.num_free() == before


def test_profile_without_room_keeps_sizes_fixed() -> None:
    """Where eight sizes and the warm-up do not fit, sizes stay fixed."""
    rank = make_rank(page_size=1, num_pages=8)

    sizes = rank.profiler(rank.stage()).profile(*LIMITS)

    assert sizes.fit is None
    assert "chunk sizes were timed, and a fit takes 8" in sizes.off


def test_profile_of_a_stage_that_bends_down_keeps_sizes_fixed() -> None:
    """A stage that is faster a token the longer the chunk needs no smaller chunks."""
    rank = make_rank()

    sizes = rank.profiler(rank.stage(terms=(-1e-6, 1e-3, 1e-2))).profile(*LIMITS)

    assert sizes.fit is None
    assert sizes.off.endswith("time has to bend upwards")


def test_time_is_read_when_the_device_is_done() -> None:
    """The clock is read right after the host waited for the device, before and after a forward."""
    module = FakeModule(("schedule-1", "forward", "host-copy"))
    rank = make_rank(streams=FakeStreams(module))
    stage = rank.stage()

    def clock() -> float:
        module.log.append("clock")
        return 0.0

    rank.profiler(stage, clock).time_chunk(8)

    before = [module.log[at - 1] for at, line in enumerate(module.log) if line == "clock"]
    assert before == ["host waits for device cpu"] * 2


def test_batch_is_made_on_the_schedule_stream() -> None:
    """The batch is made where batches are made, and the forward runs where forwards run."""
    module = FakeModule(("schedule-1", "forward", "host-copy"))
    rank = make_rank(streams=FakeStreams(module))

    rank.profiler(rank.stage()).time_chunk(8)

    orders = [line for line in module.log if line.startswith(("on ", "forward waits"))]
    assert orders == ["on schedule-1", "on forward"]


def test_next_batch_waits_for_a_forward_that_raised() -> None:
    """What is scheduled after a failure comes after whatever the forward had enqueued."""
    module = FakeModule(("schedule-1", "forward", "host-copy"))
    rank = make_rank(streams=FakeStreams(module))

    rank.profiler(rank.stage(failing_forward=0)).profile(*LIMITS)

    assert module.log[-1] == "schedule-1 waits for forward"
