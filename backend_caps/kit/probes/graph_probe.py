"""Capture and replay graphs of a backend, by the runtime's `GraphRunner`.

A graph captures the attention of each layer, from static tokens over static pools. A replay loads a
scene into both, so that it has other lengths, page tables, requests and contents than the replay
before, and is padded where its graph is larger.

Shapes: T tokens in a batch, Tg in the largest graph, Y layers, Hq query heads, Hk key and value
heads, D and Dv their sizes, P rows in the request pool, L the longest context.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from backend_caps.capability.vocabulary import HostSeqLens, SharedReadsEnd
from backend_caps.kit import Forward, Rig, Scenario, on_host
from backend_caps.kit.rig import changed_slots
from backend_caps.kit.scenarios import dice_for, draw_requests
from backend_caps.kit.scene import layer_inputs
from backend_caps.kit.scenes import Pools, Scene
from backend_caps.runtime.attention import AttentionBackend, ForwardContext
from backend_caps.runtime.forward_batch import ForwardBatch
from backend_caps.runtime.graphs.buffers import GraphBuffers
from backend_caps.runtime.graphs.runner import CaptureSite, Computed, GraphRunner
from backend_caps.runtime.speculative.contexts import mask_size
from backend_caps.simulator import DEVICE_NAME
from backend_caps.startup.configuration import marked_reads_end
from backend_caps.startup.graph_modes import Bucket, mixed_buckets, uniform_buckets

_MIXED_TOKENS = 8
"""Least room for tokens per request of a mixed graph."""


def batch_sizes_of(scenario: Scenario) -> Sequence[int]:
    """Return the batch sizes of captured graphs; batches of other sizes are padded."""
    return (1, 2, scenario.max_requests)


def buckets_of(scenario: Scenario, batch_sizes: Sequence[int]) -> tuple[Bucket, ...]:
    """Make the graph sizes for these batch sizes."""
    if scenario.forward is Forward.MIXED:
        tokens = (_mixed_tokens(scenario.count, size) for size in batch_sizes)
        return mixed_buckets(max(batch_sizes), tokens)
    return uniform_buckets(batch_sizes, scenario.count)


def _mixed_tokens(longest: int, num_requests: int) -> int:
    """Return room for a mixed batch, of which every other request is a decode row."""
    num_decodes = num_requests // 2
    most = (num_requests - num_decodes) * longest + num_decodes
    return max(_MIXED_TOKENS * num_requests, most)


class BackendProxy:
    """A backend whose preparation before and within a graph can be replaced or watched."""

    def __init__(self, backend: AttentionBackend) -> None:
        self.backend = backend
        self.init_forward_metadata = backend.init_forward_metadata
        self.init_cuda_graph_state = backend.init_cuda_graph_state
        self.init_forward_metadata_out_graph: Callable[[ForwardBatch], None] = (
            backend.init_forward_metadata_out_graph
        )
        """The host's part of the preparation; a check may replace it."""
        self.watch: Callable[[ForwardBatch], ForwardBatch] = lambda batch: batch
        """Applied to each batch that the backend gets within a capture."""

    @property
    def forward(self) -> Callable[..., Tensor]:
        """The backend's `forward`, looked up at each call: its preparation may replace it."""
        return self.backend.forward

    def init_forward_metadata_in_graph(self, batch: ForwardBatch) -> None:
        """Prepare within the graph, with a watched batch."""
        self.backend.init_forward_metadata_in_graph(self.watch(batch))


