"""Asks an installed vLLM what it makes of a command line, in a process of its own."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from backend_caps.capability.gpu import Gpu
from backend_caps.capability.model import AUTO
from backend_caps.capability.vocabulary import AttentionArch, AttentionType
from backend_caps.engines.command_line import variables_of, without_model
from backend_caps.engines.model import in_folders
from backend_caps.engines.query import ask
from backend_caps.engines.reading import LaunchQuery
from backend_caps.engines.vllm.query_values import SOFT_CAP
from backend_caps.resolution.launch import (
    CacheGroup,
    GraphMode,
    Launch,
    LayerChoice,
    LayerGroup,
    Refusal,
    Rewrite,
    Unchecked,
)

_FLAGS = {
    "context_length": "model_config.max_model_len",
    "dp_size": "parallel_config.data_parallel_size",
    "enable_mixed_chunk": "scheduler_config.enable_chunked_prefill",
    "enable_two_batch_overlap": "parallel_config.enable_dbo",
    "kv_cache_dtype": "cache_config.cache_dtype",
    "page_size": "cache_config.block_size",
    "pp_size": "parallel_config.pipeline_parallel_size",
    "speculative_algorithm": "speculative_config.method",
    "speculative_num_steps": "speculative_config.num_speculative_tokens",
    "tp_size": "parallel_config.tensor_parallel_size",
}
"""The flags of ours whose values vLLM's configuration has, under names of its own."""
_FACTS = {
    "attention_sinks": "has_sink",
    "decode_context_parallel": "use_dcp",
    "dtype": "dtype",
    "head_size": "head_size",
    "kv_cache_dtype": "kv_cache_dtype",
    "logit_soft_cap": SOFT_CAP,
    "multimodal_prefix": "use_mm_prefix",
    "non_causal": "use_non_causal",
    "per_head_kv_scales": "use_per_head_quant_scales",
    "prefill_context_parallel": "use_pcp",
    "sliding_window": "has_sliding_window",
}
"""Our facts that a layer asks a backend for, under vLLM's names; a release may lack some.

A cap of the logits no layer asks for, and each gives its own to the implementation."""
_ARCHS = {
    (False, False): AttentionArch.MHA,
    (True, False): AttentionArch.MLA,
    (True, True): AttentionArch.SPARSE,
    (False, True): AttentionArch.BLOCK_SPARSE,
}
"""By whether a layer asks for MLA, and for sparse attention."""
_FP8 = {"fp8": "fp8_e4m3"}
"""The dtype that a short name of vLLM's stands for; some GPUs of AMD have another form of it."""
_OVERLAP = "scheduler_config.async_scheduling"
SCRIPT = Path(__file__).with_name("query_script.py")


def ask_launches(python: Path, query: LaunchQuery) -> list[Launch]:
    """Let the vLLM of an environment configure servers; it needs no GPU and no weights.

    Args:
        python: the environment's Python.
        query: the command lines, `NAME=value` before them, whose `--model` is replaced; and the
            machine.

    Raises:
        EngineError: Python cannot be started, or gives no answer.
    """
    gpu, model = query.gpu, query.model
    answers: list[dict[str, Any]] = []
    with in_folders(query.lines, model) as (around, named, path):
        for environ, group in groupby(named, variables_of):
            lines = [[*without_model(words), "--model", path] for words in group]
            answers += ask(python, SCRIPT, lines, gpu, query.num_gpus, environ)
    texts = (json.dumps(answer).replace(f"{around}/", "") for answer in answers)
    return [launch_of(json.loads(text), gpu, model.name) for text in texts]


def launch_of(
    answer: Mapping[str, Any], gpu: Gpu, model: str, unchecked: Sequence[Mapping[str, str]] = ()
) -> Launch:
    """Make the launch of an answer.

    Args:
        answer: as `query_script` describes it.
        gpu: the machine's GPUs.
        model: the model's name.
        unchecked: where the engine may refuse, for want of something that is not known.
    """
    open_ = [Unchecked(**each) for each in unchecked]
    refusal, undecided, graphs = (answer.get(key) for key in ("refusal", "undecided", "graphs"))
    if undecided is not None:
        at = answer.get("stage", "import vllm")
        open_.append(Unchecked(message=undecided, at=at, unless="its environment"))
    return Launch(
        engine=f"vllm-{answer.get('version', 'unknown')}",
        machine=gpu.key,
        model=model,
        refusal=None
        if refusal is None
        else Refusal(message=refusal["message"], at=refusal["at"] or "vllm"),
        unchecked=tuple(dict.fromkeys(open_)),
        rewrites=tuple(Rewrite(**each) for each in answer.get("rewrites", ())),
        values=answer.get("values", {}),
        flags=flags_of(answer.get("values", {}), None if graphs is None else graphs["mode"]),
        facts=answer.get("facts", {}),
        layers=tuple(map(_group_of, answer.get("layers", ()))),
        caches=tuple(CacheGroup(**each) for each in answer.get("caches", ())),
        choices=tuple(LayerChoice(**each) for each in answer.get("choices", ())),
        graphs=None if graphs is None else GraphMode(**graphs),
    )


def _group_of(answer: Mapping[str, Any]) -> LayerGroup:
    own = {name: value for name, value in answer.items() if name not in {"asked", SOFT_CAP}}
    facts = facts_of((answer["asked"] or {}) | {SOFT_CAP: answer.get(SOFT_CAP)})
    return LayerGroup(**own, facts=facts)


def facts_of(asked: Mapping[str, object]) -> Mapping[str, object]:
    """Return what a layer asks of its backend, by the names of `Facts`.

    Args:
        asked: by the names of vLLM's `AttentionSelectorConfig`. What it lacks, or has as an object
            because it is not known, is no fact. Blocks are left out: they are the server's pages.
    """
    found = {name: asked.get(own) for name, own in _FACTS.items()}
    stored = found["kv_cache_dtype"]
    if isinstance(stored, str):  # `auto` is the layer's own
        found["kv_cache_dtype"] = found["dtype"] if stored == AUTO else _FP8.get(stored, stored)
    is_mla, is_sparse = asked.get("use_mla"), asked.get("use_sparse")
    if isinstance(is_mla, bool) and isinstance(is_sparse, bool):
        found["attention_arch"] = _ARCHS[is_mla, is_sparse].value
    type_ = str(asked.get("attn_type")).lower()
    if type_ in {each.value for each in AttentionType}:
        found["attention_type"] = type_
    return {name: each for name, each in found.items() if isinstance(each, bool | int | str)}


def flags_of(values: Mapping[str, object], mode: str | None) -> Mapping[str, object]:
    """Return the flags that matter here, by the names of `ServerFlags`.

    Args:
        values: the final values of vLLM's arguments, as `query_values` names them.
        mode: of graphs; None where it was not resolved.
    """
    found = {name: values.get(own) for name, own in _FLAGS.items()}
    overlaps = values.get(_OVERLAP)
    found["disable_overlap_schedule"] = None if overlaps is None else not overlaps
    found["disable_cuda_graph"] = None if mode is None else mode == "NONE"
    if found["speculative_algorithm"] is not None:
        found["speculative_eagle_topk"] = 1  # vLLM drafts chains
    return {name: each for name, each in found.items() if isinstance(each, bool | int | str)}
