"""Liars that are right at the sizes, numbers and layouts that are tried first.

Shapes: T tokens in a batch, S slots in the KV cache, Hq query heads, Hk key and value heads, D and
Dv their sizes.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from backend_caps_torch_native import TorchPadded
from backend_caps_torch_native.padded import _Metadata
from torch import Tensor

from backend_caps import HostSeqLens, OneOf, protocols
from backend_caps.protocols import ModelRunner
from backend_caps.relay.streams import DeviceStreams
from backend_caps.runtime import AttentionLayer, ForwardBatch
from backend_caps.runtime.batch import ForwardMode
from tests.kit.liars import shelf
from tests.kit.liars.bases import Padded, Shown
from tests.kit.specimen import NO_GRAPHS, liar, specimens_of

_WAITS: dict[str, Any] = {**NO_GRAPHS, "host_seq_lens": HostSeqLens.NONE}


class _Layered(TorchPadded):
    """Attend in the layer that `layer_of` makes of one."""

    def layer_of(self, layer: AttentionLayer) -> AttentionLayer:
        """Make another layer of one."""
        return layer

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        layer: protocols.Layer,
        batch: protocols.ForwardBatch,
        *,
        save_kv_cache: bool = True,
    ) -> Tensor:
        """Attend in another layer, where the tokens of this one are stored."""
        assert isinstance(layer, AttentionLayer)
        if save_kv_cache:
            keys = k.reshape(len(k), layer.tp_k_head_num, layer.qk_head_dim)
            values = v.reshape(len(v), layer.tp_k_head_num, layer.v_head_dim)
            self._kv_pool.set_kv_buffer(layer, batch.out_cache_loc, keys, values)
        other = self.layer_of(layer)
        return super().forward(q, k, v, other, batch, save_kv_cache=False)


@liar("numerics", seen="modelled on a layer's id that a wrapper drops")
class FirstLayerForAll(_Layered):
    """Takes models of several layers, and reads the first one's keys and values in each."""

    def layer_of(self, layer: AttentionLayer) -> AttentionLayer:
        """Read the first."""
        return replace(layer, layer_id=0)


@liar("numerics", seen="modelled on a scale that is fixed when a wrapper plans")
class ScalingOfTheFirstLayer(_Layered):
    """Claims to scale as each layer says, and scales all as the first that a batch runs."""

    _scaling: float | None = None

    def init_forward_metadata_in_graph(self, batch: protocols.ForwardBatch) -> None:
        """Forget the scale of the batch before."""
        super().init_forward_metadata_in_graph(batch)
        self._scaling = None

    def layer_of(self, layer: AttentionLayer) -> AttentionLayer:
        """Scale as the first did."""
        self._scaling = self._scaling or layer.scaling
        return replace(layer, scaling=self._scaling)


@liar("numerics", seen="modelled on a plan that its first layer uses up", two_batch_overlap=False)
class PlanForOneLayer(TorchPadded):
    """Takes models of several layers, and turns its mask around behind each."""

    def _attend(self, q: Tensor, keys: Tensor, values: Tensor, scaling: float) -> Tensor:
        output = super()._attend(q, keys, values, scaling)
        kept = self._metadata
        self._metadata = replace(kept, slots=kept.slots.roll(1, 1))
        return output


@liar("numerics", seen="modelled on kernels that hold four KV heads")
class FourKVHeads(TorchPadded):
    """Takes any number of heads, and reads the fourth KV head for every later one."""

    def _attend(self, q: Tensor, keys: Tensor, values: Tensor, scaling: float) -> Tensor:
        heads = torch.arange(keys.shape[1], device=keys.device).clamp(max=3)
        return super()._attend(q, keys[:, heads], values[:, heads], scaling)


