"""Batches of the kit as vLLM's model runner describes them to its metadata builders.

Requests of padding have no tokens and no context, their rows of the block table are those of the
null block, and tokens of padding are stored nowhere.

Shapes: B requests and T tokens in the batch, M blocks of the longest context.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, make_dataclass
from functools import cache, partial
from types import SimpleNamespace

import torch
from torch import Tensor
from torch.nn.functional import pad

from backend_caps.kit.scenes import Pools
from backend_caps.runtime.forward_batch import ForwardBatch
from backend_caps_vllm.kit.engine_modules import VLLM

PADDING_ROW = 0
"""The row of the request pool that requests of padding have."""
NULL_BLOCK = 0
"""The block of contexts that are not there."""
NO_SLOT = -1
"""The slot of a token that is stored nowhere."""


@dataclass(frozen=True, slots=True)
class InputTensors:
    """The tensors of a batch that vLLM's runner makes on the device."""

    query_start_loc: Tensor
    """[B + 1] int32: where each request's tokens begin."""
    seq_lens: Tensor
    """[B] int32: contexts, this forward's tokens included."""
    block_table: Tensor
    """[B, M] int32."""
    slot_mapping: Tensor
    """[T] int64."""
    positions: Tensor
    """[T] int64."""

    @classmethod
    def of(cls, batch: ForwardBatch, pools: Pools, num_blocks: int) -> InputTensors:
        """Make the tensors of a batch, with so many blocks in a row of the table. Sync: none."""
        rows, page = batch.req_pool_indices, pools.page_size
        is_real = rows != PADDING_ROW
        counts = batch.extend_seq_lens
        if counts is None:
            counts = torch.full_like(rows, batch.num_tokens // batch.batch_size)
        ends = torch.where(is_real, counts, 0).cumsum(0)
        table = pools.req_to_token.index_select(0, rows)[:, ::page] // page
        table = pad(
            torch.where(is_real[:, None], table, NULL_BLOCK), (0, num_blocks - table.shape[1])
        )
        is_stored = torch.arange(batch.num_tokens, device=rows.device) < ends[-1:]
        return cls(
            query_start_loc=torch.cat([torch.zeros_like(ends[:1]), ends]).int(),
            seq_lens=torch.where(is_real, batch.seq_lens, 0).int(),
            block_table=table.int(),
            slot_mapping=torch.where(is_stored, batch.out_cache_loc, NO_SLOT),
            positions=batch.positions,
        )


class InputBuffers:
    """The tensors at whose addresses graphs read, as large as the largest graph needs.

    Args:
        max_batch_size: requests.
        max_num_tokens: tokens.
        num_blocks: in a row of the block table.
        device: where they are.
    """

    def __init__(
        self, max_batch_size: int, max_num_tokens: int, num_blocks: int, device: torch.device
    ) -> None:
        on_device = partial(torch.zeros, device=device)
        self._whole = InputTensors(
            query_start_loc=on_device(max_batch_size + 1, dtype=torch.int32),
            seq_lens=on_device(max_batch_size, dtype=torch.int32),
            block_table=on_device(max_batch_size, num_blocks, dtype=torch.int32),
            slot_mapping=on_device(max_num_tokens, dtype=torch.int64),
            positions=on_device(max_num_tokens, dtype=torch.int64),
        )

    def part(self, batch_size: int, num_tokens: int) -> InputTensors:
        """Return the part that batches of one size fill."""
        return InputTensors(
            query_start_loc=self._whole.query_start_loc[: batch_size + 1],
            seq_lens=self._whole.seq_lens[:batch_size],
            block_table=self._whole.block_table[:batch_size],
            slot_mapping=self._whole.slot_mapping[:num_tokens],
            positions=self._whole.positions[:num_tokens],
        )

    def load(self, own: InputTensors) -> InputTensors:
        """Copy a batch to the buffers. Stream: the current one. Sync: none."""
        part = self.part(len(own.seq_lens), len(own.slot_mapping))
        for name in InputTensors.__slots__:
            getattr(part, name).copy_(getattr(own, name))
        return part

    def load_dummy(self, batch_size: int, num_tokens: int) -> InputTensors:
        """Fill the buffers as vLLM does for a capture: requests without a cached token."""
        part = self.part(batch_size, num_tokens)
        edges = torch.arange(batch_size + 1, device=part.seq_lens.device) * num_tokens // batch_size
        part.query_start_loc.copy_(edges)
        part.seq_lens.copy_(edges.diff())
        part.block_table.zero_()
        part.slot_mapping.fill_(NO_SLOT)
        part.positions.zero_()
        return part


@dataclass(frozen=True, slots=True)
class HostLengths:
    """What the host knows of a batch; each length is asked of the batch when vLLM reads it.

    So a read is seen where it happens, and a batch without bounds has none here.
    """

    batch: ForwardBatch
    longest: int
    """The longest context that the model takes."""
    is_capture: bool = False
    """Whether the batch only has the size of a graph that is captured."""

    def counts(self) -> Tensor:
        """Return the tokens of each request: [B] int32, host."""
        size, total = self.batch.batch_size, self.batch.num_tokens
        if self.batch.extend_seq_lens is None:
            return torch.full((size,), total // size, dtype=torch.int32)
        known = None if self.is_capture else self.batch.extend_seq_lens_cpu
        if known is not None:
            return torch.tensor(known, dtype=torch.int32)
        counts = torch.full((size,), total // size, dtype=torch.int32)
        counts[size - total % size :] += 1
        return counts

    def query_start_loc_cpu(self) -> Tensor:
        """Return where each request's tokens begin: [B + 1] int32, host."""
        ends = self.counts().cumsum(0, dtype=torch.int32)
        return torch.cat([ends.new_zeros(1), ends])

    def max_query_len(self) -> int:
        """Return the most tokens of a request; a graph of mixed batches has room for any."""
        if self.is_capture and self.batch.extend_seq_lens is not None:
            return self.batch.num_tokens
        return int(self.counts().max())

    def seq_lens_cpu_upper_bound(self) -> Tensor | None:
        """Return a bound of each context: [B] int32, host; None where the host knows none.

        Requests of a capture have no cached tokens.
        """
        if self.is_capture:
            return self.counts()
        bounds = self.batch.seq_lens_cpu_upper_bound
        if bounds is None:
            bounds = self.batch.seq_lens_cpu
        return None if bounds is None else bounds.int()

    def max_seq_len(self) -> int:
        """Return a bound of the longest context."""
        bounds = None if self.is_capture else self.seq_lens_cpu_upper_bound()
        return self.longest if bounds is None else int(bounds.max())

    def is_prefilling(self) -> Tensor:
        """Return which requests are within their prompts: [B] bool, host."""
        if self.batch.extend_seq_lens is None:
            return torch.zeros(self.batch.batch_size, dtype=torch.bool)
        return self.counts() > 1


_ON_HOST = (
    "query_start_loc_cpu",
    "max_query_len",
    "seq_lens_cpu_upper_bound",
    "max_seq_len",
    "is_prefilling",
)
"""Fields of vLLM's batch that are answered by `HostLengths`."""


def common_metadata(vllm: VLLM, own: InputTensors, host: HostLengths) -> SimpleNamespace:
    """Make the description of a batch that vLLM's builders are called with."""
    unread: dict[str, object] = dict.fromkeys(_ON_HOST)
    return _described_class(vllm.attention.CommonAttentionMetadata)(
        query_start_loc=own.query_start_loc,
        seq_lens=own.seq_lens,
        num_reqs=len(own.seq_lens),
        num_actual_tokens=len(own.slot_mapping),
        block_table_tensor=own.block_table,
        slot_mapping=own.slot_mapping,
        positions=own.positions,
        host=host,
        **unread,
    )


@cache
def _described_class(base: type) -> Callable[..., SimpleNamespace]:
    """Make vLLM's class one whose host lengths are asked of `HostLengths` when they are read."""

    def read_by(name: str) -> property:
        def get(made: SimpleNamespace) -> object:
            assigned = vars(made).get(name)
            return getattr(made.host, name)() if assigned is None else assigned

        def assign(made: SimpleNamespace, value: object) -> None:
            vars(made)[name] = value

        return property(get, assign)

    properties = {name: read_by(name) for name in _ON_HOST}
    made: Callable[..., SimpleNamespace] = make_dataclass(
        base.__name__, [("host", object, None)], bases=(base,), namespace=properties
    )
    return made
