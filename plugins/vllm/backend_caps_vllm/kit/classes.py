"""vLLM's classes that have an adapter, what is tried of them, and why others have none.

vLLM's runner relies on more than its classes declare. It runs each class in two microbatches, gives
it chains of drafts, builds its metadata while the step before runs, and copies what the scheduler
shares into buffers before a graph is replayed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from backend_caps.capability.kind import Role
from backend_caps.capability.sets import OneOf
from backend_caps.capability.vocabulary import BatchKind, Capabilities, SharedReadsEnd
from backend_caps.kit.scenarios import Scenario
from backend_caps_vllm.kit import (
    flex,
    gated_layers,
    linear_layers,
    mamba_layers,
    mla,
    operators,
    prefill,
)
from backend_caps_vllm.kit.adapter import Adapted
from backend_caps_vllm.kit.flex import AdaptedFlex
from backend_caps_vllm.kit.gated_layers import GatedDeltaLayers
from backend_caps_vllm.kit.linear_layers import BailingLayers, LinearLayers, MinimaxLayers
from backend_caps_vllm.kit.mamba_layers import SelectiveStateLayers, ShortConvolutionLayers
from backend_caps_vllm.kit.mla import AdaptedLatent

_RELIED_ON: Mapping[str, Any] = {
    "roles": frozenset({Role.TARGET}),
    "max_speculative_topk": 1,
    "two_batch_overlap": True,
    "sync_free_prepare": True,
    "shared_reads_end": SharedReadsEnd.PRE_REPLAY,
}


def _tried(*head_sizes: int, **more: object) -> Capabilities:
    return Capabilities(head_sizes=OneOf(frozenset(head_sizes)), **{**_RELIED_ON, **more})


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptedClass:
    """A class that the kit runs."""

    tried: Capabilities
    """What it does not declare, and the runner relies on all the same."""
    adapter: type[Adapted] = Adapted
    """Calls it as the runner and its layer do."""
    stand_ins: tuple[str, ...] = ()
    """What is run in place of functions that are built for CUDA, or compiled."""
    takes: Callable[[Scenario], bool] = lambda _scenario: True
    """Tells which models the adapter can make."""
    layers: Callable[[], LinearLayers] | None = None
    """What its layers compute, where they keep states; None: they attend to a KV cache."""


_STATES = Capabilities(roles=frozenset({Role.TARGET}), max_speculative_topk=1)

ADAPTED: Mapping[str, AdaptedClass] = {
    "BailingLinearAttentionBackend": AdaptedClass(
        tried=_STATES, stand_ins=(linear_layers.OPERATOR, linear_layers.ASKED), layers=BailingLayers
    ),
    "FlexAttentionBackend": AdaptedClass(
        tried=_tried(16, 64, 128), adapter=AdaptedFlex, stand_ins=(flex.STAND_IN, operators.STORE)
    ),
    "GDNAttentionBackend": AdaptedClass(
        tried=_STATES,
        stand_ins=(gated_layers.CORE, gated_layers.KERNELS, linear_layers.ASKED),
        layers=GatedDeltaLayers,
    ),
    "LinearAttentionBackend": AdaptedClass(
        tried=_STATES, stand_ins=(linear_layers.OPERATOR, linear_layers.ASKED), layers=MinimaxLayers
    ),
    "Mamba2AttentionBackend": AdaptedClass(
        tried=_STATES,
        stand_ins=(mamba_layers.MIXER, linear_layers.ASKED),
        layers=SelectiveStateLayers,
    ),
    "ShortConvAttentionBackend": AdaptedClass(
        tried=_STATES,
        stand_ins=(mamba_layers.CONVOLUTION, linear_layers.ASKED),
        layers=ShortConvolutionLayers,
    ),
    "TritonAttentionBackend": AdaptedClass(tried=_tried(32, 64, 80, 128, logit_soft_cap=True)),
    "TritonAttentionDiffKVBackend": AdaptedClass(
        tried=_tried(
            *(32, 64, 128),
            dtypes=frozenset({"float32", "float16", "bfloat16"}),
            page_sizes=OneOf(frozenset({16, 64})),
            graph_replay=frozenset(BatchKind),
            sliding_window=True,
            attention_sinks=True,
            logit_soft_cap=True,
        )
    ),
    "TritonMLABackend": AdaptedClass(
        tried=_tried(16, 64),
        adapter=AdaptedLatent,
        stand_ins=(prefill.STAND_IN, operators.STORE_LATENTS, operators.GATHER, operators.MERGE),
        takes=mla.takes,
    ),
}
"""The classes, by name."""
_PACKED = "its cache packs parts of keys apart from each other, which no view of the kit's is"
_ROCM = "it is built for ROCm, whose platform vLLM asks for"
_SPARSE = "its layers choose tokens by an index, which the kit's batches do not have"
_CUDA = "its kernels are built for CUDA"
_COMPOSED = "it is composed of a class whose kernels are built for CUDA"
NOT_ASKED: Mapping[str, str] = {
    "AiterTritonMLABackend": _ROCM,
    "FlashAttentionBackend": _CUDA,
    "FlashInferBackend": _CUDA,
    "Mamba1AttentionBackend": "the selective scan of its prefills is an operator of CUDA",
    "MiniMaxM3SparseTritonBackend": _SPARSE,
    "RocmAttentionBackend": f"{_PACKED}; {_ROCM}",
    "RocmSegmentedAttentionBackend": _ROCM,
    "TritonFlashAttentionBackend": _COMPOSED,
    "TritonFlashInferBackend": _COMPOSED,
    "TurboQuantAttentionBackend": "its cache holds quantized values of sizes of its own",
}
"""Why a class that is made of Triton, or is much used, has no adapter."""
