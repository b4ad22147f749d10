"""Record the attention of an engine's layers, and compare it with its definition.

An engine builds its backends from a plan. The plan of a recorded subject names `build_recorded`,
which wraps the backend under test.

Shapes: P rows in the request pool, L the longest context, B requests and T tokens in a batch, N new
tokens of one request and C tokens of its context, Hq query heads, Hk key and value heads, D and Dv
their sizes, M entries in a tree mask.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from backend_caps.kit.scene import causal, one_request
from backend_caps.kit.subject import Subject
from backend_caps.runtime.attention import AttentionBackend, BackendSite
from backend_caps.runtime.forward_batch import ForwardBatch
from backend_caps.runtime.model.layers import AttentionLayer
from backend_caps.runtime.request import Request

_BUILD = f"{__name__}:build_recorded"


@dataclass(frozen=True, slots=True, kw_only=True)
class AttendedLayer:
    """One layer's forward; tensors are copies on the device, made behind it."""

    layer: AttentionLayer
    model: str
    """Whose layer it is: the target's or the draft's."""
    requests: Mapping[int, int]
    """Numbers of requests by their rows."""
    rows: Tensor
    """[B] int64, device."""
    lengths: Tensor
    """[B] int64, device."""
    extends: Tensor | None
    """[B] int64, device: new tokens of each request; None: T / B each."""
    mask: Tensor | None
    """[M] bool, device."""
    q: Tensor
    """[T, Hq, D], device."""
    k: Tensor
    """[T, Hk, D], device."""
    v: Tensor
    """[T, Hk, Dv], device."""
    keys: Tensor
    """[B, L, Hk, D], device: what the page table's rows name."""
    values: Tensor
    """[B, L, Hk, Dv], device."""
    output: Tensor
    """[T, Hq, Dv], device."""

    def difference(self, tolerance: float) -> str | None:
        """Describe the first request and position that differ; None where none does.

        Sync: the host waits.
        """
        host = {
            name: getattr(self, name).cpu()
            for name in ("q", "k", "v", "keys", "values", "output", "rows", "lengths")
        }
        counts = self._counts()
        tokens = [torch.split(host[name][: sum(counts)], counts) for name in ("q", "k", "v")]
        found = torch.split(host["output"][: sum(counts)], counts)
        first_entry = 0
        for place, (length, row) in enumerate(
            zip(host["lengths"].tolist(), host["rows"].tolist(), strict=True)
        ):
            count = counts[place]
            entries = slice(first_entry, first_entry + count * length)
            first_entry = entries.stop
            if not row or not count:
                continue
            q, k, v = (own[place] for own in tokens)
            keys = torch.cat([host["keys"][place, : length - count], k]).double()
            values = torch.cat([host["values"][place, : length - count], v]).double()
            seen = causal(count, length)
            if self.mask is not None:
                seen = self.mask[entries].cpu().view(count, length)
            scaling = torch.full((q.shape[1],), self.layer.scaling, dtype=torch.float64)
            expected = one_request(q.double(), keys, values, seen, scaling)
            error = (found[place].double() - expected).abs().nan_to_num(torch.inf)
            wrong = (error > tolerance * (1 + expected.abs())).flatten(1).any(1)
            if wrong.any():
                position = length - count + int(wrong.int().argmax())
                return (
                    f"layer {self.layer.layer_id} of the {self.model}, request "
                    f"{self.requests.get(row, '?')}, position {position}: beside float64 its "
                    f"output differs by up to {error[wrong].max():.2g}, allowed is {tolerance:.2g}"
                )
        return None

    def _counts(self) -> list[int]:
        if self.extends is None:
            return [len(self.q) // len(self.rows)] * len(self.rows)
        counts: list[int] = self.extends.tolist()
        return counts


@dataclass(slots=True)
class AttentionRecord:
    """The attention of each layer that an engine ran outside of graphs.

    Args:
        subject: the backend.
    """

    subject: Subject
    submitted: Mapping[int, Request] = field(default_factory=dict)
    """The requests by their numbers; rows are looked up there."""
    layers: list[AttendedLayer] = field(default_factory=list)
    """In the order of their launches."""
    _caches: list[object] = field(default_factory=list)

    @property
    def recorded_subject(self) -> Subject:
        """The subject whose implementation is recorded, within `active`."""
        declaration = self.subject.declaration.model_copy(update={"implementation": _BUILD})
        return replace(self.subject, declaration=declaration)

    @contextmanager
    def active(self) -> Iterator[None]:
        """Record the backends that an engine builds in a `with` block."""
        token = _ACTIVE.set(self)
        try:
            yield
        finally:
            _ACTIVE.reset(token)

    def model_of(self, site: BackendSite) -> str:
        """Return whose KV cache a backend is built from: the first one is the target's."""
        cache = site.token_to_kv_pool
        if not any(cache is known for known in self._caches):
            self._caches.append(cache)
        return "target" if cache is self._caches[0] else "draft"

    def first_difference(self, tolerance: float) -> str | None:
        """Describe the first layer, request and position that differ from float64.

        Sync: the host waits. The record is empty behind it.
        """
        layers, self.layers = self.layers, []
        return next(filter(None, (layer.difference(tolerance) for layer in layers)), None)


_ACTIVE: ContextVar[AttentionRecord] = ContextVar("active attention record")


def build_recorded(site: BackendSite) -> AttentionBackend:
    """Build the backend of the active record, wrapped."""
    record = _ACTIVE.get()
    return RecordedBackend(record, record.subject.build(site), site)


class RecordedBackend:
    """A backend whose eager layers are copied to a record.

    Args:
        record: where the copies go.
        backend: the backend.
        site: the pools that it was built from.
    """

    def __init__(
        self, record: AttentionRecord, backend: AttentionBackend, site: BackendSite
    ) -> None:
        self._record, self._backend, self._site = record, backend, site
        self._model, self._is_eager = record.model_of(site), False
        self.init_cuda_graph_state = backend.init_cuda_graph_state
        self.init_forward_metadata_out_graph = backend.init_forward_metadata_out_graph

    def init_forward_metadata(self, batch: ForwardBatch) -> None:
        """Prepare an eager forward, whose layers are recorded."""
        self._is_eager = True
        self._backend.init_forward_metadata(batch)

    def init_forward_metadata_in_graph(self, batch: ForwardBatch) -> None:
        """Prepare a captured forward, whose layers are not recorded."""
        self._is_eager = False
        self._backend.init_forward_metadata_in_graph(batch)

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
        """Attend, and copy what went in and came out.

        Stream: the current one. Sync: none.
        """
        if not self._is_eager:
            return self._backend.forward(q, k, v, layer, batch, save_kv_cache=save_kv_cache)
        given = [own.clone() for own in (q, k, v)]
        output = self._backend.forward(q, k, v, layer, batch, save_kv_cache=save_kv_cache)
        self._record.layers.append(self._attended(layer, batch, given, output))
        return output

    def _attended(
        self, layer: AttentionLayer, batch: ForwardBatch, given: list[Tensor], output: Tensor
    ) -> AttendedLayer:
        pool = self._site.token_to_kv_pool
        table = self._site.req_to_token_pool.req_to_token
        slots = table[batch.req_pool_indices].long()
        heads = (layer.tp_q_head_num, layer.tp_k_head_num, layer.tp_k_head_num)
        q, k, v = (own.view(len(own), count, -1) for own, count in zip(given, heads, strict=True))
        submitted = self._record.submitted
        extends, mask = batch.extend_seq_lens, batch.tree_mask
        return AttendedLayer(
            layer=layer,
            model=self._model,
            requests={own.row: number for number, own in submitted.items() if own.row},
            rows=batch.req_pool_indices.clone(),
            lengths=batch.seq_lens.clone(),
            extends=None if extends is None else extends.clone(),
            mask=None if mask is None else mask.clone(),
            q=q,
            k=k,
            v=v,
            keys=pool.get_key_buffer(layer.layer_id)[slots],
            values=pool.get_value_buffer(layer.layer_id)[slots],
            output=output.clone().view(len(output), layer.tp_q_head_num, -1),
        )
