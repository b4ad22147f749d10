"""Attention over a paged KV cache by `flex_attention`.

Shapes: L the longest context, B requests and T tokens in the batch, Hq query heads, Hk key and
value heads, D and Dv their sizes, W tokens to which contexts are padded, S slots in the KV cache.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import torch
from torch import Tensor
from torch._dynamo.exc import FailOnRecompileLimitHit, TorchDynamoException

from backend_caps.protocols import ForwardBatch, Layer, ModelRunner
from backend_caps_flex_attention.kernels import (
    Mode,
    NotCompiledError,
    attend_compiled,
    attend_eagerly,
)
from backend_caps_flex_attention.parts import Part, padded_width, parts_of

_LOG = logging.getLogger("backend_caps.flex_attention")

_COMPILED_ON = frozenset({"cpu", "cuda"})
"""Devices for which torch 2.13 has a kernel, and whose host may hold the other half of the work.
It refuses devices that it does not know; of xpu, hpu and mps nothing was tried."""


class FlexAttention:
    """Gather contexts up to their upper bounds, and attend by `flex_attention`.

    A forward costs a copy of every context, padded to the largest bound of its batch, and to the
    longest context there may be where it is captured; the kernel visits what is seen alone.

    Args:
        runner: its page table and KV cache.
        mode: how to attend; where it cannot be compiled, it is eager whatever is asked.
    """

    def __init__(self, runner: ModelRunner, *, mode: Mode = Mode.COMPILED) -> None:
        self._page_table = runner.req_to_token_pool.req_to_token
        self._kv_pool = runner.token_to_kv_pool
        self._parts: Sequence[Part] = ()
        self._mode = mode
        self._reason = None if mode is Mode.COMPILED else "it was asked for"
        device = self._page_table.device.type
        if device not in _COMPILED_ON:
            self._attend_eagerly_from_now(f"flex_attention has no kernel for device {device!r}")

    @property
    def mode(self) -> Mode:
        """How this backend attends: eager from the first forward that cannot be compiled."""
        return self._mode

    @property
    def reason(self) -> str | None:
        """Why it is eager; None where it is compiled."""
        return self._reason

    def init_forward_metadata(self, batch: ForwardBatch) -> None:
        """Prepare an eager forward of contexts up to `batch.seq_lens_cpu_upper_bound`.

        Without a bound, contexts are padded to the longest there may be.

        Stream: the current one.
        Sync: none. Allocates: slots, masks and block tables. Keeps: those, until the next forward.
        Capture: no; the width is a host value.
        """
        bounds_cpu = batch.seq_lens_cpu_upper_bound
        longest = self._page_table.shape[1]
        if bounds_cpu is not None and len(bounds_cpu):
            longest = min(longest, int(bounds_cpu.max()))
        self._parts = parts_of(self._page_table, batch, padded_width(longest))

    def init_cuda_graph_state(self, max_bs: int, max_num_tokens: int) -> None:
        """Do nothing: a graph makes the metadata itself, in memory of its own."""

    def init_forward_metadata_out_graph(self, batch: ForwardBatch) -> None:
        """Do nothing: the host has no share."""

    def init_forward_metadata_in_graph(self, batch: ForwardBatch) -> None:
        """Prepare a captured forward of contexts of any length, all on the device.

        Stream: the current one.
        Sync: none. Allocates: slots, masks and block tables. Keeps: those, until the next forward.
        Capture: yes; a replay reads the batch's tensors and the page table anew.
        """
        self._parts = parts_of(self._page_table, batch, padded_width(self._page_table.shape[1]))

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        layer: Layer,
        batch: ForwardBatch,
        *,
        save_kv_cache: bool = True,
    ) -> Tensor:
        """Attend from this forward's tokens to their requests' contexts, for one layer.

        q        [T, Hq * D] or [T, Hq, D], device
        k        [T, Hk * D] or [T, Hk, D], device
        v        [T, Hk * Dv] or [T, Hk, Dv], device
        returns  [T, Hq * Dv], device, in q's dtype; zeros for padded tokens

        Stream: the current one.
        Sync: none. Allocates: the output, and copies of the contexts. Keeps: nothing; k and v
        are copied into the KV cache, unless `save_kv_cache` says that they are there.
        Capture: yes. Exact: over the whole context, causal or as the batch's tree mask says.
        """
        if save_kv_cache:
            new_keys = k.reshape(len(k), layer.tp_k_head_num, layer.qk_head_dim)
            new_values = v.reshape(len(v), layer.tp_k_head_num, layer.v_head_dim)
            self._kv_pool.set_kv_buffer(layer, batch.out_cache_loc, new_keys, new_values)
        queries = q.reshape(len(q), layer.tp_q_head_num, layer.qk_head_dim)
        keys = self._kv_pool.get_key_buffer(layer.layer_id)
        values = self._kv_pool.get_value_buffer(layer.layer_id)
        output = q.new_zeros(len(q), layer.tp_q_head_num, layer.v_head_dim)
        for part in self._parts:
            # Where tokens of one part are tokens of another too, each sees nothing of all but one.
            output[part.tokens] += self._attend(part, queries, keys, values, layer.scaling)
        return output.flatten(1)

    def _attend(
        self, part: Part, queries: Tensor, keys: Tensor, values: Tensor, scaling: float
    ) -> Tensor:
        """Attend from queries [T, Hq, D] to keys [S, Hk, D] and values [S, Hk, Dv], in one part."""
        own, (num_rows, num_tokens) = queries[part.tokens], part.mask.shape
        if part.order is None:
            rows = own
        else:
            rows = own.new_zeros(num_rows * num_tokens, *own.shape[1:])
            rows[part.order] = own
        # A gathered context is never a view of one of other sizes: torch would compile for those.
        slots = part.slots.reshape(num_rows, -1)
        output = self._attend_in_mode(
            part,
            rows.reshape(num_rows, num_tokens, *own.shape[1:]),
            keys[slots].to(own.dtype),
            values[slots].to(own.dtype),
            scaling,
        ).flatten(0, 1)
        if part.order is not None:
            output = output[part.order]
        # Whatever a kernel makes of a token that sees nothing is dropped.
        return output.masked_fill(part.is_blind[:, None, None], 0)

    def _attend_in_mode(
        self, part: Part, q: Tensor, keys: Tensor, values: Tensor, scaling: float
    ) -> Tensor:
        """Attend from q [R, N, Hq, D] to keys [R, K, Hk, D] and values alike, in one part."""
        if self._mode is Mode.COMPILED:
            try:
                with torch.no_grad():
                    return attend_compiled(q, keys, values, part.mask, part.table, scaling)
            except (NotCompiledError, TorchDynamoException, FailOnRecompileLimitHit) as error:
                self._attend_eagerly_from_now(_said(error))
        return attend_eagerly(q, keys, values, part.mask, scaling, width=part.slots.shape[1])

    def _attend_eagerly_from_now(self, reason: str) -> None:
        self._mode, self._reason = Mode.EAGER, reason
        _LOG.warning("flex_attention attends eagerly, and costs more: %s", reason)


def _said(error: Exception) -> str:
    """Say why it was not compiled in a line or two: a compiler's output is hundreds."""
    lines = [line for line in str(error).splitlines() if line]
    return " ".join(lines[:2])
