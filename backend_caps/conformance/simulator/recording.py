"""What a graph's capture records instead of letting it run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from backend_caps.conformance.simulator.allocator import Pool
from backend_caps.conformance.simulator.queues import Op

Step = Op | Callable[[int], None]
"""Device work, or what an external event does on the stream that a graph is replayed on."""


@dataclass(slots=True, eq=False)
class Capture:
    """A capture that is going on.

    The streams that joined it are recorded as one: at a replay, all its work is one stream's.
    """

    pool: Pool
    """Memory of what is allocated in it."""
    streams: set[int]
    """Handles of the streams whose work is recorded."""
    steps: list[Step] = field(default_factory=list)
    """What was recorded, in the order of the host."""
