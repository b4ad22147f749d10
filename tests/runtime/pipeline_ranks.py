"""One rank of a pipeline of two: `python -m tests.runtime.pipeline_ranks RANK STORE`.

Both ranks run the same scenarios in the same order, and each prints what it saw as JSON.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping
from datetime import timedelta

import torch
import torch.distributed as dist

from backend_caps.runtime.batch import ScheduleBatch
from backend_caps.runtime.pipeline import (
    ChunkLimits,
    ChunkSizes,
    agree_on_chunks,
    profile_chunks,
    stash_received,
)
from backend_caps.runtime.pipeline.agreement import settle
from tests.runtime.pipeline_stand_in import make_rank, make_request

TIMEOUT = timedelta(seconds=60)
LIMITS = ChunkLimits.of(64, 4)
GARBAGE = b'{"kind": "dynamic", "fit"\xff'
TOKENS = (41, 7, 23)
FIRST, LAST = 0, 1

Seen = Mapping[str, object]


def _profile(
    group: dist.ProcessGroup, *, limits: ChunkLimits = LIMITS, failing_forward: int | None = None
) -> Seen:
    """Agree on a stage's profile, and count what the pools have before and after."""
    rank = make_rank()
    before = rank.num_free()
    stage = rank.stage(failing_forward=failing_forward)
    profiler = rank.profiler(stage)

    sizes = agree_on_chunks(limits, group, lambda: profile_chunks(profiler, limits))

    return {
        "sizes": _written(sizes),
        "gave back": rank.num_free() == before,
        "forwards": len(stage.seen),
    }


def success(group: dist.ProcessGroup) -> Seen:
    """Profile a stage that works."""
    return _profile(group)


def failure(group: dist.ProcessGroup) -> Seen:
    """Profile a stage whose third forward raises."""
    return _profile(group, failing_forward=2)


def other_limits(group: dist.ProcessGroup) -> Seen:
    """Let the last rank cut prompts by other limits than the first one."""
    return _profile(group, limits=LIMITS if group.rank() == FIRST else ChunkLimits.of(32, 4))


def garbage(group: dist.ProcessGroup) -> Seen:
    """Let the first rank send what is no record."""
    return {"sizes": _written(settle(GARBAGE, LIMITS, group))}


def tokens(group: dist.ProcessGroup) -> Seen:
    """Send a step's tokens from the last rank, late, and read them in the first one's next step."""
    if group.rank() == LAST:
        time.sleep(0.3)
        dist.send(torch.tensor(TOKENS), dst=FIRST, group=group)
        return {}
    rank = make_rank()
    requests = [make_request((number, number + 1), number) for number in range(len(TOKENS))]
    for request in requests:
        request.enter(*rank.memory.rows.alloc())
    batch = ScheduleBatch.prepare_for_extend(requests, [2, 2, 2], rank.memory, rank.staging)
    received = torch.full((len(TOKENS),), -1)
    receipt = dist.irecv(received, src=LAST, group=group)
    assert receipt is not None, "this rank is in the group"

    stash_received(
        rank.relay,
        batch.req_pool_indices,
        received,
        receipt,
        forward_stream=rank.step_streams.forward,
    )

    batch.prepare_for_decode()
    step = batch.copy()
    rank.relay.set_input_ids_sentinel(step)
    rank.relay.resolve_future(step)
    assert step.input_ids is not None, "`resolve_future` sets it"
    return {"input_ids": step.input_ids.tolist(), "pending": step.input_ids_pending}


def _written(sizes: ChunkSizes) -> object:
    return sizes.model_dump(mode="json")


SCENARIOS: tuple[Callable[[dist.ProcessGroup], Seen], ...] = (
    success,
    failure,
    other_limits,
    garbage,
    tokens,
)


def main(rank: int, store: str) -> None:
    """Join the other rank, and run every scenario."""
    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=2, timeout=TIMEOUT
    )
    group = dist.group.WORLD
    assert group is not None, "the group was made above"
    seen = {scenario.__name__: scenario(group) for scenario in SCENARIOS}
    sys.stdout.write(json.dumps(seen))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
