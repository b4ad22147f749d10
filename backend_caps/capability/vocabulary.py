"""The capabilities: one field each, its algebra in the annotation, its meaning below it.

`CAPABILITIES` is the table that everything else reads. A new capability is a new field here
and nothing anywhere else.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from enum import Enum
from functools import cache, partial
from typing import Annotated, Self, TypeVar

from pydantic import BeforeValidator, Field, StrictBool, StrictInt, model_validator

from backend_caps.capability import sets
from backend_caps.capability.kind import (
    ANY,
    DRAFT_TREES,
    RELAY_LOOP,
    UNDECLARED,
    Anything,
    Kind,
    Role,
    Scale,
    Scope,
    Undeclared,
    both,
    common,
    highest,
    least,
    lowest,
    need,
    support,
)
from backend_caps.capability.model import Device, Dtype, FrozenModel


class HostSeqLens(Scale):
    """What a backend reads about sequence lengths on the host."""

    NONE = "none"
    """Nothing: lengths stay on the device."""
    UPPER_BOUND = "upper_bound"
    """A bound that is never below the truth and costs no synchronisation."""
    EXACT = "exact"
    """The lengths themselves: a D2H copy and a host wait in every overlapped speculative step."""


class BatchKind(Enum):
    """The shapes of batch for which a graph may be captured."""

    SINGLE_TOKEN_DECODE = "single_token_decode"
    """One new token for every request."""
    UNIFORM_BATCH = "uniform_batch"
    """The same number of new tokens for every request, as in verify."""
    MIXED_BATCH = "mixed_batch"
    """Any number of new tokens for each request: prefill and decode together."""


class GraphMetadata(Scale):
    """How attention metadata is rebuilt when a captured graph is replayed."""

    HOST = "host"
    """By host code."""
    DEVICE = "device"
    """By device work before the replay, into buffers that were allocated before."""
    IN_GRAPH = "in_graph"
    """By the graph itself."""


class SharedReadsEnd(Scale):
    """The point after which the scheduler may overwrite the buffers it shares with a forward."""

    PRE_REPLAY = "pre_replay"
    """Before the graph is replayed: what is shared has been copied."""
    IN_REPLAY = "in_replay"
    """At an event within the replay."""
    POST_REPLAY = "post_replay"
    """When the replay has ended."""
    UNKNOWN = "unknown"
    """The point is not known: wait for the whole forward."""


class AttentionArch(Enum):
    """The family of attention that a model uses."""

    MHA = "mha"
    """Multi-head, multi-query or grouped-query attention."""
    MLA = "mla"
    """Multi-head latent attention."""
    SSM = "ssm"
    """State-space or linear attention."""
    SPARSE = "sparse"
    """Sparse MLA: an index chooses the tokens that are attended to."""
    BLOCK_SPARSE = "block_sparse"
    """Sparse attention without MLA, such as MiniMax-M3's, whose index chooses blocks."""


class AttentionType(Enum):
    """Which queries attend to which keys; vLLM's `AttentionType`."""

    DECODER = "decoder"
    """A decoder's queries, to the keys of its own context."""
    ENCODER = "encoder"
    """The queries of an encoder beside a decoder, to its own keys."""
    ENCODER_ONLY = "encoder_only"
    """The queries of a model that is an encoder alone, to its own keys, without a KV cache."""
    ENCODER_DECODER = "encoder_decoder"
    """A decoder's queries, to the keys of an encoder: cross attention."""


class KVLayout(Enum):
    """The order of a KV cache's dimensions in memory, the outermost first; features are the last.

    vLLM names the four by L, B, N and H; it calls the first two layouts `LBNHC` and `LBHNC`.
    """

    NHD = "NHD"
    """Layer, block, token, head."""
    HND = "HND"
    """Layer, block, head, token."""
    LHBNC = "LHBNC"
    """Layer, head, block, token."""
    BLNHC = "BLNHC"
    """Block, layer, token, head."""
    BLHNC = "BLHNC"
    """Block, layer, head, token."""
    BHLNC = "BHLNC"
    """Block, head, layer, token."""


