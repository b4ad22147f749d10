from __future__ import annotations

from fractions import Fraction
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend_caps.runtime.chunk_sizes import ChunkSizes, ChunkTimeFit
from backend_caps.runtime.errors import EngineError
from tests.property.strategies import law
from tests.runtime.chunk_stage import make_request


def _sizes(size: int, granularity: int, a: float, b: float) -> ChunkSizes:
    fit = ChunkTimeFit(a=a, b=b, c=0.1)
    return ChunkSizes(chunked_prefill_size=size, granularity=granularity, fit=fit)


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
def test_chunk_takes_no_longer_than_the_first(chunks: ChunkSizes, prefix_len: int) -> None:
    """A chunk takes at most the first one's time, unless it is the smallest that there is."""
    size = chunks.next_chunk(prefix_len)

    is_in_time = _added_s(chunks, prefix_len, size) <= _target_s(chunks)
    assert is_in_time or size == chunks.granularity


@law
@given(chunks=_chunks(), prefix_len=st.integers(0, 1_000_000))
def test_chunk_is_the_largest_one_in_time(chunks: ChunkSizes, prefix_len: int) -> None:
    """The next larger chunk takes longer than the first one, or is above the limit."""
    larger = chunks.next_chunk(prefix_len) + chunks.granularity

    is_late = _added_s(chunks, prefix_len, larger) > _target_s(chunks)
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


@law
@given(chunks=_chunks(), prefix_lens=st.tuples(*[st.integers(0, 1_000_000)] * 2))
def test_chunk_never_grows_with_the_prefix(
    chunks: ChunkSizes, prefix_lens: tuple[int, int]
) -> None:
    """A chunk after a longer prefix is no larger."""
    shorter, longer = sorted(prefix_lens)

    assert chunks.next_chunk(longer) <= chunks.next_chunk(shorter)


@law
@given(chunks=_chunks(), prefix_len=st.integers(0, 1_000_000))
def test_chunk_is_within_the_limits(chunks: ChunkSizes, prefix_len: int) -> None:
    """A chunk is a positive multiple of the granularity, and no more than the largest chunk."""
    size = chunks.next_chunk(prefix_len)

    assert size % chunks.granularity == 0
    assert 0 < size <= chunks.chunked_prefill_size


@law
@given(chunks=_chunks())
def test_first_chunk_is_the_largest(chunks: ChunkSizes) -> None:
    """Without a prefix a chunk has all the tokens that the limits allow."""
    first = chunks.next_chunk(0)

    assert first == chunks.chunked_prefill_size // chunks.granularity * chunks.granularity


def test_chunks_of_a_prompt_take_equal_times() -> None:
    """A long prompt is cut so that every chunk but the last takes the first one's time."""
    fit = ChunkTimeFit(a=1e-8, b=2e-5, c=0.01)
    chunks = ChunkSizes(chunked_prefill_size=8192, granularity=64, fit=fit)

    prefix_len, times = 0, []
    while prefix_len < 100_000:
        size = chunks.next_chunk(prefix_len)
        times.append(fit.time_s(prefix_len + size) - fit.time_s(prefix_len))
        prefix_len += size

    assert times == pytest.approx([times[0]] * len(times), rel=0.2)


def test_chunk_of_a_request_follows_what_is_prefilled() -> None:
    """A request whose prompt has begun gets the chunk after its prefix."""
    chunks = ChunkSizes(
        chunked_prefill_size=64, granularity=4, fit=ChunkTimeFit(a=1.0, b=0.0, c=0.0)
    )
    request = make_request(tuple(range(200)))
    request.enter(row=3, generation=1)
    request.num_prefilled = 64

    assert chunks.chunk_size(request) == 24  # (64 + 26.5)**2 - 64**2 = 64**2


def test_chunk_of_a_request_without_a_row_is_the_largest() -> None:
    """A request that was retracted begins its prompt again, with the largest chunk."""
    chunks = ChunkSizes(
        chunked_prefill_size=64, granularity=4, fit=ChunkTimeFit(a=1.0, b=0.0, c=0.0)
    )
    request = make_request(tuple(range(200)))
    request.enter(row=3, generation=1)
    request.num_prefilled = 64
    request.leave()

    assert chunks.chunk_size(request) == 64


def test_fixed_chunk_is_the_largest_whatever_is_prefilled() -> None:
    """With dynamic chunks off, every chunk may have `chunked_prefill_size` tokens."""
    chunks = ChunkSizes(chunked_prefill_size=62, granularity=4, off="because")
    request = make_request(tuple(range(200)))
    request.enter(row=3, generation=1)
    request.num_prefilled = 62

    assert chunks.chunk_size(request) == 62


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