class _Model:
    """A model of attention layers alone, over static tokens that are all NaN at first.

    q, k, v   [Tg, Y * Hq, D], [Tg, Y * Hk, D] and [Tg, Y * Hk, Dv], device
    attended  [Tg, Y * Hq, Dv], device  the last forward's output, of every token
    """

    def __init__(self, proxy: BackendProxy, whole: Scene, num_tokens: int) -> None:
        self._proxy, self._layers, self._layout = proxy, whole.layers, whole.layout
        q, k, v = (
            own.new_full((num_tokens, *own.shape[1:]), torch.nan)
            for own in (whole.q, whole.k, whole.v)
        )
        static = replace(whole, q=q, k=k, v=v).laid_out()
        self.q, self.k, self.v = static.q, static.k, static.v
        num_heads = whole.layer.tp_q_head_num
        shape = num_tokens, len(self._layers) * num_heads, whole.layer.v_head_dim
        self.attended = whole.q.new_full(shape, torch.nan)

    def __call__(self, context: ForwardContext) -> Tensor:
        size, last = context.batch.num_tokens, context.batch.last_token_indices
        watched = ForwardContext(context.backend, self._proxy.watch(context.batch))
        tokens = (self.q[:size], self.k[:size], self.v[:size])
        inputs = layer_inputs(*tokens, len(self._layers), self._layout)
        outputs = self.attended[:size].chunk(len(self._layers), 1)
        for layer, (q, k, v), attended in zip(self._layers, inputs, outputs, strict=True):
            attended.copy_(watched.attend(layer, q, k, v).view(attended.shape))
        output = self.attended[:size].flatten(1)
        return output if last is None else output.index_select(0, last)


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardResult:
    """Copies of a forward's output and of the KV cache behind it, on the device."""

    graphs: Graphs
    """The graphs whose forward stream made the copies."""
    output: Tensor
    """[T, Y * Hq, Dv], device."""
    pools: Pools
    """The KV cache, device."""

    def attended(self) -> Tensor:
        """Copy the output to the host: [T, Y * Hq, Dv]. Sync: the forward stream."""
        with self.graphs.streams.using(self.graphs.forward_stream):
            return on_host(self.output)

    def strays(self, scene: Scene) -> Sequence[int]:
        """List written slots that are neither the scene's new tokens' nor padding's.

        Sync: the forward stream.
        """
        with self.graphs.streams.using(self.graphs.forward_stream):
            changed = changed_slots(scene.pools, self.pools)
        writable = {*range(scene.pools.page_size), *scene.batch.out_cache_loc.tolist()}
        return sorted(changed - writable)


