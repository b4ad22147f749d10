"""Make a backend of backend-caps one of SGLang's interface.

An adapter is one line, in a module of its own that is imported where SGLang builds the backend:

    my_flash = bridge("my_flash", DECLARATION)

Shapes: T tokens in a batch, Hq query heads, Hk key and value heads, D and Dv their sizes.
"""

from __future__ import annotations

from collections.abc import Callable

from sglang.srt.layers.attention.base_attn_backend import AttentionBackend, SharedReadEnds
from sglang.srt.mem_cache.memory_pool import KVWriteLoc
from sglang.srt.model_executor.forward_batch_info import ForwardMode
from sglang.srt.runtime_context import get_parallel
from torch import Tensor

from backend_caps import BatchKind, Declaration, HostSeqLens, Phase, Plan, SharedReadsEnd
from backend_caps.engines.sglang.live_flags import parsed_flags, values_of_context
from backend_caps.protocols import ForwardBatch
from backend_caps_sglang.bridging.errors import (
    UnbridgedBackendError,
    UnbridgedBatchError,
    UnbridgedLayerError,
    UnreplayedBatchError,
)
from backend_caps_sglang.bridging.fitting import (
    SGLangLayer,
    SGLangRunner,
    plan_of,
    reasons_of_layer,
    reasons_of_server,
)
from backend_caps_sglang.bridging.own import OwnBackend, built
from backend_caps_sglang.bridging.views import BatchView, PoolView, SGLangBatch, Site

_EXTENDS = (ForwardMode.EXTEND, ForwardMode.MIXED)
_BRIDGED = (ForwardMode.DECODE, *_EXTENDS)
_PADDED_LENGTH = 1
"""The length of a padded request, in row 0, in which our backends read nothing."""


