"""What a verified batch shows to a backend: lengths with its tree's tokens, and the tree's mask.

SGLang lays a mask out as `backend_caps.protocols` does: request after request, a row for each
token, as long as context and tree. A chain has none: each token sees all before it.

Shapes: B requests of N tokens each, M entries of a mask.
"""

from __future__ import annotations

import torch
from sglang.srt.layers.attention.verify_mask import VerifyMask, tree_mask_numel
from sglang.srt.speculative.eagle_utils import TreeMaskMode

from backend_caps import HostSeqLens
from backend_caps_sglang.fit import SGLangRunner, Speculation
from backend_caps_sglang.views import BatchView, SGLangBatch, SpecInfo


class VerifyMasks:
    """The masks of one backend's verified batches.

    Args:
        runner: SGLang's.
        speculation: the tree's width and tokens.
    """

    buffer: VerifyMask | None
    """Where SGLang builds a mask; None: in new memory each step."""

    def __init__(self, runner: SGLangRunner, speculation: Speculation) -> None:
        self._device, self._longest = runner.device, runner.model_config.context_len
        self._num_tokens = speculation.num_draft_tokens
        self._is_tree = speculation.topk > 1
        self.buffer = None
        if not self._is_tree:
            # SGLang fills a mask whether it is read or not. The small layout needs no bound on
            # lengths, and the whole pool's is a few KiB.
            size = len(runner.req_to_token_pool.req_to_token)
            self.buffer = self._allocated(size, TreeMaskMode.QLEN_ONLY)

    def reserve(self, max_bs: int) -> None:
        """Make the buffer whose address graphs of verified trees keep.

        Allocates: for a tree, N * (longest context + N) bytes for each of `max_bs` requests.
        """
        if self._is_tree:
            self.buffer = self._allocated(max_bs, TreeMaskMode.FULL_MASK)

    def refresh(self, batch: SGLangBatch) -> None:
        """Bring a batch's mask to the buffer that a graph reads, where it is elsewhere.

        SGLang builds the whole batch's mask in the buffer itself; each half of two-batch overlap
        gets a part of that one.

        Stream: the current one. Sync: none. Allocates: nothing. Keeps: nothing.
        """
        mask, buffer = _spec_info_of(batch).custom_mask, self.buffer
        if self._is_tree and buffer is not None and mask is not None and mask is not buffer.buffer:
            buffer.buffer[: len(mask)].copy_(mask)

    def view(self, batch: SGLangBatch, level: HostSeqLens, *, is_graph: bool) -> BatchView:
        """Show a verified batch to a backend.

        Args:
            batch: SGLang's; its lengths are those before the tree.
            level: what the backend declares to read of lengths on the host.
            is_graph: whether a graph is captured or replayed, which reads the buffer.
        """
        spec_info = _spec_info_of(batch)
        mask = spec_info.custom_mask if self._is_tree else None
        if self._is_tree and is_graph and self.buffer is not None:
            mask = self.buffer.buffer
        return BatchView(
            batch=batch,
            host_seq_lens=level,
            tokens_each=spec_info.draft_token_num,
            num_unwritten=spec_info.draft_token_num,
            tree_mask=mask,
        )

    def _allocated(self, max_bs: int, mode: TreeMaskMode) -> VerifyMask:
        size = tree_mask_numel(mode, max_bs, self._num_tokens, self._longest)
        return VerifyMask(
            buffer=torch.zeros(size, dtype=torch.bool, device=self._device),
            mode=mode,
            max_bs=max_bs,
            is_read=self._is_tree,
        )


def _spec_info_of(batch: SGLangBatch) -> SpecInfo:
    found = batch.spec_info
    assert found is not None, "a verify says what it verifies"
    return found
