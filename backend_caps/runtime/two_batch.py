"""Two-batch overlap (TBO): a batch cut into two halves, which run on two streams.

The first half runs on the forward stream and the second on a stream of its own, so that one half's
projections and MLPs run beside the other's attention. Attentions take turns, layer by layer: both
halves write the same KV cache, and a backend's two objects may share memory of their own.

Shapes: B requests and T tokens in the batch, H features of a token.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from backend_caps.capability.kind import Phase
from backend_caps.relay.streams import DeviceStreams, EventLike, StreamLike
from backend_caps.runtime.attention import ForwardContext, PhaseBackends
from backend_caps.runtime.forward_batch import ForwardBatch
from backend_caps.runtime.model.layers import AttentionLayer, DecoderLayer
from backend_caps.runtime.model.llama import AuxStates, LlamaModel


def split(batch: ForwardBatch) -> tuple[ForwardBatch, ForwardBatch]:
    """Cut a batch in two by the number of its requests.

    The first half has B // 2 requests, so of an odd number the second has one more; of one request
    the first half has it, and the second has none. Nothing is read of lengths that the host may
    lack: in decode and verify every request brings T / B tokens, and where each brings its own
    number the scheduler cut them. A half has a mirror where the batch has one. Tokens are chosen of
    the whole batch, so neither half has `sampling`.

    Stream: the current one. Sync: none. Allocates: the second half's `last_token_indices`; all
    else are views. Keeps: nothing.
    """
    num_first = max(1, batch.batch_size // 2)
    num_tokens = _tokens_before(batch, num_first)
    first = batch.part(slice(0, num_first), slice(0, num_tokens))
    second = batch.part(slice(num_first, None), slice(num_tokens, None))
    if batch.half_masks is not None:
        first.tree_mask, second.tree_mask = batch.half_masks
    elif batch.tree_mask is not None:
        # Where a half's mask ends in the whole one's layout only the device knows.
        assert batch.batch_size == 1, "a tree mask is laid out in halves, or its batch runs whole"
        first.tree_mask, second.tree_mask = batch.tree_mask, batch.tree_mask[:0]
    return first, second


class TwoBatchRunner:
    """Run a model over both halves of a batch, one layer of either in turn.

    Args:
        model: the model.
        backends: its attention, once for each half, of the same uses: what a backend prepares is
            one forward's, so one object cannot serve two halves that are both under way.
        streams: the device's; the second half's stream is drawn from them.
        phases: where batches are cut.
    """

    def __init__(
        self,
        model: LlamaModel,
        backends: tuple[PhaseBackends, PhaseBackends],
        streams: DeviceStreams,
        phases: frozenset[Phase],
    ) -> None:
        self._model = model
        self.backends = backends
        self._streams = streams
        self._phases = phases
        self._side = streams.private_stream()

    def cuts(self, phase: Phase, batch_size: int) -> bool:
        """Tell whether a batch of so many requests runs in halves; one request runs whole."""
        return batch_size > 1 and phase in self._phases

    def hidden_states(self, batch: ForwardBatch, phase: Phase) -> Tensor:
        """Compute all but the LM head, tokens in the batch's order.

        returns  [T, H] device, or what the model's `hidden_states` returns

        Stream: the current one, and the second half's, which it waits for. Sync: none, where the
        backends declare `sync_free_prepare`. Allocates: the result and what lies between.
        Keeps: nothing, but keys and values in the KV cache.

        Raises:
            EngineError: `phase`: no backend serves the phase.
        """
        halves = zip(self.backends, split(batch), strict=True)
        return self.states([backends.prepared(phase, half) for backends, half in halves])

    def states(self, contexts: Sequence[ForwardContext]) -> Tensor:
        """Compute both halves, whose metadata is prepared, as `hidden_states` does.

        returns  [T, H] device  the first half's tokens, then the second's

        Stream: the current one, and the second half's: it waits for all that the current one has,
        and at the end the current one waits for it. Sync: none. Allocates: the result and what
        lies between. Keeps: nothing, but keys and values in the KV cache. Capture: the backends';
        the second half's stream joins it.
        """
        forward, last = self._streams.current_stream(), self._streams.event()
        self._side.wait_stream(forward)
        halves = []
        for context, stream in zip(contexts, (forward, self._side), strict=True):
            with self._streams.using(stream):
                halves.append(_HalfForward(self._model, context, stream, last))
        for layer_id, layer in enumerate(self._model.layers):
            for half in halves:
                with self._streams.using(half.stream):
                    half.run(layer_id, layer)
        forward.wait_stream(self._side)
        for half in halves:
            half.aux.before(len(self._model.layers), half.hidden)
        # They were allocated on the second half's stream, and are read on this one.
        for own in (halves[1].hidden, *halves[1].aux.kept):
            self._streams.keep_alive(own)
        aux = AuxStates.of_parts([half.aux for half in halves])
        return aux.beside(self._model.norm(torch.cat([half.hidden for half in halves])))


class _HalfForward:
    """One half on its way through the layers, on its own stream.

    Args:
        model: whose layers.
        context: the half's.
        stream: the half's.
        last: behind the last attention of either half.
    """

    def __init__(
        self, model: LlamaModel, context: ForwardContext, stream: StreamLike, last: EventLike
    ) -> None:
        self._context = context
        self.stream = stream
        self._last = last
        self._rotation = model.rotary.look_up(context.batch.positions)
        self.hidden = model.embedding(context.batch.input_ids)
        """[T, H] device: what the next layer takes."""
        self.aux = AuxStates(model.aux_layer_ids)
        """The inputs of layers that an EAGLE3 head reads."""

    def run(self, layer_id: int, layer: DecoderLayer) -> None:
        """Compute the next layer."""
        self.aux.before(layer_id, self.hidden)
        self.hidden = layer(self.hidden, self._rotation, self)

    def attend(self, layer: AttentionLayer, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attend in one layer, behind the last attention that either half has run."""
        self.stream.wait_event(self._last)
        attended = self._context.attend(layer, q, k, v)
        self._last.record(self.stream)
        return attended


def _tokens_before(batch: ForwardBatch, num_requests: int) -> int:
    """Count the tokens of the batch's first requests."""
    if batch.extend_seq_lens is None:
        return num_requests * (batch.num_tokens // batch.batch_size)
    lens_cpu = batch.mixed_lens_cpu or batch.extend_seq_lens_cpu
    assert lens_cpu is not None, "the scheduler cuts what requests bring"
    return sum(lens_cpu[:num_requests])
