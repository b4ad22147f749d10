"""Make a backend of backend-caps one of SGLang's interface.

An adapter is one line, in a module of its own that is imported where SGLang builds the backend:

    my_flash = bridge("my_flash", DECLARATION)

Shapes: T tokens in a batch, Hq query heads, Hk key and value heads, D and Dv their sizes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from sglang.srt.layers.attention.base_attn_backend import AttentionBackend, SharedReadEnds
from sglang.srt.layers.attention.verify_mask import VerifyMask
from sglang.srt.mem_cache.memory_pool import KVWriteLoc
from sglang.srt.model_executor.forward_batch_info import ForwardMode
from sglang.srt.runtime_context import get_parallel, get_spec
from torch import Tensor

from backend_caps import BatchKind, Declaration, HostSeqLens, Phase, Plan, SharedReadsEnd
from backend_caps.protocols import ForwardBatch, ReqToTokenPool
from backend_caps_sglang.draft_steps import BranchTable, DraftSteps
from backend_caps_sglang.drop_in import parsed_flags, values_of_context
from backend_caps_sglang.errors import BridgeError, unbridged_backend
from backend_caps_sglang.fit import (
    DRAFT_STEPS,
    Place,
    SGLangLayer,
    SGLangRunner,
    Speculation,
    places_of,
    plan_of,
    reasons_of_layer,
    reasons_of_server,
)
from backend_caps_sglang.own_backend import OwnBackend, built
from backend_caps_sglang.verify_masks import VerifyMasks
from backend_caps_sglang.views import BatchView, PoolView, SGLangBatch, Site

_EXTENDS = (ForwardMode.EXTEND, ForwardMode.MIXED)
_BRIDGED = (ForwardMode.DECODE, *_EXTENDS, ForwardMode.TARGET_VERIFY, ForwardMode.DRAFT_EXTEND_V2)
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
        runner: SGLang's, whose pools are read.
        masks: of the batches that it verifies; None where it verifies none.
    """

    def __init__(
        self,
        name: str,
        plan: Plan,
        own: OwnBackend,
        runner: SGLangRunner,
        masks: VerifyMasks | None = None,
    ) -> None:
        super().__init__()
        self.max_context_len = runner.model_config.context_len
        # SGLang's models and its two-batch wrapper read these three off a backend.
        self.req_to_token_pool = runner.req_to_token_pool
        self.token_to_kv_pool = runner.token_to_kv_pool
        self.kv_index_translator = runner.kv_index_translator
        self._name, self._plan, self._own, self._masks = name, plan, own, masks
        level = plan["host_seq_lens"].value
        assert isinstance(level, HostSeqLens), "a level is one of the scale"
        self._level = level
        self._checked: set[int] = set()

    @property
    def verify_mask(self) -> VerifyMask | None:
        """The buffer that SGLang builds a verify's mask in; None: in new memory each step."""
        return None if self._masks is None else self._masks.buffer

    def init_forward_metadata(self, forward_batch: SGLangBatch) -> None:
        """Prepare an eager forward."""
        if not _mode_of(forward_batch).is_idle():
            self._own.init_forward_metadata(self._view(forward_batch))

    def init_cuda_graph_state(self, max_bs: int, max_num_tokens: int) -> None:
        """Make the buffers of graphs: of decodes, or of batches with several tokens a request.

        Raises:
            BridgeError: the backend does not declare to replay them.
        """
        is_decode = max_num_tokens == max_bs
        kind = BatchKind.SINGLE_TOKEN_DECODE if is_decode else BatchKind.UNIFORM_BATCH
        self._check_replayed(kind, Phase.DECODE if is_decode else Phase.VERIFY)
        if self._masks is not None:
            self._masks.reserve(max_bs)
        self._own.init_cuda_graph_state(max_bs, max_num_tokens)

    def init_forward_metadata_out_graph(
        self, forward_batch: SGLangBatch, in_capture: bool = False
    ) -> None:
        """Do the host's share, before a capture and before each replay.

        Raises:
            BridgeError: the backend does not declare to replay such batches.
        """
        mode = _mode_of(forward_batch)
        self._check_replayed(*_KINDS.get(mode, (BatchKind.MIXED_BATCH, Phase.PREFILL)))
        if self._masks is not None and mode.is_target_verify() and not in_capture:
            self._masks.refresh(forward_batch)
        self._own.init_forward_metadata_out_graph(self._view(forward_batch, is_graph=True))

    def init_forward_metadata_in_graph(self, forward_batch: SGLangBatch) -> None:
        """Do the device's share, which a capture records."""
        self._own.init_forward_metadata_in_graph(self._view(forward_batch, is_graph=True))

    def update_verify_buffers_to_fill_after_draft(
        self, spec_info: object, cuda_graph_bs: int | None
    ) -> None:
        """Do nothing: SGLang's plan stream waits for the draft before it prepares the verify."""

    @property
    def replays_draft_extend(self) -> bool:
        """Whether the backend declares to replay graphs of draft-extends."""
        return BatchKind.UNIFORM_BATCH in self._replayed(Phase.VERIFY)

    def get_cuda_graph_seq_len_fill_value(self) -> int:
        """Return the length of a padded request."""
        return _PADDED_LENGTH

    @property
    def plan(self) -> Plan:
        """What it needs and supports in this server, with every cause."""
        return self._plan

    def shared_read_ends(self, fm: ForwardMode) -> SharedReadEnds:
        """Say where reads of the scheduler's buffers end, as the backend declares it."""
        _, phase = _KINDS.get(fm, (None, Phase.PREFILL))
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
            BridgeError: the layer asks for what the backend does not receive.
        """
        self._check(layer, sinks)
        if k is None or v is None:
            raise self._unbridged(layer, ["it attends to another layer's keys and values"])
        return self._own.forward(
            q.reshape(len(q), -1),
            k.reshape(len(k), -1),
            v.reshape(len(v), -1),
            layer,
            self._view(forward_batch),
            save_kv_cache=save_kv_cache,
        )

    forward_extend = forward_decode
    """Attend in one layer of a prefill or a verify, as in one of a decode."""

    def _check(self, layer: SGLangLayer, sinks: Tensor | None) -> None:
        """Refuse a layer that is not bridged, when it runs for the first time."""
        if sinks is not None:
            raise self._unbridged(layer, ["its softmax has sinks"])
        if layer.layer_id not in self._checked:
            if reasons := list(reasons_of_layer(layer)):
                raise self._unbridged(layer, reasons)
            self._checked.add(layer.layer_id)

    def _unbridged(self, layer: SGLangLayer, reasons: list[str]) -> BridgeError:
        return BridgeError(
            "layer-unbridged",
            f"backend {self._name!r} cannot serve layer {layer.layer_id} through the bridge: "
            f"{'; '.join(reasons)}. Plain causal attention was expected; name another backend in "
            "--attention-backend for this model.",
        )

    def _view(self, batch: SGLangBatch, *, is_graph: bool = False) -> ForwardBatch:
        mode = _mode_of(batch)
        if mode not in _BRIDGED or (mode.is_target_verify() and self._masks is None):
            bridged = ", ".join(own.name for own in _BRIDGED)
            raise BridgeError(
                "batch-unbridged",
                f"backend {self._name!r} got a batch of mode {mode.name} through the bridge; "
                f"{bridged} were expected. Take the flag away that asks for it, or name another "
                "backend in --attention-backend.",
            )
        if self._masks is not None and mode.is_target_verify():
            return self._masks.view(batch, self._level, is_graph=is_graph)
        if mode.is_draft_extend_v2():
            each: int | None = len(batch.out_cache_loc) // batch.batch_size
        else:
            each = None if mode in _EXTENDS else 1
        return BatchView(batch=batch, host_seq_lens=self._level, tokens_each=each)

    def _replayed(self, phase: Phase) -> frozenset[BatchKind]:
        replayed = self._plan["graph_replay", phase].value
        assert isinstance(replayed, frozenset), "batches are a set"
        return replayed

    def _check_replayed(self, kind: BatchKind, phase: Phase) -> None:
        replayed = self._replayed(phase)
        if kind not in replayed:
            graph = "prefill" if phase is Phase.PREFILL else "decode"
            declared = ", ".join(sorted(own.value for own in replayed))
            raise BridgeError(
                "batch-unreplayed",
                f"SGLang captures a graph of {kind.value} batches, and backend {self._name!r} "
                f"declares graph_replay={{{declared}}}. Start the server with "
                f"--disable-{graph}-cuda-graph.",
            )


_KINDS = {
    ForwardMode.DECODE: (BatchKind.SINGLE_TOKEN_DECODE, Phase.DECODE),
    ForwardMode.TARGET_VERIFY: (BatchKind.UNIFORM_BATCH, Phase.VERIFY),
    ForwardMode.DRAFT_EXTEND_V2: (BatchKind.UNIFORM_BATCH, Phase.VERIFY),
}
"""What a graph of a mode replays, and the phase that it counts as; others are a prefill's."""