@liar("numerics", seen="modelled on tiles that hold four heads of a group")
class FourOfAGroup(TorchPadded):
    """Takes groups of any size, and drops the fifth query head of one and those behind it."""

    def _attend(self, q: Tensor, keys: Tensor, values: Tensor, scaling: float) -> Tensor:
        output = super()._attend(q, keys, values, scaling)
        group = q.shape[1] // keys.shape[1]
        places = torch.arange(q.shape[1], device=q.device) % group
        return output.masked_fill((places >= 4)[:, None], 0)


@liar("numerics", seen="modelled on buffers of a key's width", head_sizes=OneOf({16, 192}))
class WideValues(TorchPadded):
    """Takes keys of 192 features, and drops the values' upper half where they are narrower."""

    def _attend(self, q: Tensor, keys: Tensor, values: Tensor, scaling: float) -> Tensor:
        output = super()._attend(q, keys, values, scaling)
        if values.shape[-1] < keys.shape[-1]:
            output[..., values.shape[-1] // 2 :] = 0
        return output


@liar("numerics", seen="modelled on tiles of sixteen queries")
class SixteenOfAChunk(Shown):
    """Takes chunks of any size, and from the seventeenth token on hides what is cached."""

    def visible(self, batch: ForwardBatch, seen: Tensor) -> Tensor:
        """Hide the context's first tokens."""
        extends, prefixes = batch.extend_seq_lens, batch.extend_prefix_lens
        if extends is None or prefixes is None:
            return seen
        stops = extends.cumsum(0)
        tokens = torch.arange(len(seen), device=seen.device)
        owners = torch.searchsorted(stops, tokens, right=True).clamp(max=len(stops) - 1)
        is_later = tokens - (stops - extends)[owners] >= 16
        is_cached = torch.arange(seen.shape[2], device=seen.device) < prefixes[owners][:, None]
        return seen & ~(is_later[:, None] & is_cached)[:, None]


@liar("numerics", seen="modelled on a block of four drafts")
class FourVerified(Shown):
    """Takes chains of any length, and verifies the fifth token of one as if it were the fourth."""

    def visible(self, batch: ForwardBatch, seen: Tensor) -> Tensor:
        """Have masks for four."""
        if batch.tree_mask is not None or batch.mode is not ForwardMode.VERIFY:
            return seen
        return seen[:, torch.arange(seen.shape[1], device=seen.device).clamp(max=3)]


@liar("roles", seen="modelled on masks of a fixed number of words")
class FiveNodes(Shown):
    """Takes trees of any size, and has the sixth node see what the fifth sees."""

    def visible(self, batch: ForwardBatch, seen: Tensor) -> Tensor:
        """Have masks for five."""
        if batch.tree_mask is None or batch.mode is ForwardMode.DECODE:
            return seen
        return seen[:, torch.arange(seen.shape[1], device=seen.device).clamp(max=4)]


@liar("numerics", seen="modelled on a grid that is as large as most batches", **NO_GRAPHS)
class FourRequests(Padded):
    """Takes any number of requests, and hides the context's first token from the fifth on."""

    def after(self, batch: ForwardBatch, output: Tensor) -> Tensor:
        """Drop what they get."""
        each = len(output) // batch.batch_size
        is_later = torch.arange(len(output), device=output.device) >= 4 * each
        is_many = batch.batch_size > 4
        return output.masked_fill((is_later & is_many)[:, None], 0)


class _Weighed(TorchPadded):
    """Weigh values by what `weights` makes of scores."""

    def weights(self, scores: Tensor) -> Tensor:
        """Make weights, without a sum of one, of scores [R, Hq, N, L]."""
        raise NotImplementedError

    def _attend(self, q: Tensor, keys: Tensor, values: Tensor, scaling: float) -> Tensor:
        slots, seen = self._metadata.slots, self._metadata.visible
        group = q.shape[1] // keys.shape[1]
        near_keys, near_values = (
            own[slots].transpose(1, 2).repeat_interleave(group, 1).to(q.dtype)
            for own in (keys, values)
        )
        queries = q.reshape(*seen.shape[:2], *q.shape[1:]).transpose(1, 2)
        scores = queries @ near_keys.transpose(2, 3) * scaling
        weights = self.weights(scores.masked_fill(~seen[:, None], -torch.inf))
        output = weights @ near_values / weights.sum(-1, keepdim=True)
        output = output.transpose(1, 2).flatten(0, 1)
        return output.masked_fill(self._metadata.is_blind[:, None, None], 0)


@liar("numerics", seen="modelled on softmax without its maximum")
class NoMaximum(_Weighed):
    """Takes scores of any size, and exponentiates them as they are."""

    def weights(self, scores: Tensor) -> Tensor:
        """Subtract nothing."""
        return scores.exp()


@liar("numerics", seen="modelled on a running maximum that begins at zero")
class MaximumFromZero(_Weighed):
    """Takes scores of any sign, and subtracts their maximum where that is above zero."""

    def weights(self, scores: Tensor) -> Tensor:
        """Subtract zero elsewhere."""
        return (scores - scores.amax(-1, keepdim=True).clamp(min=0)).exp()


@liar("numerics", seen="modelled on a cache that is quantized without a scale")
class ClippedValues(TorchPadded):
    """Takes values of any size, and clips them at 32."""

    def _attend(self, q: Tensor, keys: Tensor, values: Tensor, scaling: float) -> Tensor:
        return super()._attend(q, keys, values.clamp(-32, 32), scaling)


class _Reread(TorchPadded):
    """Attend to what `reread` makes of the queries that are given."""

    def reread(self, q: Tensor) -> Tensor:
        """Make queries of queries."""
        return q

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        layer: protocols.Layer,
        batch: protocols.ForwardBatch,
        *,
        save_kv_cache: bool = True,
    ) -> Tensor:
        """Attend."""
        return super().forward(self.reread(q), k, v, layer, batch, save_kv_cache=save_kv_cache)


