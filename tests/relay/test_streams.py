from collections.abc import Callable
from typing import cast
from unittest.mock import patch

import pytest
import torch

from backend_caps.capability.vocabulary import HostSeqLens
from backend_caps.relay import DeviceStreams, DeviceTraits, FutureMap, RelayError
from backend_caps.relay.host_lengths import MAX_COLUMN_ROWS
from backend_caps.relay.streams import GraphLike
from backend_caps.simulator import simulate
from tests.relay import batches
from tests.relay.fake_streams import FakeModule, FakeStream, FakeStreams, StreamOperators

LENS, PAYLOAD = batches.numbers([30]), batches.payload([33])

COLUMN = [
    "schedule waits for publish event",
    "schedule: index_select",
    "copy waits for publish event",
    "on copy",
    "copy: copy_ beside the host",
    "back on schedule",
    "host waits for copy",
    "schedule: index_select",
]
ROWS = [
    "schedule waits for publish event",
    "schedule: index_select",
    "schedule: slice",
    "schedule: slice",
    "schedule: slice",
    "schedule: slice",
    "schedule: copy_",
    "on copy",
    "copy: copy_ beside the host",
    "copy waits for publish event",
    "copy: index_select",
    "copy: copy_ beside the host",
    "back on schedule",
    "host waits for copy",
    "schedule: clone",
]
PUBLISH = ["schedule: scatter_", "publish event recorded on schedule"]
STASH = ["schedule: scatter_", *["schedule: index_copy_"] * 3]
RESOLVE = ["schedule: index_select"] * 4
SIZES = (MAX_COLUMN_ROWS, MAX_COLUMN_ROWS + 1)
IN_BOTH_WAYS = pytest.mark.parametrize("pool_size", SIZES, ids=["column", "rows"])


@pytest.mark.parametrize(("pool_size", "expected"), [*zip(SIZES, (COLUMN, ROWS), strict=True)])
def test_copy_stream_waits_for_the_publish_event_alone(pool_size: int, expected: list[str]) -> None:
    """The private stream waits for the publish, and the host for the private stream: no more."""
    module = FakeModule()
    fm = batches.make_map(pool_size=pool_size, streams=FakeStreams(module))
    batch = batches.spec_batch([3])
    fm.publish(batch.req_pool_indices, batches.numbers([30]))
    module.log.clear()

    with StreamOperators(module):
        fm.resolve_seq_lens_cpu(batch)

    assert module.log == expected


@IN_BOTH_WAYS
def test_mirror_owns_its_memory(pool_size: int) -> None:
    """The next step's copy into pinned memory does not change the mirror of this one."""
    fm = batches.make_map(pool_size=pool_size, streams=FakeStreams(FakeModule()))
    batch, later = batches.spec_batch([3]), batches.spec_batch([3])
    fm.publish(batch.req_pool_indices, batches.numbers([30]))
    fm.resolve_seq_lens_cpu(batch)

    fm.publish(batch.req_pool_indices, batches.numbers([31]))
    fm.resolve_seq_lens_cpu(later)

    assert batches.listed(batch.seq_lens_cpu) == [30]


@IN_BOTH_WAYS
def test_mirror_is_indexed_by_the_hosts_rows(pool_size: int) -> None:
    """The copy stream never reads the device's index, for which it does not wait."""
    fm = batches.make_map(pool_size=pool_size, streams=FakeStreams(FakeModule()))
    batch = batches.spec_batch([3, 5])
    fm.publish(batch.req_pool_indices, batches.numbers([30, 50]))
    batch.req_pool_indices = batches.numbers([0, 0])

    fm.resolve_seq_lens_cpu(batch)

    assert batches.listed(batch.seq_lens_cpu) == [30, 50]


@IN_BOTH_WAYS
def test_idle_rank_waits_for_nothing_on_the_host(pool_size: int) -> None:
    """A batch without rows copies nothing, so the host does not wait."""
    module = FakeModule()
    fm = batches.make_map(pool_size=pool_size, streams=FakeStreams(module))
    batch = batches.spec_batch([])
    module.log.clear()

    with StreamOperators(module):
        fm.resolve_seq_lens_cpu(batch)

    assert module.log == [*COLUMN[:2], "schedule: new_empty"]
    assert batch.seq_lens_sum == 0