_ALL_BATCHES = frozenset(BatchKind)
NO_LIMIT = 2**31 - 1
"""More than any draft tree is wide."""
TOP_PRIORITY = 100
"""The highest `auto_priority` that a backend can declare."""


_Member = TypeVar("_Member")
_AnyOf = Annotated[
    AbstractSet[_Member] | Anything | Undeclared,
    *sets.STORED_AS_SET,
    support(worst=frozenset(), best=ANY, join=common, scope=Scope.USE),
]
"""The values that a backend takes, of which each use has one."""
_permission = partial(support, worst=False, best=True, join=both)
_Granted = StrictBool | Undeclared
_ServerSupport = Annotated[_Granted, _permission(scope=Scope.SERVER)]
"""What a server does where all its backends can."""
_Feature = Annotated[_Granted, _permission(scope=Scope.USE)]
"""What a backend can do for the models or servers that have a feature."""


_SomeSizes = Annotated[sets.Sizes | Undeclared, BeforeValidator(sets.written_sizes)]
_sizes = partial(support, worst=sets.Unchecked(), best=ANY, join=sets.intersect)


class Capabilities(FrozenModel):
    """State what a backend needs and supports; what is left out is `UNDECLARED`.

    Raises:
        pydantic.ValidationError: on an unknown name, a value of another type, or two
            spellings of one capability that contradict each other.
    """

    host_seq_lens: Annotated[
        HostSeqLens | Undeclared,
        need(
            worst=HostSeqLens.EXACT,
            best=HostSeqLens.NONE,
            join=highest,
            scope=Scope.SERVER,
            counted=RELAY_LOOP,
            requires="max_context_len_known",
        ),
    ] = UNDECLARED
    """What the backend reads about sequence lengths on the host. `EXACT` costs a D2H copy and a
    host wait in every overlapped speculative step; `UPPER_BOUND` is vLLM's
    `seq_lens_cpu_upper_bound`."""
    needs_cpu_seq_lens: StrictBool | Undeclared = UNDECLARED
    """SGLang's spelling of `host_seq_lens`: `True` is `EXACT`, `False` is `NONE`."""
    graph_replay: Annotated[
        AbstractSet[BatchKind] | Undeclared,
        *sets.STORED_AS_SET,
        support(worst=frozenset(), best=_ALL_BATCHES, join=common, scope=Scope.PHASE),
    ] = UNDECLARED
    """The kinds of batch whose captured full graph may be replayed. vLLM's `NEVER` to `ALWAYS` map
    to growing sets."""
    graph_metadata: Annotated[
        GraphMetadata | Undeclared,
        support(
            worst=GraphMetadata.HOST, best=GraphMetadata.IN_GRAPH, join=lowest, scope=Scope.PHASE
        ),
    ] = UNDECLARED
    """How metadata is rebuilt for a replay. Under `IN_GRAPH` the engine calls no host code of the
    backend before one; under the others it calls `init_forward_metadata_out_graph`."""
    sync_free_prepare: Annotated[_Granted, _permission(scope=Scope.PHASE)] = UNDECLARED
    """Preparing metadata never blocks the host. Not reading the mirror is not enough:
    `int(seq_lens.max())` blocks too. This is information for reports and checks, and configures
    nothing: a backend that blocks computes the same, and overlaps less."""
    shared_reads_end: Annotated[
        SharedReadsEnd | Undeclared,
        need(
            worst=SharedReadsEnd.UNKNOWN,
            best=SharedReadsEnd.PRE_REPLAY,
            join=highest,
            scope=Scope.PHASE,
        ),
    ] = UNDECLARED
    """The point after which the scheduler may overwrite shared buffers. A step releases at the
    point of its last forward."""
    two_batch_overlap: _ServerSupport = UNDECLARED
    """May run under two-batch overlap (TBO)."""
    deterministic: _ServerSupport = UNDECLARED
    """The same batch over the same cache gives the same bits, on the same device."""
    batch_invariant: _ServerSupport = UNDECLARED
    """A request's output has the same bits alone and among others, in any place. How its own prompt
    is cut into chunks may still change them."""
    max_context_len_known: Annotated[_Granted, _permission(scope=Scope.USE)] = UNDECLARED
    """The backend knows the longest context, by which the tree mask is sized when there is no
    mirror. An opt-out from the mirror without it counts as `EXACT`."""
    roles: Annotated[
        Annotated[AbstractSet[Role], Field(min_length=1)] | Undeclared,
        *sets.STORED_AS_SET,
        support(worst=frozenset({Role.TARGET}), best=frozenset(Role), join=common, scope=Scope.USE),
    ] = UNDECLARED
    """The roles the backend can take. A use outside them is an error."""
    max_speculative_topk: Annotated[
        Annotated[StrictInt, Field(ge=1)] | Undeclared,
        support(worst=1, best=NO_LIMIT, join=least, scope=Scope.SERVER, counted=DRAFT_TREES),
    ] = UNDECLARED
    """The widest draft tree the backend can draft or verify: SGLang's `speculative_eagle_topk`."""
    page_sizes: Annotated[_SomeSizes, _sizes(scope=Scope.SERVER)] = UNDECLARED
    """The KV-cache page sizes the backend takes, in tokens."""
    devices: _AnyOf[Device] = UNDECLARED
    """The torch device types the backend runs on, such as `cuda`."""
    dtypes: _AnyOf[Dtype] = UNDECLARED
    """The dtypes of query and output, by torch's names, such as `bfloat16`."""
    kv_cache_dtypes: _AnyOf[Dtype] = UNDECLARED
    """The dtypes of the KV cache, by SGLang's names, such as `fp8_e5m2`."""
    head_sizes: Annotated[_SomeSizes, _sizes(scope=Scope.USE)] = UNDECLARED
    """The head sizes the backend takes, in elements."""
    compute_capability: Annotated[
        sets.ComputeCapabilities | Anything | Undeclared,
        BeforeValidator(sets.written_windows),
        support(worst=(), best=ANY, join=sets.overlap, scope=Scope.USE),
    ] = UNDECLARED
    """The CUDA compute capabilities the backend runs on: windows, any of which is enough."""
    attention_arch: _AnyOf[AttentionArch] = UNDECLARED
    """The families of attention the backend computes."""
    attention_types: Annotated[
        Annotated[AbstractSet[AttentionType], Field(min_length=1)] | Undeclared,
        *sets.STORED_AS_SET,
        support(
            worst=frozenset({AttentionType.DECODER}),
            best=frozenset(AttentionType),
            join=common,
            scope=Scope.USE,
        ),
    ] = UNDECLARED
    """Which queries attend to which keys."""
    sliding_window: _Feature = UNDECLARED
    """Layers whose tokens see the last tokens of their context alone."""
    attention_sinks: _Feature = UNDECLARED
    """A learned logit for each head that takes part in the softmax: gpt-oss's."""
    logit_soft_cap: _Feature = UNDECLARED
    """Logits are capped by a tanh before the softmax: Gemma 2's."""
    non_causal: _Feature = UNDECLARED
    """Tokens of a decoder, over its KV cache, that see later ones of the same forward."""
    multimodal_prefix: _Feature = UNDECLARED
    """Tokens of one image see each other both ways, between causal ones: Gemma 3's."""
    per_head_kv_scales: _Feature = UNDECLARED
    """A quantized KV cache has a scale for each head, instead of one for the layer."""
    decode_context_parallel: _Feature = UNDECLARED
    """A request's KV cache lies on several ranks while it decodes (DCP)."""
    prefill_context_parallel: _Feature = UNDECLARED
    """A prompt's tokens are shared out among several ranks (PCP)."""
    kv_layouts: _AnyOf[KVLayout] = UNDECLARED
    """The orders of the KV cache's dimensions the backend reads and writes."""
    kernel_block_sizes: Annotated[_SomeSizes, _sizes(scope=Scope.USE)] = UNDECLARED
    """The blocks the kernels take, in tokens, where an engine splits its pages into them, as vLLM
    does: a page is a multiple of one of these. Where it is left out, `page_sizes` says all."""
    auto_priority: Annotated[
        Annotated[StrictInt, Field(ge=0, le=TOP_PRIORITY)] | Undeclared,
        support(worst=0, best=TOP_PRIORITY, join=least, scope=Scope.USE),
    ] = UNDECLARED
    """The backend's priority where a flag is `auto`: of those that fit, the highest is chosen, of
    equals the first by name. 0 is last, 50 suits a backend that is good everywhere, 100 one made
    for this very machine. A composite's priority replaces those of its parts."""

    @model_validator(mode="before")
    @classmethod
    def _by_present_names(cls, data: object) -> object:
        return _filled(_renamed(cls, data)) if isinstance(data, Mapping) else data

    def stated(self) -> Mapping[str, object]:
        """List what the author stated, by capability, in the table's order."""
        values = {name: getattr(self, name) for name in kinds_of(type(self))}
        return {name: value for name, value in values.items() if value is not UNDECLARED}

    def model_copy(self, *, update: Mapping[str, object] | None = None, deep: bool = False) -> Self:
        """Copy, validating what `update` brings; any name of a capability replaces it."""
        del deep  # frozen values may be shared
        changes = dict(update or {})
        names = {**SPELLINGS, **_former_names(type(self))}
        replaced = {names.get(name, name) for name in changes}
        kept = {name: value for name, value in self.stated().items() if name not in replaced}
        return type(self).model_validate({**kept, **changes})