@liar("numerics", seen="modelled on kernels that take rows to lie one behind the other")
class QueriesWithoutGaps(_Reread):
    """Takes queries as an engine gives them, and reads them as if no other tensor lay between."""

    def reread(self, q: Tensor) -> Tensor:
        """Read on behind the first row."""
        width = q[0].numel()
        return q.as_strided((len(q), width), (width, 1))


@liar("numerics", seen="modelled on kernels with 32-bit indices")
class NarrowTable(TorchPadded):
    """Takes page tables of both dtypes, and reads one of 64 bits as if it had 32."""

    def __init__(self, runner: ModelRunner) -> None:
        super().__init__(runner)
        table = self._req_to_token
        if table.dtype is torch.int64:
            self._req_to_token = table.view(torch.int32)[:, : table.shape[1]]


@liar("batches-apart", seen="modelled on sglang#30435", sync_free_prepare=False, **NO_GRAPHS)
class PlanOfTheLengths(TorchPadded):
    """Owes each batch its own rows, and keeps its plan where lengths are those of the last one."""

    _kept: tuple[object, _Metadata] | None = None

    def init_forward_metadata(self, batch: protocols.ForwardBatch) -> None:
        """Plan where a length is new."""
        assert isinstance(batch, ForwardBatch)
        lengths = (batch.num_tokens, batch.mode, batch.seq_lens.tolist())
        if self._kept is None or self._kept[0] != lengths or batch.tree_mask is not None:
            super().init_forward_metadata(batch)
            self._kept = lengths, self._metadata
        self._metadata = self._kept[1]


@liar("inputs-untouched", seen="modelled on kernels that scale or rotate in place", **NO_GRAPHS)
class QueryInPlace(_Reread):
    """Leaves queries as they are, it says, and doubles them in place."""

    def reread(self, q: Tensor) -> Tensor:
        """Halve what it attends with."""
        return q.mul_(2) / 2