class DraftStep(Bridge):
    """One of our backends in one step of a draft, each branch of a tree a request of its own.

    Args:
        step: its number, from 0.
        branches: the page table of trees' branches.
    """

    def __init__(
        self,
        name: str,
        plan: Plan,
        own: OwnBackend,
        runner: SGLangRunner,
        *,
        step: int,
        branches: BranchTable,
    ) -> None:
        super().__init__(name, plan, own, runner)
        self._step, self._branches = step, branches

    def _view(self, batch: SGLangBatch, *, is_graph: bool = False) -> ForwardBatch:
        del is_graph  # a step reads no mask
        return self._branches.view(batch, self._level, self._step)


@dataclass(frozen=True, slots=True)
class BridgeAdapter:
    """Builds a backend of backend-caps as SGLang's; made by `bridge`."""

    name: str
    declaration: Declaration

    def with_declaration(self, declaration: Declaration, /) -> BridgeAdapter:
        """Return an adapter that resolves another declaration: one without unverified claims."""
        return replace(self, declaration=declaration)

    def __call__(self, runner: SGLangRunner) -> Bridge:
        """Build the backend on SGLang's pools: the target's, or a draft's outside of its steps.

        Raises:
            BridgeError: it cannot serve this server, or cannot be built.
        """
        flags, _ = parsed_flags(values_of_context())
        plan, speculation = self._fitting(runner, places_of(runner, flags))
        own = self._built(runner, runner.req_to_token_pool)
        is_verified = plan.flags.speculative_algorithm is not None and not runner.is_draft_worker
        masks = VerifyMasks(runner, speculation) if is_verified else None
        made: Bridge = self._kind(plan, Bridge)(self.name, plan, own, runner, masks)
        return made

    def draft_steps(self, runner: SGLangRunner, topk: int, num_steps: int) -> DraftSteps:
        """Build the container of a draft's steps, each with a backend of its own.

        Raises:
            BridgeError: it cannot serve this server, or cannot be built.
        """
        plan, _ = self._fitting(runner, DRAFT_STEPS)
        branches = BranchTable(runner, topk, num_steps)
        kind = self._kind(plan, DraftStep)
        steps = [
            kind(
                self.name, plan, self._built(runner, branches), runner, step=step, branches=branches
            )
            for step in range(num_steps - 1)
        ]
        made: DraftSteps = self._kind(plan, DraftSteps)(steps, branches, plan)
        return made

    def _fitting(self, runner: SGLangRunner, places: tuple[Place, ...]) -> tuple[Plan, Speculation]:
        """Resolve the backend in its places, and refuse what cannot be served there."""
        flags, _ = parsed_flags(values_of_context())
        spec = get_spec()
        is_on = flags.speculative_algorithm is not None
        speculation = Speculation(
            topk=spec.speculative_eagle_topk or 1 if is_on else 1,
            num_draft_tokens=spec.speculative_num_draft_tokens or 1 if is_on else 1,
            is_adaptive=is_on and bool(spec.speculative_adaptive),
            has_layers=is_on and bool(spec.enable_multi_layer_eagle),
        )
        known = {"speculative_eagle_topk": speculation.topk} if is_on else {}
        plan = plan_of(self.name, self.declaration, runner, flags.model_copy(update=known), places)
        found = reasons_of_server(
            plan, runner, is_dcp=get_parallel().dcp_enabled, speculation=speculation
        )
        if reasons := list(found):
            raise unbridged_backend(self.name, reasons)
        return plan, speculation

    def _built(self, runner: SGLangRunner, table: ReqToTokenPool) -> OwnBackend:
        site = Site(table, PoolView(runner.token_to_kv_pool, KVWriteLoc))
        return built(self.name, self.declaration, site)

    def _kind(self, plan: Plan, base: type) -> type:
        """Make a class of its own, so that the log names the backend and it states its need."""
        reads = plan["host_seq_lens"].value is not HostSeqLens.NONE
        return type(self.name, (base,), {"needs_cpu_seq_lens": reads})


def bridge(name: str, declaration: Declaration) -> BridgeAdapter:
    """Return an adapter for SGLang of a backend, for its declaration's `adapters`.

    Args:
        name: the backend's.
        declaration: its own; its `implementation` is what is bridged.
    """
    return BridgeAdapter(name, declaration)


def _mode_of(batch: SGLangBatch) -> ForwardMode:
    mode: ForwardMode = batch.forward_mode
    return mode