@pytest.mark.parametrize("mode", [HostSeqLens.NONE, HostSeqLens.UPPER_BOUND])
def test_without_a_mirror_the_host_never_waits(mode: HostSeqLens) -> None:
    """It orders streams, runs an operator a field, asks the device nothing, and pins nothing."""
    module = FakeModule()
    streams = FakeStreams(module)
    fm = batches.make_map(host_seq_lens=mode, streams=streams)
    batch = batches.spec_batch([3])
    module.log.clear()

    with StreamOperators(module):
        fm.publish(batch.req_pool_indices, LENS)
        fm.stash(batch.req_pool_indices, PAYLOAD)
        fm.resolve_seq_lens_cpu(batch)
        fm.resolve_future(batch)

    expected = [*PUBLISH, *STASH, *COLUMN[:2]]
    counted = module.log[len(expected) : -len(RESOLVE)]  # of the bound, on the host
    assert [*module.log[: len(expected)], *module.log[-len(RESOLVE) :]] == [*expected, *RESOLVE]
    assert [line for line in counted if "wait" in line] == []
    assert {"schedule: _local_scalar_dense", "schedule: _to_copy"}.isdisjoint(counted)
    assert (mode is HostSeqLens.NONE) is (counted == [])
    assert (fm.copy_stream, module.drawn, streams.num_pinned) == (None, 0, 0)


def _publish(fm: FutureMap, batch: batches.Batch) -> None:
    fm.publish(batch.req_pool_indices, LENS)


def _stash(fm: FutureMap, batch: batches.Batch) -> None:
    fm.stash(batch.req_pool_indices, PAYLOAD)


@pytest.mark.parametrize(
    ("call", "make_batch", "expected"),
    [
        pytest.param(_publish, batches.spec_batch, PUBLISH, id="publish"),
        pytest.param(_stash, batches.spec_batch, STASH, id="stash"),
        pytest.param(FutureMap.resolve_future, batches.spec_batch, RESOLVE, id="resolve_future"),
        # Which ids are pending is known on the host, so nobody looks at them.
        pytest.param(
            FutureMap.resolve_future, batches.pending_batch, RESOLVE[:1], id="pending ids"
        ),
    ],
)
def test_work_goes_to_the_current_stream(
    call: Callable[[FutureMap, batches.Batch], None],
    make_batch: Callable[[list[int]], batches.Batch],
    expected: list[str],
) -> None:
    """A producer writes on its caller's stream, and the publish event follows the write."""
    module = FakeModule()
    fm, batch = batches.make_map(streams=FakeStreams(module)), make_batch([3])
    module.log.clear()

    with StreamOperators(module):
        call(fm, batch)

    assert module.log == expected


def test_staged_ids_cross_beside_the_host() -> None:
    """Prompt tokens are copied on the caller's stream, without the host waiting for it."""
    module = FakeModule()
    fm = batches.make_map("meta", speculative=False, streams=FakeStreams(module, device="meta"))
    batch = batches.prefill_batch([3], [1, 2])
    batch.input_ids_pending = True
    module.log.clear()

    with StreamOperators(module):
        fm.resolve_future(batch)

    assert module.log == ["schedule: _to_copy beside the host"]
    assert not batch.input_ids_pending


def test_streams_of_another_device_are_refused() -> None:
    """Events of one device order nothing on another."""
    with pytest.raises(RelayError, match="no traits for device 'meta'; declared: cpu"):
        batches.make_map("meta", streams=FakeStreams(FakeModule()))


