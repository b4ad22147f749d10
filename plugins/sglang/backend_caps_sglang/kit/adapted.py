"""One of SGLang's backends, as the kit's runtime calls one.

Shapes: T tokens in a batch, Hq query heads, Hk key and value heads, D and Dv their sizes.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from types import SimpleNamespace

from torch import Tensor

from backend_caps.kit.scenes import Pools
from backend_caps.runtime.forward_batch import ForwardBatch
from backend_caps.runtime.layer import AttentionLayer
from backend_caps_sglang.kit.batches import batch_of, mode_name_of
from backend_caps_sglang.kit.loading import SGLang
from backend_caps_sglang.kit.runner import attention_of, runner_of


class Adapted:
    """A backend of SGLang on pools of the kit.

    What a graph of SGLang's holds is what the class made at the capture: so each replay gets the
    metadata of its capture back, whose tensors were filled anew.

    Args:
        sglang: its modules.
        implementation: the class.
        pools: the kit's.
        window: how many tokens before itself a token sees; None: all.
    """

    def __init__(
        self,
        sglang: SGLang,
        implementation: Callable[[SimpleNamespace], SimpleNamespace],
        pools: Pools,
        *,
        window: int | None = None,
    ) -> None:
        self._sglang, self._implementation = sglang, implementation
        self._pools, self._window = pools, window
        self._build(num_verified=0)

    def _build(self, *, num_verified: int) -> None:
        drafts = num_verified or None
        spec = self._sglang.context.get_spec()
        self._runner = runner_of(
            self._sglang, self._pools, window=self._window, num_verified=num_verified
        )
        with spec.override(speculative_num_draft_tokens=drafts):
            self._backend = self._implementation(self._runner)
        self._captured: dict[tuple[str, int], object] = {}
        self._batch: SimpleNamespace | None = None
        self._mode: Callable[[], AbstractContextManager[None]] = nullcontext

    def init_forward_metadata(self, batch: ForwardBatch) -> None:
        """Prepare an eager forward."""
        self._batch, self._mode = self._told(batch), nullcontext
        self._backend.init_forward_metadata(self._batch)

    def init_cuda_graph_state(self, max_bs: int, max_num_tokens: int) -> None:
        """Make the buffers of graphs, of a server that verifies so many tokens of each request."""
        each = max_num_tokens // max_bs
        self._build(num_verified=each if each > 1 else 0)
        self._backend.init_cuda_graph_state(max_bs, max_num_tokens)

    def init_forward_metadata_out_graph(self, batch: ForwardBatch) -> None:
        """Prepare a capture, or a replay of a graph that was captured."""
        self._batch = self._told(batch, fill=self._backend.get_cuda_graph_seq_len_fill_value())
        self._mode = self._sglang.capturing.model_capture_mode
        key = mode_name_of(batch), batch.batch_size
        is_replay = key in self._captured
        self._backend.init_forward_metadata_out_graph(self._batch, in_capture=not is_replay)
        if is_replay:
            self._backend.forward_metadata = self._captured[key]
        else:
            self._captured[key] = self._backend.forward_metadata

    def init_forward_metadata_in_graph(self, batch: ForwardBatch) -> None:
        """Do what a capture records."""
        self._backend.init_forward_metadata_in_graph(self._prepared(batch))

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
        """Attend in one layer, as SGLang's own layer calls its backend.

        q        [T, Hq * D], device
        k        [T, Hk * D], device
        v        [T, Hk * Dv], device
        returns  [T, Hq * Dv], device
        """
        with self._mode():
            output: Tensor = self._backend.forward(
                q,
                k.view(-1, layer.tp_k_head_num, layer.qk_head_dim),
                v.view(-1, layer.tp_k_head_num, layer.v_head_dim),
                attention_of(self._sglang, layer, self._window),
                self._prepared(batch),
                save_kv_cache=save_kv_cache,
            )
        return output

    def _prepared(self, batch: ForwardBatch) -> SimpleNamespace:
        assert self._batch is not None, "a batch is prepared before its layers run"
        assert self._batch.kit_batch is batch, "the batch that was prepared is the one that runs"
        return self._batch

    def _told(self, batch: ForwardBatch, fill: int | None = None) -> SimpleNamespace:
        translator = self._runner.kv_index_translator
        return batch_of(self._sglang, batch, translator, fill=fill)
