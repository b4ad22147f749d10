"""One answer for every rank: ranks that cut prompts differently run different steps.

The first rank sends a record of what its profile came to. Every rank reads it, the first one too,
and sends back what it has to object to; one objection turns the feature off everywhere.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
from pydantic import TypeAdapter, ValidationError

from backend_caps.runtime.pipeline.chunks import ChunkLimits, ChunkSizes, FixedChunks
from backend_caps.runtime.pipeline.off import MAX_REASON, ChunksOff, OffCause, writable

# A character of a reason takes at most six bytes of JSON; the rest of a record is below 1,024.
_RECORD_BYTES = 6 * MAX_REASON + 1024
_RECORDS: TypeAdapter[ChunkSizes] = TypeAdapter(ChunkSizes)


def agree_on_chunks(
    limits: ChunkLimits, group: dist.ProcessGroup, profile: Callable[[], ChunkSizes]
) -> ChunkSizes:
    """Profile on the group's first rank, and return its answer on every rank.

    A forward that fails there turns the feature off on every rank, with the same reason.

    Args:
        limits: which sizes there are; the same on every rank.
        group: the ranks of the pipeline; one whose collectives take host tensors (gloo). All of
            them call this, and wait for the first one's profile: the group's timeout is above it.
        profile: called on the first rank alone (`profile_chunks`); it lets no failure out.
    """
    sizes = profile() if group.rank() == 0 else None
    record = b"" if sizes is None else _RECORDS.dump_json(sizes)
    return settle(record, limits, group)


def settle(record: bytes, limits: ChunkLimits, group: dist.ProcessGroup) -> ChunkSizes:
    """Send the first rank's record to every rank, and return what all of them make of it.

    Args:
        record: JSON; what other ranks than the first give is not looked at.
        limits: what this rank cuts prompts by, and goes on to where the ranks disagree.
        group: as in `agree_on_chunks`.
    """
    sent = _padded(record)
    dist.broadcast(sent, group=group, group_src=0)
    sizes = _read(_text(sent), limits)
    objections = _gather(sizes if isinstance(sizes, str) else "", group)
    if isinstance(sizes, str) or objections:
        off = ChunksOff.because(OffCause.RANKS_DISAGREE, "; ".join(objections))
        return FixedChunks(limits=limits, off=off)
    return sizes


def _read(record: bytes, limits: ChunkLimits) -> ChunkSizes | str:
    """Read a record, or say what is wrong with it."""
    try:
        sizes = _RECORDS.validate_json(record)
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
        where = ".".join(map(str, fault["loc"])) or "all of it"
        return f"the first rank's record {record[:60]!r} cannot be read: {where}: {fault['msg']}"
    if sizes.limits != limits:
        return f"the first rank cuts by {sizes.limits!r}, and this one by {limits!r}"
    return sizes


def _gather(objection: str, group: dist.ProcessGroup) -> list[str]:
    """Return every rank's objection, in the order of the ranks."""
    own = _padded(writable(objection).encode())
    everyones = [torch.empty_like(own) for _ in range(group.size())]
    dist.all_gather(everyones, own, group=group)
    said = [_text(each).decode() for each in everyones]
    return [f"rank {rank}: {text}" for rank, text in enumerate(said) if text]


def _padded(text: bytes) -> torch.Tensor:
    """Put bytes in a tensor of a record's size: every rank knows it before anything is sent."""
    assert len(text) <= _RECORD_BYTES, f"a record of {len(text)} bytes is above {_RECORD_BYTES}"
    return torch.tensor(list(text.ljust(_RECORD_BYTES)), dtype=torch.uint8)


def _text(padded: torch.Tensor) -> bytes:
    numbers: list[int] = padded.tolist()
    return bytes(numbers).rstrip()