@pytest.mark.parametrize("pool_size", [4, MAX_COLUMN_ROWS + 1])
def test_padding_may_be_wider_than_the_pool(pool_size: int) -> None:
    """A batch that is padded past the pool's size repeats row 0, and gets its mirror."""
    fm = batches.make_map(pool_size=pool_size, streams=FakeStreams(FakeModule()))
    batch = batches.spec_batch([3, *[0] * (MAX_COLUMN_ROWS + 8)])
    fm.publish(batches.numbers([3]), batches.numbers([30]))

    fm.resolve_seq_lens_cpu(batch)

    assert batches.listed(batch.seq_lens_cpu) == batch.seq_lens.tolist()


@pytest.mark.parametrize("mode", list(HostSeqLens))
@pytest.mark.parametrize("debug", [False, True])
def test_map_made_in_inference_mode_is_written_outside(mode: HostSeqLens, *, debug: bool) -> None:
    """The buffers belong to no mode of autograd, whatever mode the map was made in."""
    with torch.inference_mode():
        fm = batches.make_map(host_seq_lens=mode, streams=FakeStreams(FakeModule()), debug=debug)
    batch = batches.spec_batch([3])

    fm.commit_lengths(batches.numbers([3]), batches.numbers([30]), batches.numbers([0]))
    fm.publish(batch.req_pool_indices, batches.numbers([30]))
    fm.stash(batch.req_pool_indices, batches.payload([33]))
    fm.resolve_seq_lens_cpu(batch)

    assert batch.seq_lens.tolist() == [30]


def test_plain_map_records_no_event() -> None:
    """Plain decode has no mirror of its own, so its publish orders nothing."""
    module = FakeModule()
    fm = batches.make_map(speculative=False, streams=FakeStreams(module))
    module.log.clear()

    fm.publish(batches.numbers([3]), batches.numbers([30]))

    assert module.log == []


def test_bootstrap_comes_between_two_forwards() -> None:
    """A producer on another stream writes after the whole forward, and before the next one."""
    module = FakeModule()
    fm = batches.make_map(streams=FakeStreams(module))
    forward, batch = FakeStream("forward", module.log), batches.spec_batch([3])
    module.log.clear()

    with StreamOperators(module):
        fm.bootstrap(batch.req_pool_indices, LENS, PAYLOAD, forward_stream=forward)

    writes = [*PUBLISH, *STASH]
    assert module.log == ["schedule waits for forward", *writes, "forward waits for schedule"]


def test_bootstrap_publishes_and_stashes(device: torch.device) -> None:
    """What a bootstrap brings is read as if a forward had made it."""
    fm = batches.make_map(device)
    batch = batches.spec_batch([3], device)
    forward = fm.streams.current_stream()

    rows, seq_lens = batch.req_pool_indices, batches.numbers([30], device)
    fm.bootstrap(rows, seq_lens, batches.payload([33], device), forward_stream=forward)
    fm.resolve_seq_lens_cpu(batch)
    fm.resolve_future(batch)

    assert batch.seq_lens.tolist() == [30]
    assert batch.spec_info is not None
    assert batches.listed(batch.spec_info.bonus_tokens) == [33]


def test_private_stream_is_none_of_the_streams_in_use() -> None:
    """The pool hands handles out again; the current and the taken ones are drawn past."""
    module = FakeModule(("schedule", "forward", "copy"))
    taken = (FakeStream("forward", module.log),)

    fm = batches.make_map(streams=FakeStreams(module, taken))

    assert fm.copy_stream == FakeStream("copy", [])


def test_stream_pool_without_a_free_handle_is_an_error() -> None:
    """A pool that hands out nothing but streams in use is named, instead of aliased."""
    module = FakeModule(("schedule",))

    with pytest.raises(RelayError, match="64 streams drawn from 'cpu' were all handles"):
        batches.make_map(streams=FakeStreams(module))


def test_map_waits_for_its_own_buffers_once() -> None:
    """The columns are whole before any stream can reach them."""
    module = FakeModule()

    batches.make_map(streams=FakeStreams(module))

    assert module.log == ["host waits for device cpu"]


def test_mixed_rows_are_kept_alive() -> None:
    """The scheduler drops the mixed rows' index while the gather reads it: its memory is held."""
    streams = FakeStreams(FakeModule())
    fm = batches.make_map(speculative=False, streams=streams)
    batch = batches.prefill_batch([3], [1], [3])
    running = batch.mix_running_indices

    fm.resolve_future(batch)

    assert [kept is running for kept in streams.kept] == [True]


