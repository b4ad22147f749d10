"""A stage whose forwards take as long as a quadratic says, on real pools, batches and relay."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from backend_caps import HostSeqLens
from backend_caps.relay import DeviceStreams, FutureMap, StepStreams
from backend_caps.runtime import AttentionLayer, ForwardBatch
from backend_caps.runtime.chunk_sizes import ChunkProfiler
from backend_caps.runtime.memory import (
    PagePool,
    Pools,
    ReqToTokenPool,
    RequestMemory,
    Resources,
    TokenToKVPool,
)
from backend_caps.runtime.staging import Staging

VOCAB_SIZE = 50
LAYER = AttentionLayer(
    layer_id=0, tp_q_head_num=1, tp_k_head_num=1, qk_head_dim=1, v_head_dim=1, scaling=1.0
)


class BrokenKernelError(Exception):
    """What a backend of the tests raises."""


@dataclass
class Clock:
    """A clock that forwards move."""

    now_s: float = 100.0

    def __call__(self) -> float:
        """Read it."""
        return self.now_s


@dataclass
class Stage:
    """Run forwards: note the tokens, store keys and values, and let time pass."""

    kv_pool: TokenToKVPool
    clock: Clock
    terms: tuple[float, float, float] = (2e-6, 3e-4, 5e-3)
    warm_up_s: float = 7.0
    """What the first forward takes on top."""
    failing_forward: int | None = None
    seen: list[Tensor] = field(default_factory=list)

    def forward(self, batch: ForwardBatch) -> None:
        """Run a forward, or raise when half of it is done."""
        ids = batch.input_ids.float().view(-1, 1, 1)
        self.kv_pool.set_kv_buffer(LAYER, batch.out_cache_loc, ids, ids)
        self.seen.append(batch.input_ids)
        if len(self.seen) - 1 == self.failing_forward:
            raise BrokenKernelError("no kernel image")
        a, b, c = self.terms
        self.clock.now_s += (a * batch.num_tokens + b) * batch.num_tokens + c
        self.clock.now_s += self.warm_up_s if len(self.seen) == 1 else 0.0


@dataclass
class Rank:
    """A rank's pools, relay and streams."""

    resources: Resources
    kv_pool: TokenToKVPool

    def profiler(self, stage: Stage, clock: Callable[[], float] | None = None) -> ChunkProfiler:
        """Make the profiler of a stage."""
        clock = stage.clock if clock is None else clock
        return ChunkProfiler(stage.forward, self.resources, VOCAB_SIZE, clock)

    @property
    def memory(self) -> RequestMemory:
        """The rank's rows and pages."""
        return self.resources.memory

    def stage(
        self,
        *,
        terms: tuple[float, float, float] = (2e-6, 3e-4, 5e-3),
        failing_forward: int | None = None,
    ) -> Stage:
        """Make a stage over these pools."""
        return Stage(self.kv_pool, Clock(), terms, failing_forward=failing_forward)

    def num_free(self) -> tuple[int, int]:
        """Count what nobody has: (rows, pages)."""
        return self.memory.rows.num_free, self.memory.pages.num_free


def make_rank(
    *,
    max_requests: int = 4,
    max_context_len: int = 512,
    page_size: int = 4,
    num_pages: int = 256,
    streams: DeviceStreams | None = None,
) -> Rank:
    """Make a rank on the CPU."""
    streams = DeviceStreams("cpu") if streams is None else streams
    rows = ReqToTokenPool(
        max_requests=max_requests,
        max_context_len=max_context_len,
        page_size=page_size,
        device=streams.device,
    )
    kv_pool = TokenToKVPool(
        num_slots=(num_pages + 1) * page_size,
        num_layers=1,
        num_heads=1,
        head_dim=1,
        v_head_dim=1,
        dtype=torch.float32,
        device=streams.device,
    )
    relay = FutureMap(
        pool_size=rows.pool_size,
        device=streams.device,
        host_seq_lens=HostSeqLens.NONE,
        speculative=False,
        streams=streams,
    )
    resources = Resources(
        memory=RequestMemory(rows, PagePool(num_pages), Staging(streams)),
        pools=Pools(rows, kv_pool),
        relay=relay,
        step_streams=StepStreams.drawn_from(streams),
    )
    return Rank(resources, kv_pool)