def _filled(data: Mapping[str, object]) -> Mapping[str, object]:
    """Fill in either spelling of the need for host lengths from the other."""
    level, flag = (data.get(key, UNDECLARED) for key in ("host_seq_lens", "needs_cpu_seq_lens"))
    if isinstance(level, str):  # from JSON; pydantic refuses an unknown level
        level = {member.value: member for member in HostSeqLens}.get(level, level)
    if level in (UNDECLARED, "undeclared") and isinstance(flag, bool):
        return {**data, "host_seq_lens": HostSeqLens.EXACT if flag else HostSeqLens.NONE}
    if isinstance(level, HostSeqLens):
        is_exact = level is HostSeqLens.EXACT
        if isinstance(flag, bool) and flag is not is_exact:
            raise ValueError(
                f"needs_cpu_seq_lens={flag} contradicts host_seq_lens={level.name}; "
                f"{level.name} means needs_cpu_seq_lens={is_exact}. State one of the two."
            )
        if flag in (UNDECLARED, "undeclared"):
            return {**data, "needs_cpu_seq_lens": is_exact}
    return data


@cache
def kinds_of(model: type[Capabilities]) -> Mapping[str, Kind]:
    """Map each capability of a model to its algebra, in the order of the fields."""
    return {
        name: kind
        for name, field in model.model_fields.items()
        for kind in field.metadata
        if isinstance(kind, Kind)
    }