@pytest.mark.parametrize(("has_streams", "num_calls"), [(True, 1), (False, 0)])
def test_keep_alive_records_where_there_are_streams(*, has_streams: bool, num_calls: int) -> None:
    """A tensor's use is recorded with the allocator only where streams can outlive it."""
    traits = DeviceTraits(has_streams=has_streams, has_pinned_memory=False)
    streams = DeviceStreams("cpu", traits)

    with patch.object(torch.Tensor, "record_stream") as recorded:
        streams.keep_alive(batches.numbers([1]))

    assert recorded.call_count == num_calls


def test_streams_without_pinned_memory_copy_blocking() -> None:
    """A device whose host copies cannot run beside the host needs no stream for them."""
    traits = DeviceTraits(has_streams=True, has_pinned_memory=False)
    fm = batches.make_map(streams=DeviceStreams("cpu", traits))
    batch = batches.spec_batch([3])
    fm.publish(batch.req_pool_indices, batches.numbers([30]))

    fm.resolve_seq_lens_cpu(batch)

    assert fm.copy_stream is None
    assert batch.seq_lens_sum == 30


def test_memory_that_is_not_pinned_is_refused() -> None:
    """Where another device is registered, torch calls CUDA's pinned memory pageable."""
    with simulate("eager"):
        streams = _PinnedForAnother("sim")

        with pytest.raises(RelayError, match=r"pins memory for 'sim'.*its own") as caught:
            streams.empty_pinned(4)

    assert caught.value.code == "not-pinned"


class _PinnedForAnother(DeviceStreams):
    def is_pinned(self, tensor: torch.Tensor) -> bool:
        return not tensor.is_pinned()


def test_pinned_memory_is_pinned(device: torch.device) -> None:
    """Staging memory is pinned, or there is an error: pageable memory would block unseen."""
    streams = DeviceStreams(device)

    if torch.cuda.is_available():
        assert streams.is_pinned(streams.empty_pinned(4))
    else:
        with pytest.raises(RuntimeError, match=r"(?i)pin"):
            streams.empty_pinned(4)


class _EndsFirst:
    """A capture as torch's: where it cannot end, the stream is not given back."""

    def __init__(self, module: FakeModule, stream: FakeStream, fails: Exception | None) -> None:
        self._module, self._stream, self._fails = module, stream, fails

    def __enter__(self) -> None:
        self._before, self._module.current = self._module.current, self._stream

    def __exit__(self, *raised: object) -> None:
        if self._fails is not None:
            raise self._fails
        self._module.current = self._before


def _capture(module: FakeModule, fails: Exception | None, block: Callable[[], object]) -> None:
    vars(module)["graph"] = lambda _graph, *, pool, stream: _EndsFirst(module, stream, fails)  # noqa: ARG005
    streams = FakeStreams(module)
    with streams.capturing(cast("GraphLike", object()), (0, 0), streams.private_stream()):
        assert module.current.name == "copy"
        block()


def _asks() -> None:
    raise RuntimeError("the host asked for a value")


@pytest.mark.parametrize(
    ("fails", "block", "told"),
    [
        (None, _asks, "the host asked"),
        (RuntimeError("capture failed"), _asks, "the host asked"),
        (RuntimeError("capture failed"), int, "capture failed"),
    ],
)
def test_capture_that_fails_says_why_and_gives_the_stream_back(
    fails: Exception | None, block: Callable[[], object], told: str
) -> None:
    """What the captured code raised goes up, and not that the capture then could not end."""
    module = FakeModule()

    with pytest.raises(RuntimeError, match=told):
        _capture(module, fails, block)

    assert module.current.name == "schedule"


def test_capture_gives_the_stream_back() -> None:
    """Behind a capture work goes where it went."""
    module = FakeModule()

    _capture(module, None, int)

    assert module.current.name == "schedule"
