"""Forwards in pieces: what a model computes before, between and behind attentions is captured.

A capture runs the model once, and is cut where a layer attends: the graph ends, and the next one
begins. A replay puts the attentions back, run eagerly on the batch as it is, with ordinary
metadata. So a backend needs to know nothing of graphs, and may read what it likes on the host;
and a piece, which treats each token by itself, holds any batch that has no more tokens.

What a piece hands to an attention, and gets from it, lies in memory that all layers and all sizes
share. Kept apart, the queries, keys and values of every layer would stay allocated.

Shapes: T tokens in the batch, Tg in the graphs (T <= Tg), H features of a token, V tokens in the
vocabulary, Hq query heads, Hk key and value heads, D and Dv their sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

import torch
from torch import Tensor

from backend_caps.capability.vocabulary import SharedReadsEnd
from backend_caps.relay.streams import GraphLike
from backend_caps.runtime.attention import AttentionBackend, ForwardContext
from backend_caps.runtime.forward_batch import ForwardBatch
from backend_caps.runtime.graphs.runner import CaptureSite, Computed
from backend_caps.runtime.model.layers import AttentionContext, AttentionLayer
from backend_caps.startup.graph_modes import GraphMode

States: TypeAlias = Callable[[Tensor, Tensor, AttentionContext], Tensor]
"""Computes [Tg, H] of tokens and their positions [Tg] each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PieceModel:
    """What is captured in pieces, and what follows them eagerly."""

    states: States
    """All but the LM head, a row for each token."""
    head: Callable[[Tensor], Tensor] | None
    """Scores the states of each request's last token; None: states are all that is asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Joint:
    """Where a piece ends and the next one begins: one layer's attention."""

    layer: AttentionLayer
    q: Tensor
    """[Tg, Hq * D] device."""
    k: Tensor
    """[Tg, Hk * D] device."""
    v: Tensor
    """[Tg, Hk * Dv] device."""
    attended: Tensor
    """[Tg, Hq * Dv] device."""

    def attend(self, context: ForwardContext, num_tokens: int) -> None:
        """Run the attention of the first tokens, of which the others are padding."""
        q, k, v = (own[:num_tokens] for own in (self.q, self.k, self.v))
        self.attended[:num_tokens].copy_(context.attend(self.layer, q, k, v))


class PieceBuffers:
    """Memory at the addresses that pieces have, whatever their size.

    Args:
        max_num_tokens: the largest size.
        device: where it is.
    """

    def __init__(self, max_num_tokens: int, device: torch.device) -> None:
        self.max_num_tokens = max_num_tokens
        self.of_tokens = torch.zeros(2, max_num_tokens, dtype=torch.int64, device=device)
        """[2, Tg] int64, device: tokens and their positions. What a larger batch left behind a
        smaller one's is harmless: a piece treats each token by itself, and writes no cache."""
        self._of_layers: dict[tuple[str, int, torch.dtype], Tensor] = {}

    @property
    def num_bytes(self) -> int:
        """Bytes at the addresses that all sizes share."""
        return sum(buffer.nbytes for buffer in (self.of_tokens, *self._of_layers.values()))

    def joint(self, layer: AttentionLayer, q: Tensor, k: Tensor, v: Tensor) -> _Joint:
        """Return where a layer's attention reads and writes, made for the first one of its shape.

        q  [Tg, Hq * D], device
        k  [Tg, Hk * D], device
        v  [Tg, Hk * Dv], device

        Stream: the current one. Sync: none. Allocates: what no layer of this shape has made.
        Keeps: nothing of the arguments. Capture: no, unless it is made already.
        """
        return _Joint(
            layer=layer,
            q=self._shared("q", q, q.shape[1]),
            k=self._shared("k", k, k.shape[1]),
            v=self._shared("v", v, v.shape[1]),
            attended=self._shared("attended", q, layer.tp_q_head_num * layer.v_head_dim),
        )

    def _shared(self, name: str, like: Tensor, width: int) -> Tensor:
        key = (name, width, like.dtype)
        if key not in self._of_layers:
            self._of_layers[key] = like.new_zeros(self.max_num_tokens, width)
        return self._of_layers[key][: like.shape[0]]