@cache
def _former_names(model: type[Capabilities]) -> Mapping[str, str]:
    """Map each former name of a capability to the present one."""
    kinds = kinds_of(model).items()
    return {former: name for name, kind in kinds for former in kind.former_names}


def _renamed(model: type[Capabilities], data: Mapping[str, object]) -> Mapping[str, object]:
    """Put present names in place of former ones, and warn of these and of deprecated ones.

    Raises:
        ValueError: a capability is stated by both names.
    """
    formers, kinds, renamed = _former_names(model), kinds_of(model), dict[str, object]()
    for name, value in data.items():
        present = formers.get(name, name)
        if name in formers and present in data:
            raise ValueError(f"{name} is the former name of {present}. State {present} alone.")
        replaced_by = kinds[present].replaced_by if present in kinds else None
        instead = present if name in formers else replaced_by
        if instead is not None and value not in (UNDECLARED, "undeclared"):
            text = f"capability {name!r} is deprecated: state {instead!r} in its place."
            warnings.warn(text, DeprecationWarning, stacklevel=2)
        renamed[present] = value
    return renamed


CAPABILITIES: Mapping[str, Kind] = kinds_of(Capabilities)
"""Every capability with its algebra, in the order in which reports list them."""
IN_PLANS = tuple(name for name, kind in CAPABILITIES.items() if kind.scope is not Scope.USE)
"""The capabilities that a plan holds; of the others, each use is checked by itself."""
SPELLINGS: Mapping[str, str] = {"needs_cpu_seq_lens": "host_seq_lens"}
"""Second names of a capability."""
