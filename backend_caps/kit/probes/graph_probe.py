"""Graphs of a backend, captured and replayed by the runtime's own runner.

What is captured is one layer's attention, from static tokens over static pools. Each scene is
loaded into both, and its batch brought as the engine brings it: so a replay meets other lengths,
page tables, numbers of requests and contents than the one before, and is padded where its graph is
larger.

Shapes: T tokens in a batch, Tg in the largest graph, Hq query heads, Hk key and value heads, D and
Dv their sizes, P rows in the request pool, L the longest context.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from backend_caps.capability.vocabulary import HostSeqLens, SharedReadsEnd
from backend_caps.kit import Forward, Rig, Scenario, on_host
from backend_caps.kit.rig import changed_rows
from backend_caps.kit.scenarios import MOST_REQUESTS, TREE_NODES, VERIFIED, dice_for, draw_requests
from backend_caps.kit.scenes import Scene
from backend_caps.runtime.attention import AttentionBackend, ForwardContext
from backend_caps.runtime.forward_batch import ForwardBatch
from backend_caps.runtime.graphs.buffers import GraphBuffers
from backend_caps.runtime.graphs.runner import CaptureSite, Computed, GraphRunner
from backend_caps.runtime.model.layers import AttentionLayer
from backend_caps.runtime.speculative.contexts import mask_size
from backend_caps.simulator import DEVICE_NAME
from backend_caps.startup.configuration import marked_reads_end
from backend_caps.startup.graph_modes import Bucket, mixed_buckets, uniform_buckets

BATCH_SIZES = (1, 2, MOST_REQUESTS)
"""Requests that graphs are captured for; batches of other sizes are padded."""
_MIXED_TOKENS = 8
"""Of a request in a mixed graph, on average; a drawn one has no more than five."""
_TOKENS = {Forward.DECODE: 1, Forward.VERIFY: VERIFIED, Forward.TREE: TREE_NODES}


def buckets_of(scenario: Scenario, batch_sizes: Sequence[int]) -> tuple[Bucket, ...]:
    """Make the sizes of graphs for so many requests."""
    if scenario.forward is Forward.MIXED:
        return mixed_buckets(max(batch_sizes), (_MIXED_TOKENS * size for size in batch_sizes))
    return uniform_buckets(batch_sizes, _TOKENS[scenario.forward])


class BackendProxy:
    """A backend whose calls in front of and within a graph can be replaced or watched."""

    def __init__(self, backend: AttentionBackend) -> None:
        self.backend = backend
        self.init_forward_metadata = backend.init_forward_metadata
        self.init_cuda_graph_state = backend.init_cuda_graph_state
        self.init_forward_metadata_out_graph: Callable[[ForwardBatch], None] = (
            backend.init_forward_metadata_out_graph
        )
        """The host's share; a check may replace it."""
        self.watch: Callable[[ForwardBatch], ForwardBatch] = lambda batch: batch
        """Applied to each batch that the backend gets in what a capture records."""

    def init_forward_metadata_in_graph(self, batch: ForwardBatch) -> None:
        """Prepare within the graph, by a watched batch."""
        self.backend.init_forward_metadata_in_graph(self.watch(batch))

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        layer: AttentionLayer,
        batch: ForwardBatch,
        *,
        save_kv_cache: bool = True,
    ) -> Tensor:
        """Attend, by a watched batch."""
        return self.backend.forward(q, k, v, layer, self.watch(batch), save_kv_cache=save_kv_cache)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layer:
    """A model of one layer, whose tokens are there before it runs."""

    layer: AttentionLayer
    q: Tensor
    """[Tg, Hq * D], device."""
    k: Tensor
    """[Tg, Hk * D], device."""
    v: Tensor
    """[Tg, Hk * Dv], device."""
    attended: Tensor
    """[Tg, Hq * Dv], device: what came out for every token of the last forward."""

    def __call__(self, context: ForwardContext) -> Tensor:
        size, last = context.batch.num_tokens, context.batch.last_token_indices
        output = context.attend(self.layer, self.q[:size], self.k[:size], self.v[:size])
        self.attended[:size].copy_(output)
        return output if last is None else output.index_select(0, last)


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardResult:
    """What a forward left on the device: copies of its own.

    Shapes: S slots in the KV cache.
    """

    graphs: Graphs
    """On whose forward stream it was copied, which the host waits for."""
    output: Tensor
    """[T, Hq, Dv], device."""
    keys: Tensor
    """[S, Hk, D], device."""
    values: Tensor
    """[S, Hk, Dv], device."""

    def attended(self) -> Tensor:
        """Bring the output to the host: [T, Hq, Dv]. Sync: the stream."""
        return self._on_host(self.output)

    def _on_host(self, tensor: Tensor) -> Tensor:
        with self.graphs.streams.using(self.graphs.forward_stream):
            return on_host(tensor)

    def strays(self, scene: Scene) -> Sequence[int]:
        """List slots that were written and are neither the scene's own nor padding's.

        Sync: the stream.
        """
        keys, values = self._on_host(self.keys), self._on_host(self.values)
        before = scene.pools
        changed = {*changed_rows(before.keys, keys), *changed_rows(before.values, values)}
        return sorted(changed - {*range(before.page_size), *scene.batch.out_cache_loc.tolist()})


