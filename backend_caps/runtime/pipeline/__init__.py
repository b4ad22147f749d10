"""Pipeline parallelism: chunk sizes that keep every stage equally busy, and the way back of tokens.

A pipeline stays full where its chunks take the same time. A chunk attends to all the tokens before
it, so chunks of one size take longer and longer. The first rank measures how long prefill takes,
fits a quadratic, and cuts later chunks of a prompt smaller; every rank cuts alike.
"""

from backend_caps.runtime.pipeline.agreement import agree_on_chunks
from backend_caps.runtime.pipeline.chunks import ChunkLimits, ChunkSizes, DynamicChunks, FixedChunks
from backend_caps.runtime.pipeline.errors import ChunkLimitsError
from backend_caps.runtime.pipeline.fit import ChunkSample, ChunkTimeFit, fit_chunk_times
from backend_caps.runtime.pipeline.off import ChunksOff, OffCause
from backend_caps.runtime.pipeline.profile import (
    ChunkProfiler,
    ForwardRunner,
    balanced_sizes,
    profile_chunks,
)
from backend_caps.runtime.pipeline.received import Receipt, stash_received

__all__ = [
    "ChunkLimits",
    "ChunkLimitsError",
    "ChunkProfiler",
    "ChunkSample",
    "ChunkSizes",
    "ChunkTimeFit",
    "ChunksOff",
    "DynamicChunks",
    "FixedChunks",
    "ForwardRunner",
    "OffCause",
    "Receipt",
    "agree_on_chunks",
    "balanced_sizes",
    "fit_chunk_times",
    "profile_chunks",
    "stash_received",
]
