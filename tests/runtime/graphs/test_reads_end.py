from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from backend_caps import BatchKind, SharedReadsEnd
from backend_caps.relay import DeviceStreams
from backend_caps.runtime.attention import AttentionBackend
from backend_caps.runtime.graphs.runner import Computed
from backend_caps.simulator import Schedule, simulate, systematic_schedules
from tests.runtime.graphs.rig import BUCKETS, SIMULATED, Requests, Rig, Site, padded
from tests.runtime.graphs.spies import CopiedTable

SINGLE, UNIFORM, MIXED = BatchKind
PRE, IN, POST, UNKNOWN = SharedReadsEnd
THREE: Requests = ((4, 1), (0, 1), (9, 1))
Build = Callable[[Site], AttentionBackend]
TRUE_OF = [
    pytest.param(CopiedTable, PRE, id="pre-replay, of a backend that copies"),
    pytest.param(padded, IN, id="in-replay"),
    pytest.param(padded, POST, id="post-replay"),
]


def rig_of(
    build: Build, reads_end: SharedReadsEnd, *, external: bool = True, in_halves: bool = False
) -> Rig:
    """Make a rig on the simulated device, with or without external events."""
    streams = DeviceStreams("sim", replace(SIMULATED, has_external_events=external))
    buckets = BUCKETS[SINGLE]
    return Rig(streams, buckets, build=build, reads_end=reads_end, in_halves=in_halves)


def overwritten(rig: Rig, replayed: Computed) -> Tensor:
    """Write to the page table once the reads are done, and no later: the logits, host."""
    assert replayed.reads_done is not None
    schedule = rig.streams.private_stream()
    schedule.wait_event(replayed.reads_done)
    with rig.streams.using(schedule):
        rig.site.req_to_token_pool.req_to_token.zero_()
    schedule.synchronize()
    return rig.on_host(replayed.output)


@pytest.mark.parametrize(
    ("schedule", "in_halves"),
    [
        *((own, False) for own in systematic_schedules(3)),
        (Schedule.parse("lazy"), True),
        (Schedule.parse("starve:33"), True),
    ],
    ids=str,
)
@pytest.mark.parametrize(("build", "reads_end"), TRUE_OF)
def test_reads_end_lets_the_scheduler_write(
    build: Build, reads_end: SharedReadsEnd, schedule: Schedule, *, in_halves: bool
) -> None:
    """What is written behind the marked point changes no logits, in any order of the device."""
    with simulate(schedule):
        rig = rig_of(build, reads_end, in_halves=in_halves)
        batch = rig.batch(THREE, kind=SINGLE)
        eager = rig.eager(batch)

        logits = overwritten(rig, rig.replay(batch))

        torch.testing.assert_close(logits, eager, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("in_halves", [False, True], ids=["whole", "halves"])
@pytest.mark.parametrize(("build", "reads_end"), TRUE_OF)
def test_reads_end_orders_what_the_scheduler_writes(
    build: Build, reads_end: SharedReadsEnd, *, in_halves: bool
) -> None:
    """No read of the page table races with what is written behind the marked point."""
    with simulate("lazy", check_races=True) as simulation:
        rig = rig_of(build, reads_end, in_halves=in_halves)

        overwritten(rig, rig.replay(rig.batch(THREE, kind=SINGLE)))

        assert simulation.races == ()


def test_reads_end_that_is_declared_too_early_shows() -> None:
    """A backend that reads the page table in the graph scores wrongly under PRE_REPLAY."""
    with simulate("lazy"):
        rig = rig_of(padded, PRE)
        batch = rig.batch(THREE, kind=SINGLE)
        eager = rig.eager(batch)

        assert not torch.allclose(overwritten(rig, rig.replay(batch)), eager, atol=1e-2)


@pytest.mark.parametrize(
    ("reads_end", "is_early"),
    [
        pytest.param(PRE, True, id="pre-replay"),
        pytest.param(IN, True, id="in-replay"),
        pytest.param(POST, False, id="post-replay"),
    ],
)
def test_reads_end_frees_the_scheduler_before_the_layers_ran(
    reads_end: SharedReadsEnd, *, is_early: bool
) -> None:
    """Only POST_REPLAY waits for the layers, which write to the KV cache."""
    with simulate("lazy"):
        rig = rig_of(CopiedTable, reads_end)
        layers = rig.site.keys_and_values()
        before = rig.cache()
        marked = rig.replay(rig.batch(THREE, kind=SINGLE)).reads_done
        assert marked is not None

        marked.synchronize()

        written = rig.streams.private_stream()
        with rig.streams.using(written):
            now = torch.stack([layer[1:] for layer in layers]).to("cpu")
        assert torch.equal(now, before) is is_early


def test_reads_end_is_marked_by_every_replay(streams: DeviceStreams) -> None:
    """Each replay's answer is an event of its own, but for the one that a graph has."""
    rig = Rig(streams, BUCKETS[SINGLE], reads_end=POST)
    batch = rig.batch(THREE, kind=SINGLE)

    first, second = (rig.replay(batch).reads_done for _ in range(2))

    assert first is not None
    assert first is not second


def test_reads_end_is_later_where_no_graph_records_events() -> None:
    """Without external events, IN_REPLAY is marked behind the replay, and never before it."""
    with simulate("lazy"):
        rig = rig_of(padded, IN, external=False)

        marked = rig.replay(rig.batch(THREE, kind=SINGLE)).reads_done

        assert rig.runner.shared_reads_end is POST
        assert marked is not None