class Graphs:
    """Graphs of a scenario's forwards, on a private stream; within `Rig.running`.

    Args:
        rig: builds the backend.
        scenario: the kind of batches.
        reads_end: the point whose event replays record, as far as the device supports it.
    """

    def __init__(
        self, rig: Rig, scenario: Scenario, reads_end: SharedReadsEnd = SharedReadsEnd.UNKNOWN
    ) -> None:
        self._rig, self._scenario, self._reads_end = rig, scenario, reads_end
        self.tolerance = rig.tolerance(scenario)
        """The tolerance between a replay and its eager run."""
        self.streams = rig.streams()
        self.forward_stream = self.streams.private_stream()
        """The stream of captures and replays."""
        self.schedule_stream = self.streams.private_stream()
        """The stream of a scheduler's writes."""
        buckets, most = buckets_of(scenario, batch_sizes_of(scenario)), scenario.max_requests
        with self.streams.using(self.forward_stream):
            whole = draw_requests(scenario, dice_for(scenario, 0), most, setting_seed=0)
            static = whole.on(rig.device)
            self.pools = static.pools
            """The static pools, which the backend is built from."""
            self.proxy = BackendProxy(rig.build(self.pools))
            self._model = _Model(self.proxy, static, buckets[-1].num_tokens)
            longest = self.pools.req_to_token.shape[1]
            count = scenario.num_nodes
            mask = mask_size(most, count, seq_lens_sum=None, max_context_len=longest)
            mask = mask if scenario.forward.is_tree else 0
            self._buffers = buffers = GraphBuffers(buckets, self.streams.device, mask)
            self.proxy.init_cuda_graph_state(buffers.max_batch_size, buffers.max_num_tokens)
        self._site = CaptureSite(
            streams=self.streams, stream=self.forward_stream, pool=self.streams.graph_pool()
        )
        self._runners: list[GraphRunner] = []

    def capture(self, batch_sizes: Sequence[int] | None = None) -> Self:
        """Capture further graphs of these batch sizes, from the largest down.

        None: of `batch_sizes_of` the scenario.
        """
        batch_sizes = batch_sizes_of(self._scenario) if batch_sizes is None else batch_sizes
        if self._rig.device != DEVICE_NAME:
            gc.collect()  # freeing an old CUDA graph in the middle of a capture would abort it
        self.forward_stream.wait_stream(self.streams.current_stream())
        phase, model = self._scenario.forward.phase, self._model
        runner = GraphRunner(
            lambda contexts: model(*contexts),
            [(self.proxy, self._buffers)],
            self._site,
            buckets=buckets_of(self._scenario, batch_sizes),
            host_seq_lens=self._rig.subject.claim_as(HostSeqLens, "host_seq_lens", phase=phase),
            shared_reads_end=marked_reads_end(self._reads_end, self.streams.traits),
        )
        self._runners.append(runner)
        return self

    def bring(self, scene: Scene) -> Scene:
        """Copy a scene to the device, with the claimed host lengths.

        Sync: the forward stream.
        """
        with self.streams.using(self.forward_stream):
            return self._rig.supply(with_last_tokens(scene)).on(self._rig.device)

    def load(self, on_device: Scene) -> ForwardBatch:
        """Copy a scene on the device to the static tensors, and return its batch.

        Stream: the forward stream. Sync: none. Allocates: nothing. Keeps: nothing.
        """
        model = self._model
        with self.streams.using(self.forward_stream):
            self.pools.copy_from(on_device.pools)
            for kept, new in zip(
                (model.q, model.k, model.v), (on_device.q, on_device.k, on_device.v), strict=True
            ):
                kept[: len(new)].copy_(new)
                kept[len(new) :].fill_(torch.nan)
        return on_device.batch

    def replay(self, batch: ForwardBatch) -> Computed:
        """Replay the graph of a loaded batch.

        Stream: the forward stream. Sync: none, but for the backend's preparation.
        """
        with self.streams.using(self.forward_stream):
            return next(runner for runner in self._runners if runner.holds(batch)).replay(batch)

    def launch(self, on_device: Scene) -> ForwardResult:
        """Load and replay a scene on the device, and copy its result.

        Stream: the forward stream. Sync: none, but for the backend's preparation.
        """
        self.replay(self.load(on_device))
        return self.result(on_device)

    def run(self, scene: Scene) -> ForwardResult:
        """Run a scene without a graph, in the backend of the graphs, and copy its result.

        Stream: the forward stream. Sync: the forward stream, before the forward.
        """
        on_device = self.bring(scene)
        batch = self.load(on_device)
        with self.streams.using(self.forward_stream):
            self.proxy.init_forward_metadata(batch)
            self._model(ForwardContext(self.proxy, batch))
        return self.result(on_device)

    def result(self, on_device: Scene) -> ForwardResult:
        """Copy the last forward's result: a scene's output, and the KV cache.

        Stream: the forward stream. Sync: none. Allocates: the copies. Keeps: nothing.
        """
        with self.streams.using(self.forward_stream):
            output = self._model.attended[: len(on_device.q)].clone()
            pools = replace(
                self.pools,
                key_buffers=self.pools.key_buffers.clone(),
                value_buffers=self.pools.value_buffers.clone(),
            )
            return ForwardResult(graphs=self, output=output, pools=pools)

    def overwrite(self, batch: ForwardBatch) -> None:
        """Overwrite the tensors that the scheduler shares with a forward: page table and batch.

        Stream: the current one. Sync: none. Allocates: nothing.
        """
        self.pools.req_to_token.zero_()
        for tensor in (
            batch.req_pool_indices,
            batch.seq_lens,
            batch.out_cache_loc,
            batch.positions,
            batch.extend_seq_lens,
            batch.extend_prefix_lens,
            batch.last_token_indices,
        ):
            if tensor is not None:
                tensor.zero_()


def with_last_tokens(scene: Scene) -> Scene:
    """Set `last_token_indices` where requests differ in new tokens, as the engine does."""
    extends = scene.batch.extend_seq_lens
    last = None if extends is None else extends.cumsum(0) - 1
    return replace(scene, batch=replace(scene.batch, last_token_indices=last))
