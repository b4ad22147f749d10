from __future__ import annotations

import pytest
import torch

from backend_caps.runtime.chunk_sizes import chunk_lengths
from tests.relay.fake_streams import FakeModule, FakeStreams
from tests.runtime.chunk_stage import make_rank

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
    lengths = chunk_lengths(size, max_tokens)

    assert list(lengths) == expected


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
    stage = rank.stage(terms=(2e-6, 3e-4, 5e-3))

    sizes = rank.profiler(stage).profile(*LIMITS)

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
    stage = rank.stage(terms=(-1e-6, 1e-3, 1e-2))

    sizes = rank.profiler(stage).profile(*LIMITS)

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
