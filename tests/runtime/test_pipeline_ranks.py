from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from backend_caps.runtime.pipeline import ChunkLimits, ChunksOff, FixedChunks, OffCause
from tests.runtime.pipeline_ranks import GARBAGE, LIMITS, TOKENS

ROOT = Path(__file__).resolve().parents[2]
DEADLINE_S = 90

Seen = Mapping[str, Mapping[str, object]]


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> tuple[Seen, Seen]:
    """Run every scenario on two processes, joined by a file, and read what each rank saw."""
    store = tmp_path_factory.mktemp("pipeline") / "store"
    command = [sys.executable, "-m", "tests.runtime.pipeline_ranks"]
    running = [
        subprocess.Popen([*command, str(rank), str(store)], cwd=ROOT, stdout=subprocess.PIPE)
        for rank in range(2)
    ]
    try:
        first, last = [json.loads(own.communicate(timeout=DEADLINE_S)[0]) for own in running]
    finally:
        for own in running:
            own.kill()
            own.wait()
    return first, last


def _off(cause: OffCause, reason: str, limits: ChunkLimits = LIMITS) -> object:
    off = ChunksOff(cause=cause, reason=reason)
    return FixedChunks(limits=limits, off=off).model_dump(mode="json")


def test_profile_is_the_same_on_both_ranks(ranks: tuple[Seen, Seen]) -> None:
    """The first rank's fit is the last one's, to the last bit."""
    first, last = (own["success"]["sizes"] for own in ranks)

    assert isinstance(first, dict)
    assert first["kind"] == "dynamic"
    assert first == last


@pytest.mark.parametrize("scenario", ["success", "failure"])
def test_profile_runs_on_the_first_rank_alone(ranks: tuple[Seen, Seen], scenario: str) -> None:
    """The first rank runs the forwards; the other one waits for the answer."""
    first, last = (own[scenario]["forwards"] for own in ranks)

    assert isinstance(first, int)
    assert first > 0
    assert last == 0


@pytest.mark.parametrize("scenario", ["success", "failure"])
def test_profile_leaves_the_pools_as_before(ranks: tuple[Seen, Seen], scenario: str) -> None:
    """On both ranks as many rows and pages are free as before, also where a forward raised."""
    gave_back = [own[scenario]["gave back"] for own in ranks]

    assert gave_back == [True, True]


def test_failure_of_the_first_rank_is_everybodys(ranks: tuple[Seen, Seen]) -> None:
    """A forward that raises on the first rank keeps sizes fixed on both, with its reason."""
    sizes = [own["failure"]["sizes"] for own in ranks]

    reason = "the forward of 78 tokens raised BrokenKernelError: no kernel image"
    assert sizes == [_off(OffCause.FORWARD_FAILED, reason)] * 2


def test_garbage_is_told_by_every_rank_that_got_it(ranks: tuple[Seen, Seen]) -> None:
    """Ranks that get no record say so, with what they got, and sizes stay fixed."""
    sizes = [own["garbage"]["sizes"] for own in ranks]

    said = f"the first rank's record {GARBAGE!r} cannot be read: all of it: "
    for each in sizes:
        assert isinstance(each, dict)
        reason = each["off"]["reason"]
        assert f"rank 0: {said}" in reason
        assert f"rank 1: {said}" in reason
    assert sizes[0] == sizes[1]


def test_objection_of_one_rank_is_everybodys(ranks: tuple[Seen, Seen]) -> None:
    """Where one rank cuts prompts by other limits, both go on with fixed sizes, and know why."""
    sizes = [own["other_limits"]["sizes"] for own in ranks]

    reason = (
        "rank 1: the first rank cuts by ChunkLimits(chunked_prefill_size=64, granularity=4), and "
        "this one by ChunkLimits(chunked_prefill_size=32, granularity=4)"
    )
    assert sizes == [
        _off(OffCause.RANKS_DISAGREE, reason),
        _off(OffCause.RANKS_DISAGREE, reason, ChunkLimits.of(32, 4)),
    ]


def test_received_tokens_are_the_next_steps_input(ranks: tuple[Seen, Seen]) -> None:
    """What the last rank sends is what the first rank's next decode step reads."""
    first, _ = ranks

    assert first["tokens"] == {"input_ids": list(TOKENS), "pending": False}
