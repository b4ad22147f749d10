"""A small model over a paged KV cache, whose forwards run eagerly or by a captured graph.

What no request owns of the KV cache is poison, so whoever reads it shows it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import torch
from torch import Tensor
from torch_native_caps import TORCH_NATIVE, TORCH_PADDED

from backend_caps import (
    BatchKind,
    Declaration,
    GraphMetadata,
    HostSeqLens,
    Phase,
    Role,
    SharedReadsEnd,
    Use,
)
from backend_caps.relay.streams import DeviceStreams, DeviceTraits, StreamLike
from backend_caps.runtime.attention import AttentionBackend, ForwardContext, PhaseBackends
from backend_caps.runtime.batch import ForwardMode, token_positions
from backend_caps.runtime.forward_batch import ForwardBatch
from backend_caps.runtime.graphs.buffers import GraphBuffers
from backend_caps.runtime.graphs.runner import CaptureSite, Computed, GraphRunner
from backend_caps.runtime.memory import Pools, ReqToTokenPool, TokenToKVPool
from backend_caps.runtime.model.config import LlamaConfig
from backend_caps.runtime.model.layers import TensorOptions
from backend_caps.runtime.model.llama import LlamaModel
from backend_caps.runtime.speculative.contexts import tree_mask
from backend_caps.runtime.speculative.tree import visible_nodes
from backend_caps.runtime.step import scores_of
from backend_caps.runtime.two_batch import TwoBatchRunner
from backend_caps.startup.configuration import marked_reads_end
from backend_caps.startup.graph_modes import Bucket, mixed_buckets, uniform_buckets

SIMULATED = DeviceTraits(
    has_streams=True, has_pinned_memory=True, has_graphs=True, has_external_events=True
)
MAX_REQUESTS, MAX_CONTEXT_LEN = 8, 24
NUM_SLOTS = MAX_REQUESTS * MAX_CONTEXT_LEN + 1
CONFIG = LlamaConfig(
    vocab_size=23,
    hidden_size=16,
    intermediate_size=24,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=4,
)
DRAFTS = 3
"""Tokens of each request in a uniform batch."""
BUCKETS: dict[BatchKind, tuple[Bucket, ...]] = {
    BatchKind.SINGLE_TOKEN_DECODE: uniform_buckets((1, 2, 4, MAX_REQUESTS)),
    BatchKind.UNIFORM_BATCH: uniform_buckets((1, 2, 4), DRAFTS),
    BatchKind.MIXED_BATCH: mixed_buckets(4, (8, 16)),
}
Requests = Sequence[tuple[int, int]]
"""Cached tokens and new tokens of each request."""


class Site(Pools):
    """The pools."""

    def keys_and_values(self) -> list[Tensor]:
        """List the KV cache's tensors, layer by layer."""
        kv = self.token_to_kv_pool
        layers = range(CONFIG.num_hidden_layers)
        return [get(i) for i in layers for get in (kv.get_key_buffer, kv.get_value_buffer)]


def make_model(device: torch.device) -> LlamaModel:
    """Make a model with random weights, the same each time."""
    model = LlamaModel(CONFIG, TensorOptions(device, torch.float32), MAX_CONTEXT_LEN)
    generator = torch.Generator().manual_seed(0)
    for _, weight in model.named_weights():
        weight.copy_(torch.randn(weight.shape, generator=generator) * 0.5)
    return model


def make_rows(device: torch.device) -> ReqToTokenPool:
    """Make an empty page table."""
    return ReqToTokenPool(
        max_requests=MAX_REQUESTS, max_context_len=MAX_CONTEXT_LEN, page_size=1, device=device
    )


def make_site(device: torch.device) -> Site:
    """Make pools in which row r has the slots of its own stretch, in random order."""
    generator = torch.Generator().manual_seed(1)
    rows = make_rows(device)
    slots = torch.randperm(NUM_SLOTS - 1, generator=generator) + 1
    rows.req_to_token[1:].copy_(slots.view(MAX_REQUESTS, MAX_CONTEXT_LEN).int())
    kv = TokenToKVPool(
        num_slots=NUM_SLOTS,
        num_layers=CONFIG.num_hidden_layers,
        num_heads=CONFIG.num_key_value_heads,
        head_dim=CONFIG.head_dim,
        v_head_dim=CONFIG.head_dim,
        dtype=torch.float32,
        device=device,
    )
    return Site(rows, kv)


def uses_of(name: str, declaration: Declaration, phases: Iterable[Phase]) -> list[Use]:
    """Use one backend as the target's, in these phases."""
    return [
        Use(backend=name, role=Role.TARGET, phase=phase, declaration=declaration)
        for phase in phases
    ]


