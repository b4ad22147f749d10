"""The tensors that captured forwards read: one set for all graphs, as large as the largest.

A graph has the addresses of its capture, so each batch is copied to them before a replay. Padding
is written anew each time: what a larger batch left there would be rows and slots of other requests,
and the replay would write to them.

Shapes: B requests and T tokens in the batch, Bg and Tg in the graph (B <= Bg, T <= Tg).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from operator import attrgetter

import torch
from torch import Tensor

from backend_caps.capability.vocabulary import BatchKind, HostSeqLens
from backend_caps.runtime.batch import ForwardMode
from backend_caps.runtime.forward_batch import ForwardBatch
from backend_caps.startup.graph_modes import Bucket

# The mode that a backend sees, at the capture and at every replay alike.
_MODES = {
    BatchKind.SINGLE_TOKEN_DECODE: ForwardMode.DECODE,
    BatchKind.UNIFORM_BATCH: ForwardMode.EXTEND,
    BatchKind.MIXED_BATCH: ForwardMode.MIXED,
}
_READ = attrgetter(
    *("input_ids", "positions", "out_cache_loc", "req_pool_indices", "seq_lens"),
    *("extend_seq_lens", "extend_prefix_lens", "last_token_indices", "tree_mask"),
)
"""The device tensors that a graph reads; the last four are None where its batches have none."""
# Entries in 128 bytes: every buffer starts where kernels load widest.
_ALIGNMENT = 16


def fits(batch: ForwardBatch, bucket: Bucket) -> bool:
    """Tell whether a batch can be padded to a size. Sync: none; no length is read."""
    if not 0 < batch.batch_size <= bucket.batch_size or batch.num_tokens > bucket.num_tokens:
        return False
    if not bucket.pads and batch.batch_size < bucket.batch_size:
        return False
    if bucket.kind is BatchKind.MIXED_BATCH:
        return batch.extend_seq_lens is not None and batch.last_token_indices is not None
    return batch.tokens_each == bucket.tokens_each


@dataclass(frozen=True, slots=True, kw_only=True)
class StaticBatch:
    """One bucket's share of the buffers."""

    bucket: Bucket
    forward: ForwardBatch
    """Views of the buffers; host lengths are those of padding alone."""
    of_requests: Tensor
    """[5, Bg] int64, device: every tensor that has an entry a request."""
    of_tokens: Tensor
    """[3, Tg] int64, device: every tensor that has an entry a token."""

    def holds(self, batch: ForwardBatch) -> bool:
        """Tell whether a batch can be padded to this share. Sync: none; no length is read."""
        return fits(batch, self.bucket) and self.takes_mask(batch.tree_mask)

    def takes_mask(self, tree_mask: Tensor | None) -> bool:
        """Tell whether it reads tree masks, where there is one, and has room for this one."""
        room = self.forward.tree_mask
        if room is None or tree_mask is None:
            return room is tree_mask
        return tree_mask.shape[0] <= room.shape[0]

    def clear(self) -> None:
        """Make every request and token padding.

        Stream: the current one. Sync: none. Allocates: nothing.
        """
        self.of_requests.zero_()
        self.of_tokens.zero_()

    def load(self, batch: ForwardBatch) -> ForwardBatch:
        """Copy a batch to where the graph reads it, and return it padded.

        The host's lengths are padded copies of the batch's, and absent where the batch has none.

        Stream: the current one, which must be the one that the graph is replayed on.
        Sync: none. Allocates: padded host lengths. Keeps: nothing.
        """
        padded = self.bucket.batch_size
        if batch.batch_size < padded:
            self.of_requests[:, batch.batch_size :].zero_()
        if batch.num_tokens < self.bucket.num_tokens:
            self.of_tokens[:, batch.num_tokens :].zero_()
        for static, new in zip(_READ(self.forward), _READ(batch), strict=True):
            if static is not None and static is not new:  # a mask may have been made in place
                assert new is not None, "a graph is found by what a batch has"
                static[: new.shape[0]].copy_(new)
        loaded = replace(
            self.forward,
            seq_lens_cpu=_padded(batch.seq_lens_cpu, padded),
            seq_lens_sum=batch.seq_lens_sum,
            seq_lens_cpu_upper_bound=_padded(batch.seq_lens_cpu_upper_bound, padded),
        )
        if loaded.extend_seq_lens is not None:
            loaded.extend_seq_lens_cpu = _filled(batch.extend_seq_lens_cpu, padded)
            loaded.extend_prefix_lens_cpu = _filled(batch.extend_prefix_lens_cpu, padded)
        return loaded