class _Sized:
    """The pieces of one size: a forward that is captured, and cut where a layer attends."""

    def __init__(
        self, num_tokens: int, states: States, buffers: PieceBuffers, site: CaptureSite
    ) -> None:
        self._buffers, self._site = buffers, site
        self._capture = ExitStack()
        self.num_tokens = num_tokens
        self._inputs = buffers.of_tokens[:, :num_tokens]
        """[2, Tg] int64, device: tokens and their positions."""
        self.graphs: list[GraphLike] = []
        self._joints: list[_Joint] = []
        """One less than the graphs: each lies between two of them."""
        input_ids, positions = self._inputs.unbind()
        # Kernels and joints allocate at their first run, which a capture may not do.
        states(input_ids, positions, self)
        with self._capture:
            self._begin()
            self._output = states(input_ids, positions, self)
            """[Tg, H] device: kept, so that no other graph of the pool is given its memory."""
        site.observer.captured(GraphMode.PIECEWISE, num_tokens)

    def attend(self, layer: AttentionLayer, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """End a piece with what an attention reads, and begin the next with what it writes.

        In the warm-up before the capture only the memory of both is made.
        """
        joint = self._buffers.joint(layer, q, k, v)
        if self.graphs:
            for buffer, new in ((joint.q, q), (joint.k, k), (joint.v, v)):
                buffer.copy_(new)
            self._joints.append(joint)
            self._capture.close()
            self._begin()
        return joint.attended

    def _begin(self) -> None:
        site, graph = self._site, self._site.streams.graph()
        self._capture.enter_context(site.streams.capturing(graph, site.pool, site.stream))
        self.graphs.append(graph)

    def run(self, batch: ForwardBatch, context: ForwardContext) -> Tensor:
        """Compute a batch of no more tokens, as `Pieces.run`."""
        size = batch.num_tokens
        self._inputs[0, :size].copy_(batch.input_ids)
        self._inputs[1, :size].copy_(batch.positions)
        first, *later = self.graphs
        first.replay()
        for joint, graph in zip(self._joints, later, strict=True):
            joint.attend(context, size)
            graph.replay()
        return self._output[:size]


class Pieces:
    """The pieces of a model in every size: one set serves all phases and backends.

    Args:
        model: the forward to capture, and the head behind it.
        token_counts: the sizes.
        site: where the graphs are captured.
    """

    def __init__(self, model: PieceModel, token_counts: Iterable[int], site: CaptureSite) -> None:
        self.head = model.head
        largest_first = sorted(set(token_counts), reverse=True)
        with site.streams.using(site.stream), torch.no_grad():
            self.buffers = PieceBuffers(largest_first[0], site.streams.device)
            sized = [_Sized(count, model.states, self.buffers, site) for count in largest_first]
        self._smallest_first = sized[::-1]

    @property
    def num_graphs(self) -> int:
        """How many graphs were captured."""
        return sum(len(sized.graphs) for sized in self._smallest_first)

    def run(self, batch: ForwardBatch, context: ForwardContext) -> Tensor:
        """Compute the states of a batch that is held, with attention by `context`.

        returns  [T, H] device  a view of the graphs' memory: the next run overwrites it

        Stream: the current one, which must be the captured one. Sync: the backend's.
        Allocates: what the backend does. Keeps: nothing, but keys and values in the KV cache.
        """
        sizes = self._smallest_first
        fitting = (sized for sized in sizes if batch.num_tokens <= sized.num_tokens)
        return next(fitting).run(batch, context)


@dataclass(frozen=True, slots=True)
class PieceRunner:
    """Run the forwards of one phase in pieces."""

    mode: ClassVar = GraphMode.PIECEWISE
    shared_reads_end: ClassVar = SharedReadsEnd.UNKNOWN
    """As of an eager forward: the declared point is that of a replay of the backend."""

    pieces: Pieces
    """What was captured."""
    backend: AttentionBackend
    """Attends between them, eagerly."""

    def holds(self, batch: ForwardBatch) -> bool:
        """Tell whether a batch has a size that was captured. Sync: none; no length is read."""
        return 0 < batch.num_tokens <= self.pieces.buffers.max_num_tokens

    def replay(self, batch: ForwardBatch) -> Computed:
        """Run a batch that is held: its scores, or its states where there is no head.

        Stream: the current one, which must be the captured one.
        Sync: none, where the backend declares `sync_free_prepare`. Allocates: the scores, and what
        the backend does. Keeps: nothing, but keys and values in the KV cache.
        """
        self.backend.init_forward_metadata(batch)
        states = self.pieces.run(batch, ForwardContext(self.backend, batch))
        if self.pieces.head is not None:
            states = self.pieces.head(batch.last_of(states))
        return Computed(output=states, graph_mode=self.mode)

    def mask_buffers(self, batch_size: int) -> Sequence[Tensor | None]:  # noqa: ARG002
        """Return nothing: no piece reads tree masks."""
        return ()