class Graphs:
    """Graphs of a scenario's forwards, on a stream of their own; within `Rig.running`.

    Args:
        rig: the backend, which is built anew.
        scenario: what the batches are made of.
        reads_end: the end of a forward's reads, which replays mark as far as the device can.
    """

    def __init__(
        self, rig: Rig, scenario: Scenario, reads_end: SharedReadsEnd = SharedReadsEnd.UNKNOWN
    ) -> None:
        self._rig, self._scenario, self._reads_end = rig, scenario, reads_end
        self.tolerance = rig.subject.tolerance(scenario.dtype)
        """How far a replay may be from its eager run."""
        self.streams = rig.streams()
        self.forward_stream = self.streams.private_stream()
        """Where graphs are captured and replayed."""
        self.schedule_stream = self.streams.private_stream()
        """Where a scheduler writes."""
        buckets = buckets_of(scenario, BATCH_SIZES)
        with self.streams.using(self.forward_stream):
            whole = draw_requests(scenario, dice_for(scenario, 0), MOST_REQUESTS, setting_seed=0)
            static = whole.on(rig.device)
            self.pools = static.pools
            """What the backend was built from."""
            self._layer = _layer(static, buckets[-1].num_tokens)
            self.proxy = BackendProxy(rig.build(self.pools))
            longest = self.pools.req_to_token.shape[1]
            mask = mask_size(MOST_REQUESTS, TREE_NODES, seq_lens_sum=None, max_context_len=longest)
            mask = mask if scenario.forward.is_tree else 0
            self._buffers = buffers = GraphBuffers(buckets, self.streams.device, mask)
            self.proxy.init_cuda_graph_state(buffers.max_batch_size, buffers.max_num_tokens)
        self._site = CaptureSite(
            streams=self.streams, stream=self.forward_stream, pool=self.streams.graph_pool()
        )
        self._runners: list[GraphRunner] = []

    def capture(self, batch_sizes: Sequence[int] = BATCH_SIZES) -> None:
        """Capture graphs for so many requests, from the largest down, beside those there are."""
        if self._rig.device != DEVICE_NAME:
            gc.collect()  # a graph that dies in the middle of a capture would end it
        self.forward_stream.wait_stream(self.streams.current_stream())
        phase, layer = self._scenario.forward.phase, self._layer
        runner = GraphRunner(
            lambda contexts: layer(*contexts),
            [(self.proxy, self._buffers)],
            self._site,
            buckets=buckets_of(self._scenario, batch_sizes),
            host_seq_lens=self._rig.subject.claim_as(HostSeqLens, "host_seq_lens", phase=phase),
            shared_reads_end=marked_reads_end(self._reads_end, self.streams.traits),
        )
        self._runners.append(runner)

    def bring(self, scene: Scene) -> Scene:
        """Bring a scene to the device, with the host lengths that are claimed.

        Sync: the forward stream.
        """
        with self.streams.using(self.forward_stream):
            return self._rig.supply(_with_last_tokens(scene)).on(self._rig.device)

    def load(self, there: Scene) -> ForwardBatch:
        """Write a scene that is on the device to the static tensors, and return its batch.

        Stream: the forward stream. Sync: none. Allocates: nothing. Keeps: nothing.
        """
        pools, static, own = there.pools, self.pools, self._layer
        with self.streams.using(self.forward_stream):
            static.req_to_token.copy_(pools.req_to_token)
            static.keys.copy_(pools.keys)
            static.values.copy_(pools.values)
            for held, new in ((own.q, there.q), (own.k, there.k), (own.v, there.v)):
                held[: len(new)].copy_(new.flatten(1))
                held[len(new) :].fill_(torch.nan)
        return there.batch

    def replay(self, batch: ForwardBatch) -> Computed:
        """Replay the graph of a batch that is loaded.

        Stream: the forward stream. Sync: none; the backend may have its own.
        """
        runner = next(own for own in self._runners if own.holds(batch))
        with self.streams.using(self.forward_stream):
            return runner.replay(batch)

    def launch(self, there: Scene) -> ForwardResult:
        """Load and replay a scene that is on the device, and copy what that leaves.

        Stream: the forward stream. Sync: none; the backend may have its own.
        """
        self.replay(self.load(there))
        return self.left(there)

    def run(self, scene: Scene) -> ForwardResult:
        """Run a scene without a graph, in the backend of the graphs, and copy what that leaves.

        Stream: the forward stream. Sync: it, before the forward.
        """
        there = self.bring(scene)
        batch = self.load(there)
        with self.streams.using(self.forward_stream):
            self.proxy.init_forward_metadata(batch)
            self._layer(ForwardContext(self.proxy, batch))
        return self.left(there)

    def left(self, there: Scene) -> ForwardResult:
        """Copy what the last forward left: a scene's output, and the KV cache.

        Stream: the forward stream. Sync: none. Allocates: the copies. Keeps: nothing.
        """
        heads = there.layer.tp_q_head_num, there.layer.v_head_dim
        with self.streams.using(self.forward_stream):
            return ForwardResult(
                graphs=self,
                output=self._layer.attended[: len(there.q)].clone().view(-1, *heads),
                keys=self.pools.keys.clone(),
                values=self.pools.values.clone(),
            )

    def overwrite(self, batch: ForwardBatch) -> None:
        """Write to all that the scheduler shares with a forward: page table and batch.

        Stream: the current one. Sync: none. Allocates: nothing.
        """
        self.pools.req_to_token.zero_()
        for own in (batch.req_pool_indices, batch.seq_lens, batch.out_cache_loc, batch.positions):
            own.zero_()
        for extend in (batch.extend_seq_lens, batch.extend_prefix_lens, batch.last_token_indices):
            if extend is not None:
                extend.zero_()


def _layer(whole: Scene, num_tokens: int) -> _Layer:
    """Make the static tokens, all of poison."""
    q, k, v = (
        own.new_full((num_tokens, own[0].numel()), torch.nan) for own in (whole.q, whole.k, whole.v)
    )
    width = whole.layer.tp_q_head_num * whole.layer.v_head_dim
    attended = q.new_full((num_tokens, width), torch.nan)
    return _Layer(layer=whole.layer, q=q, k=k, v=v, attended=attended)


def _with_last_tokens(scene: Scene) -> Scene:
    """Name each request's last token where it brings a number of its own, as the engine does."""
    extends = scene.batch.extend_seq_lens
    if extends is None:
        return scene
    return replace(scene, batch=replace(scene.batch, last_token_indices=extends.cumsum(0) - 1))