class GraphBuffers:
    """Memory of every graph's batch. The graphs of one stream share it: only one runs at a time.

    Args:
        buckets: what it has to hold.
        device: where it is.
        mask_size: entries of the tree masks of uniform batches; 0: their tokens are no trees.
    """

    def __init__(self, buckets: Iterable[Bucket], device: torch.device, mask_len: int = 0) -> None:
        sizes = [(bucket.batch_size, bucket.num_tokens) for bucket in buckets]
        self.max_batch_size, self.max_num_tokens = map(max, zip(*sizes, strict=True))
        self._of_requests = _zeros(5, self.max_batch_size, device)
        self._of_tokens = _zeros(3, self.max_num_tokens, device)
        self.tree_mask = torch.ones(mask_len, dtype=torch.bool, device=device) if mask_len else None
        """[M] bool, device: where graphs read masks, written before each replay; None: nowhere."""

    @property
    def num_bytes(self) -> int:
        """How much it is."""
        buffers = (self._of_requests, self._of_tokens, self.tree_mask)
        return sum(buffer.nbytes for buffer in buffers if buffer is not None)

    def share_of(self, bucket: Bucket, host_seq_lens: HostSeqLens) -> StaticBatch:
        """Return the part that one bucket's graph reads.

        The host's lengths are there for a capture as far as `host_seq_lens` promises them.

        Sync: none. Keeps: nothing; the result is made of views.
        """
        of_requests = self._of_requests[:, : bucket.batch_size]
        of_tokens = self._of_tokens[:, : bucket.num_tokens]
        rows, seq_lens, extends, prefixes, last = of_requests.unbind()
        input_ids, positions, out_cache_loc = of_tokens.unbind()
        nothing = torch.zeros(bucket.batch_size, dtype=torch.int64)
        has_mirror = host_seq_lens is HostSeqLens.EXACT
        forward = ForwardBatch(
            mode=_MODES[bucket.kind],
            input_ids=input_ids,
            positions=positions,
            req_pool_indices=rows,
            seq_lens=seq_lens,
            out_cache_loc=out_cache_loc,
            seq_lens_cpu=nothing if has_mirror else None,
            seq_lens_sum=0 if has_mirror else None,
            seq_lens_cpu_upper_bound=None if host_seq_lens is HostSeqLens.NONE else nothing,
            tree_mask=self.tree_mask if bucket.kind is BatchKind.UNIFORM_BATCH else None,
        )
        if bucket.kind is BatchKind.MIXED_BATCH:
            forward.extend_seq_lens, forward.extend_prefix_lens = extends, prefixes
            forward.last_token_indices = last
            no_tokens = (0,) * bucket.batch_size if has_mirror else None
            forward.extend_seq_lens_cpu = forward.extend_prefix_lens_cpu = no_tokens
        return StaticBatch(
            bucket=bucket, forward=forward, of_requests=of_requests, of_tokens=of_tokens
        )


def _zeros(count: int, size: int, device: torch.device) -> Tensor:
    width = -(-size // _ALIGNMENT) * _ALIGNMENT
    return torch.zeros(count, width, dtype=torch.int64, device=device)


def _padded(lengths_cpu: Tensor | None, size: int) -> Tensor | None:
    """Append zeros, in memory of its own; what is absent stays absent."""
    if lengths_cpu is None:
        return None
    padded = torch.zeros(size, dtype=lengths_cpu.dtype)
    padded[: lengths_cpu.shape[0]] = lengths_cpu
    return padded


def _filled(lengths: tuple[int, ...] | None, size: int) -> tuple[int, ...] | None:
    return None if lengths is None else lengths + (0,) * (size - len(lengths))
