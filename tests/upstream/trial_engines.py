"""The engines whose command lines are drawn: what asks them, what reads them, what is compared."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from backend_caps.engines.reading import LaunchQuery
from backend_caps.engines.sglang import arguments as sglang
from backend_caps.engines.sglang import query as sglang_query
from backend_caps.engines.sglang.read import is_wanted
from backend_caps.engines.source.index import Index
from backend_caps.engines.vllm import arguments as vllm
from backend_caps.engines.vllm import query as vllm_query
from backend_caps.resolution.launch import Launch
from tests.upstream import launches, vllm_launches
from tests.upstream.launches import Case

_SGLANG_VALUES = (
    *("attention_backend", "prefill_attention_backend", "decode_attention_backend"),
    *("speculative_draft_attention_backend", "page_size", "disable_overlap_schedule"),
    *("cuda_graph_config", "disable_cuda_graph", "enable_mixed_chunk", "chunked_prefill_size"),
    *("speculative_algorithm", "speculative_num_steps", "speculative_eagle_topk"),
    *("speculative_num_draft_tokens", "kv_cache_dtype", "dtype", "disable_radix_cache"),
    *("enable_two_batch_overlap", "attn_dp_size", "tp_size", "dp_size", "ep_size"),
)
"""The final values that are compared, where a release has them."""


_LONG = frozenset(
    {"compilation_config.splitting_ops", "compilation_config.cudagraph_capture_sizes"}
)
"""Values that are lists of many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialEngine:
    """An engine, with what its answers have."""

    name: str
    key: str
    package: str
    cases: Callable[[int, int, Sequence[str]], Iterator[Case]]
    machines: Sequence[str]
    models: Sequence[str]
    read_launches: Callable[[Index, LaunchQuery], Sequence[Launch]]
    script: Path
    launch_of: Callable[..., Launch]
    model_option: str
    is_wanted: Callable[[str], bool]
    answer: Callable[[Launch], Mapping[str, object]]
    """What is compared of a launch that both accept."""
    recorded: Callable[[Launch], Mapping[str, object]]
    """What a table keeps of it."""

    def __str__(self) -> str:
        return self.key


def _of_sglang(launch: Launch) -> Mapping[str, object]:
    own = {name: launch.values[name] for name in _SGLANG_VALUES if name in launch.values}
    return {**own, **launch.classes}


def _kept_of_sglang(launch: Launch) -> Mapping[str, object]:
    values = {name: launch.values[name] for name in _SGLANG_VALUES if name in launch.values}
    return {"values": values, "classes": launch.classes}


def _kept_of_vllm(launch: Launch) -> Mapping[str, object]:
    return {
        "values": {name: value for name, value in launch.values.items() if name not in _LONG},
        "layers": [asdict(each) for each in launch.layers],
        "caches": [asdict(each) for each in launch.caches],
        "graphs": None if launch.graphs is None else asdict(launch.graphs),
    }


def _of_vllm(launch: Launch) -> Mapping[str, object]:
    layers = [
        (each.role, each.layer, each.num_layers, each.path, each.graph_support, each.cache)
        for each in launch.layers
    ]
    graphs: Mapping[str, Any] = {} if launch.graphs is None else asdict(launch.graphs)
    sizes = [dict(each.sizes) for each in launch.layers]
    facts = [dict(each.facts) for each in launch.layers]
    found = {"layers": layers, "sizes": sizes, "facts": facts}
    return {**launch.values, **found, "caches": [asdict(own) for own in launch.caches], **graphs}


def _every_file(_path: str) -> bool:
    return True


SGLANG = TrialEngine(
    name="SGLang",
    key="sglang",
    package="sglang",
    cases=launches.cases,
    machines=launches.MACHINES,
    models=launches.MODELS,
    read_launches=sglang.read_launches,
    script=sglang_query.SCRIPT,
    launch_of=sglang_query.launch_of,
    model_option="--model-path",
    is_wanted=is_wanted,
    answer=_of_sglang,
    recorded=_kept_of_sglang,
)
VLLM = TrialEngine(
    name="vLLM",
    key="vllm",
    package="vllm",
    cases=vllm_launches.cases,
    machines=vllm_launches.CUDA.machines,
    models=vllm_launches.MODELS,
    read_launches=vllm.read_launches,
    script=vllm_query.SCRIPT,
    launch_of=vllm_query.launch_of,
    model_option="--model",
    is_wanted=_every_file,
    answer=_of_vllm,
    recorded=_kept_of_vllm,
)
VLLM_ROCM = replace(
    VLLM,
    name="vLLM for ROCm",
    key="vllm-rocm",
    cases=vllm_launches.rocm_cases,
    machines=vllm_launches.ROCM.machines,
)
ENGINES = {each.key: each for each in (SGLANG, VLLM, VLLM_ROCM)}