def native(site: Site) -> AttentionBackend:
    """Build `torch_native`."""
    return _built("torch_native", TORCH_NATIVE, site)


def padded(site: Site) -> AttentionBackend:
    """Build `torch_padded`."""
    return _built("torch_padded", TORCH_PADDED, site)


def _built(name: str, declaration: Declaration, site: Site) -> AttentionBackend:
    uses = uses_of(name, declaration, [Phase.DECODE])
    return PhaseBackends(uses, Role.TARGET, site).of(Phase.DECODE)


class Rig:
    """A model, its pools, a backend, and the graphs of some buckets.

    Args:
        streams: the device's.
        buckets: what is captured.
        build: makes the backend from the pools.
        host_seq_lens: what batches bring at least.
        reads_end: where the backend ends its reads.
        metadata: how the backend rebuilds metadata for a replay.
        mask_size: entries of the tree masks that uniform batches bring; 0: they bring none.
        in_halves: whether graphs have two halves, the second one's backend built once more.
    """

    def __init__(
        self,
        streams: DeviceStreams,
        buckets: Iterable[Bucket],
        *,
        build: Callable[[Site], AttentionBackend] = padded,
        host_seq_lens: HostSeqLens = HostSeqLens.NONE,
        reads_end: SharedReadsEnd = SharedReadsEnd.UNKNOWN,
        metadata: GraphMetadata = GraphMetadata.HOST,
        mask_size: int = 0,
        in_halves: bool = False,
    ) -> None:
        self.streams = streams
        self.stream: StreamLike = streams.private_stream()
        buckets = list(buckets)
        with streams.using(self.stream):
            self.model = make_model(streams.device)
            self.site = make_site(streams.device)
            self.backend = build(self.site)
            self.buffers = GraphBuffers(buckets, streams.device, mask_size)
            self.second = build(self.site)
            """The second half's backend; of whole batches nobody's."""
            of_second = GraphBuffers(buckets, streams.device, mask_size)
        self.places = [(self.backend, self.buffers)]
        """Where graphs run: whole batches or first halves, then second halves."""
        if in_halves:
            self.places.append((self.second, of_second))
        uses = uses_of("torch_padded", TORCH_PADDED, [Phase.DECODE])
        eager = PhaseBackends(uses, Role.TARGET, self.site)
        self.two_batch = TwoBatchRunner(self.model, (eager, eager), streams, frozenset(Phase))
        self.fill(seed=0)
        self.place = CaptureSite(streams=streams, stream=self.stream, pool=streams.graph_pool())
        """Where graphs are captured."""
        self.runner = self.capture(buckets, host_seq_lens, reads_end, metadata)

    def capture(
        self,
        buckets: Iterable[Bucket],
        host_seq_lens: HostSeqLens = HostSeqLens.NONE,
        reads_end: SharedReadsEnd = SharedReadsEnd.UNKNOWN,
        metadata: GraphMetadata = GraphMetadata.HOST,
    ) -> GraphRunner:
        """Capture graphs in the rig's memory."""
        model, two_batch = self.model, self.two_batch

        # Of the model alone: a graph in a cycle with its rig would die within another's capture.
        def compute(contexts: Sequence[ForwardContext]) -> Tensor:
            if len(contexts) == 1:
                return scores_of(model, *contexts)
            return model.lm_head(two_batch.states(contexts))

        return GraphRunner(
            compute,
            self.places,
            self.place,
            buckets=buckets,
            host_seq_lens=host_seq_lens,
            shared_reads_end=marked_reads_end(reads_end, self.streams.traits),
            graph_metadata=metadata,
        )

    def fill(self, seed: int) -> None:
        """Write random contexts to every slot but the padding's."""
        generator = torch.Generator().manual_seed(seed)
        with self.streams.using(self.stream):
            for buffer in self.site.keys_and_values():
                buffer[1:].copy_(torch.randn(buffer[1:].shape, generator=generator))

    def batch(self, requests: Requests, *, kind: BatchKind, seed: int = 0) -> ForwardBatch:
        """Make a forward's batch: request i has row i + 1 or another, by the seed."""
        with self.streams.using(self.stream):
            batch = draw_batch(self.site, requests, seed)
            return batch if kind is not BatchKind.MIXED_BATCH else extended(batch, requests)

    def tree_batch(
        self, cached: Sequence[int], *, seed: int = 0, in_place: bool = False, mirror: bool = True
    ) -> ForwardBatch:
        """Make a batch of a tree of drafts a request, behind so many tokens of each.

        Its mask is in memory of its own, or in that of the graphs.
        """
        batch = self.batch(
            [(own, DRAFTS) for own in cached], kind=BatchKind.UNIFORM_BATCH, seed=seed
        )
        drawn = random.Random(seed)  # noqa: S311 - a test keeps no secrets
        parents = torch.tensor([[0, 0, drawn.randrange(2)] for _ in cached])
        if not mirror:
            batch = replace(batch, seq_lens_cpu=None, seq_lens_sum=None)
        with self.streams.using(self.stream):
            visible = visible_nodes(parents, DRAFTS).to(self.streams.device)
            depths = visible.sum(dim=2) - 1
            mask = tree_mask(
                visible,
                batch.seq_lens,
                seq_lens_sum=batch.seq_lens_sum,
                max_context_len=MAX_CONTEXT_LEN,
                buffer=self.runner.mask_buffers(len(cached))[0] if in_place else None,
            )
            positions = (batch.seq_lens - DRAFTS)[:, None] + depths
            return replace(batch, positions=positions.flatten(), tree_mask=mask)

    def run(self, batch: ForwardBatch) -> Tensor:
        """Run a forward without a graph: the logits, device."""
        with self.streams.using(self.stream):
            self.backend.init_forward_metadata(batch)
            return scores_of(self.model, ForwardContext(self.backend, batch))

    def eager(self, batch: ForwardBatch) -> Tensor:
        """Run a forward without a graph, and leave the KV cache as it was: the logits, host."""
        with self.streams.using(self.stream):
            before = [buffer.clone() for buffer in self.site.keys_and_values()]
            logits = self.run(batch)
            for buffer, old in zip(self.site.keys_and_values(), before, strict=True):
                buffer.copy_(old)
        return self.on_host(logits)

    def replay(self, batch: ForwardBatch) -> Computed:
        """Run a forward by its graph."""
        with self.streams.using(self.stream):
            return self.runner.replay(batch)

    def replayed(self, batch: ForwardBatch) -> Tensor:
        """Run a forward by its graph: the logits, host."""
        return self.on_host(self.replay(batch).output)

    def cache(self) -> Tensor:
        """Copy what requests own of the KV cache to the host: [layers * 2, S - 1, ...]."""
        with self.streams.using(self.stream):
            owned = torch.stack([buffer[1:] for buffer in self.site.keys_and_values()])
        return self.on_host(owned)

    def on_host(self, tensor: Tensor) -> Tensor:
        """Copy a tensor to the host once the device is done."""
        self.streams.synchronize()
        return tensor.to("cpu", copy=True)