class Bridge(AttentionBackend):  # type: ignore[misc] # SGLang is not there where types are checked
    """One of our backends, called by SGLang; made by what `bridge` returns.

    What is asked of it that a backend of ours is not told is an error with its reason: no batch is
    computed otherwise than SGLang meant.

    Args:
        name: of the backend.
        plan: what it needs and supports here.
        own: the backend.
        max_context_len: tokens of the longest context.
    """

    def __init__(self, name: str, plan: Plan, own: OwnBackend, max_context_len: int) -> None:
        super().__init__()
        self.max_context_len = max_context_len
        self._name, self._plan, self._own = name, plan, own
        level = plan["host_seq_lens"].value
        assert isinstance(level, HostSeqLens), "a level is one of the scale"
        self._level = level
        self._checked: set[int] = set()

    def init_forward_metadata(self, forward_batch: SGLangBatch) -> None:
        """Prepare an eager forward."""
        if not _mode_of(forward_batch).is_idle():
            self._own.init_forward_metadata(self._view(forward_batch))

    def init_cuda_graph_state(self, max_bs: int, max_num_tokens: int) -> None:
        """Make the buffers of graphs, which are captured of decodes.

        Raises:
            UnreplayedBatchError: the backend does not declare to replay them.
        """
        self._check_replayed(ForwardMode.DECODE)
        self._own.init_cuda_graph_state(max_bs, max_num_tokens)

    def init_forward_metadata_out_graph(
        self, forward_batch: SGLangBatch, in_capture: bool = False
    ) -> None:
        """Do the host's share, before a capture and before each replay.

        Raises:
            UnreplayedBatchError: the backend does not declare to replay such batches.
        """
        del in_capture  # one of ours does the same in both
        self._check_replayed(_mode_of(forward_batch))
        self._own.init_forward_metadata_out_graph(self._view(forward_batch))

    def init_forward_metadata_in_graph(self, forward_batch: SGLangBatch) -> None:
        """Do the device's share, which a capture records."""
        self._own.init_forward_metadata_in_graph(self._view(forward_batch))

    def get_cuda_graph_seq_len_fill_value(self) -> int:
        """Return the length of a padded request."""
        return _PADDED_LENGTH

    @property
    def plan(self) -> Plan:
        """What it needs and supports in this server, with every cause."""
        return self._plan

    def shared_read_ends(self, fm: ForwardMode) -> SharedReadEnds:
        """Say where reads of the scheduler's buffers end, as the backend declares it."""
        phase = Phase.DECODE if fm.is_decode() else Phase.PREFILL
        ends = self._plan["shared_reads_end", phase].value
        assert isinstance(ends, SharedReadsEnd), "an end is one of the scale"
        return SharedReadEnds[ends.name]

    def forward_decode(
        self,
        q: Tensor,
        k: Tensor | None,
        v: Tensor | None,
        layer: SGLangLayer,
        forward_batch: SGLangBatch,
        save_kv_cache: bool = True,
        *,
        sinks: Tensor | None = None,
    ) -> Tensor:
        """Attend in one layer of a decode.

        q        [T, Hq * D], device
        k        [T, Hk, D], device
        v        [T, Hk, Dv], device
        returns  [T, Hq * Dv], device

        Stream: the current one. Sync: none, unless the backend's own forward does.
        Keeps: nothing. Capture: where the backend declares it.

        Raises:
            UnbridgedLayerError: the layer asks for what the backend is not told.
        """
        self._check(layer, sinks)
        return self._attend(q, k, v, layer, forward_batch, save_kv_cache)

    def forward_extend(
        self,
        q: Tensor,
        k: Tensor | None,
        v: Tensor | None,
        layer: SGLangLayer,
        forward_batch: SGLangBatch,
        save_kv_cache: bool = True,
        *,
        sinks: Tensor | None = None,
    ) -> Tensor:
        """Attend in one layer of a prefill, as `forward_decode` does."""
        self._check(layer, sinks)
        return self._attend(q, k, v, layer, forward_batch, save_kv_cache)

    def _attend(
        self,
        q: Tensor,
        k: Tensor | None,
        v: Tensor | None,
        layer: SGLangLayer,
        forward_batch: SGLangBatch,
        save_kv_cache: bool,
    ) -> Tensor:
        if k is None or v is None:
            reasons = ["it attends to another layer's keys and values"]
            raise self._unbridged(layer, reasons)
        return self._own.forward(
            q.reshape(len(q), -1),
            k.reshape(len(k), -1),
            v.reshape(len(v), -1),
            layer,
            self._view(forward_batch),
            save_kv_cache=save_kv_cache,
        )

    def _check(self, layer: SGLangLayer, sinks: Tensor | None) -> None:
        """Refuse a layer that is not bridged, when it runs for the first time."""
        if sinks is not None:
            raise self._unbridged(layer, ["its softmax has sinks"])
        if layer.layer_id not in self._checked:
            if reasons := list(reasons_of_layer(layer)):
                raise self._unbridged(layer, reasons)
            self._checked.add(layer.layer_id)

    def _unbridged(self, layer: SGLangLayer, reasons: list[str]) -> UnbridgedLayerError:
        return UnbridgedLayerError(
            backend=self._name, layer_id=layer.layer_id, reasons=tuple(reasons)
        )

    def _view(self, batch: SGLangBatch) -> ForwardBatch:
        mode = _mode_of(batch)
        if mode not in _BRIDGED:
            bridged = tuple(own.name for own in _BRIDGED)
            raise UnbridgedBatchError(backend=self._name, mode=mode.name, bridged=bridged)
        return BatchView(batch, mode in _EXTENDS, self._level)

    def _check_replayed(self, mode: ForwardMode) -> None:
        is_decode = mode.is_decode()
        kind = BatchKind.SINGLE_TOKEN_DECODE if is_decode else BatchKind.MIXED_BATCH
        phase = Phase.DECODE if is_decode else Phase.PREFILL
        replayed = self._plan["graph_replay", phase].value
        assert isinstance(replayed, frozenset), "batches are a set"
        if kind not in replayed:
            raise UnreplayedBatchError(
                backend=self._name,
                kind=kind.value,
                declared=tuple(sorted(own.value for own in replayed)),
                flag=f"--disable-{phase.value}-cuda-graph",
            )


def bridge(name: str, declaration: Declaration) -> Callable[[SGLangRunner], Bridge]:
    """Return an adapter for SGLang of a backend, for its declaration's `adapters`.

    Args:
        name: the backend's.
        declaration: its own; its `implementation` is what is bridged.
    """

    def adapter(runner: SGLangRunner) -> Bridge:
        """Build the backend on SGLang's pools.

        Raises:
            UnbridgedBackendError: it cannot serve this server, or cannot be built.
        """
        flags, _ = parsed_flags(values_of_context())
        plan = plan_of(name, declaration, runner, flags)
        reasons = tuple(reasons_of_server(plan, runner, is_dcp=get_parallel().dcp_enabled))
        if reasons:
            raise UnbridgedBackendError(backend=name, reasons=reasons)
        site = Site(runner.req_to_token_pool, PoolView(runner.token_to_kv_pool, KVWriteLoc))
        own = built(name, declaration, site)
        reads = plan["host_seq_lens"].value is not HostSeqLens.NONE
        # A class of its own, so that the log names the backend, and that it states its need.
        kind = type(name, (Bridge,), {"needs_cpu_seq_lens": reads})
        made: Bridge = kind(name, plan, own, runner.model_config.context_len)
        return made

    return adapter


def _mode_of(batch: SGLangBatch) -> ForwardMode:
    mode: ForwardMode = batch.forward_mode
    return mode