@liar("inputs-untouched", seen="modelled on a norm that is fused into the store", **NO_GRAPHS)
class KeyInPlace(TorchPadded):
    """Leaves keys and values as they are, it says, and empties keys once they are stored."""

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        layer: protocols.Layer,
        batch: protocols.ForwardBatch,
        *,
        save_kv_cache: bool = True,
    ) -> Tensor:
        """Empty them."""
        output = super().forward(q, k, v, layer, batch, save_kv_cache=save_kv_cache)
        k.zero_()
        return output


@liar("inputs-untouched", seen="modelled on a seed that is set for good", **NO_GRAPHS)
class SeedOfItsOwn(Padded):
    """Leaves the process as it is, it says, and seeds torch's numbers for a sketch of its own."""

    def seen(self, batch: ForwardBatch) -> ForwardBatch:
        """Seed them."""
        torch.manual_seed(7)
        return batch


@liar("inputs-untouched", seen="modelled on a helper that computes in another dtype", **NO_GRAPHS)
class DefaultDtype(Padded):
    """Leaves the process as it is, it says, and makes float16 the dtype of new tensors."""

    def after(self, batch: ForwardBatch, output: Tensor) -> Tensor:
        """Change it."""
        del batch
        torch.set_default_dtype(torch.float16)
        return output


@liar("inputs-untouched", seen="modelled on a switch that a library leaves", **NO_GRAPHS)
class GradientsOn(Padded):
    """Leaves the process as it is, it says, and switches gradients on."""

    def after(self, batch: ForwardBatch, output: Tensor) -> Tensor:
        """Switch."""
        del batch
        torch.set_grad_enabled(True)
        return output


@liar("memory", seen="modelled on sglang#37674")
class KeptElsewhere(TorchPadded):
    """Owes the engine its memory back, and keeps something for each step in another module."""

    def init_forward_metadata(self, batch: protocols.ForwardBatch) -> None:
        """Write it down there."""
        shelf.KEPT.append((len(shelf.KEPT), "step", float(len(shelf.KEPT))))
        super().init_forward_metadata(batch)


@liar("memory", seen="modelled on sglang#37674")
class OneLongTensor(TorchPadded):
    """Owes the engine its memory back, and makes one tensor longer with each step."""

    def __init__(self, runner: ModelRunner) -> None:
        super().__init__(runner)
        self._history = torch.zeros(0, dtype=torch.int64)

    def init_forward_metadata(self, batch: protocols.ForwardBatch) -> None:
        """Put the number of tokens behind it."""
        more = torch.full((64,), len(batch.out_cache_loc))
        self._history = torch.cat([self._history, more])
        super().init_forward_metadata(batch)


@liar("sync-free-prepare", seen="modelled on mini-sglang#103", **_WAITS)
class PollsAnEvent(Padded):
    """Claims a sync-free prepare, and asks an event whether it has come until it has."""

    def __init__(self, site: ModelRunner) -> None:
        super().__init__(site)
        self._streams = DeviceStreams(self._table.device)

    def seen(self, batch: ForwardBatch) -> ForwardBatch:
        """Ask on and on."""
        event = self._streams.event()
        event.record(self._streams.current_stream())
        while not event.query():
            pass
        return batch


@liar("serving", seen="modelled on an error that no comparison with itself shows", **NO_GRAPHS)
class HalvedWhereSampled(Padded):
    """Attends alike however tokens are chosen, it says, and halves outputs of sampled requests."""

    def after(self, batch: ForwardBatch, output: Tensor) -> Tensor:
        """Halve them, in every batch alike."""
        if batch.sampling is None:
            return output
        is_sampled, extends = batch.sampling.temperature > 0, batch.extend_seq_lens
        counts = batch.num_tokens // batch.batch_size if extends is None else extends
        of_tokens = is_sampled.repeat_interleave(counts, output_size=batch.num_tokens)
        return torch.where(of_tokens[:, None], output / 2, output)


LIARS = specimens_of(__name__)
"""All of them."""