def draw_batch(site: Site, requests: Requests, seed: int) -> ForwardBatch:
    """Make a batch of cached and new tokens of each request, in rows by the seed."""
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randperm(MAX_REQUESTS, generator=generator)[: len(requests)] + 1
    prefixes, extends = torch.tensor(requests, dtype=torch.int64).unbind(1)
    owners, positions = token_positions(prefixes, extends, int(extends.sum()))
    ids = torch.randint(CONFIG.vocab_size, positions.shape, generator=generator)
    seq_lens, table = prefixes + extends, site.req_to_token_pool.req_to_token
    placed, at = rows[owners].to(table.device), positions.to(table.device)
    return ForwardBatch(
        mode=ForwardMode.DECODE,
        input_ids=ids.to(table.device),
        positions=at,
        req_pool_indices=rows.to(table.device),
        seq_lens=seq_lens.to(table.device),
        out_cache_loc=table[placed, at].to(torch.int64),
        seq_lens_cpu=seq_lens,
        seq_lens_sum=int(seq_lens.sum()),
    )


def random_requests(kind: BatchKind, seed: int) -> Requests:
    """Draw requests that fit the largest bucket of a kind."""
    drawn = random.Random(seed)  # noqa: S311 - a test keeps no secrets
    largest = BUCKETS[kind][-1]
    count = drawn.randint(1, largest.batch_size)
    each = largest.tokens_each
    if each is not None:
        return [(drawn.randint(0, MAX_CONTEXT_LEN - each), each) for _ in range(count)]
    most = largest.num_tokens // count
    return [
        (drawn.randint(0, MAX_CONTEXT_LEN - most), drawn.randint(1, most)) for _ in range(count)
    ]


def extended(batch: ForwardBatch, requests: Requests) -> ForwardBatch:
    """Give a batch extend lengths, on the device and on the host."""
    prefixes, extends = zip(*requests, strict=True)
    device = batch.seq_lens.device
    on_device = torch.tensor(extends, device=device)
    return replace(
        batch,
        mode=ForwardMode.MIXED,
        extend_seq_lens=on_device,
        extend_prefix_lens=torch.tensor(prefixes, device=device),
        extend_seq_lens_cpu=extends,
        extend_prefix_lens_cpu=prefixes,
        last_token_indices=on_device.cumsum(0) - 1,
    )
