"""Which of vLLM's values an answer has, whether vLLM is asked or its source is followed.

It imports nothing of this package, as `query_script` loads it into the Python that has vLLM.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

VALUES = {
    "attention_config": ("backend", "backend_per_kind", "flash_attn_version"),
    "cache_config": (
        "block_size",
        "cache_dtype",
        "enable_prefix_caching",
        "kv_cache_layout",
        "mamba_block_size",
    ),
    "compilation_config": ("mode", "cudagraph_mode", "splitting_ops", "cudagraph_capture_sizes"),
    "model_config": ("dtype", "max_model_len", "enforce_eager", "quantization"),
    "parallel_config": (
        "tensor_parallel_size",
        "pipeline_parallel_size",
        "data_parallel_size",
        "decode_context_parallel_size",
        "prefill_context_parallel_size",
        "enable_expert_parallel",
        "all2all_backend",
        "enable_dbo",
    ),
    "scheduler_config": (
        "async_scheduling",
        "max_num_seqs",
        "max_num_batched_tokens",
        "enable_chunked_prefill",
        "disable_chunked_mm_input",
    ),
    "speculative_config": ("method", "num_speculative_tokens", "attention_backend"),
}
"""By the configuration that holds them; a release may lack some."""
SOFT_CAP = "logits_soft_cap"
"""The attribute of an attention's implementation that caps its logits."""
OF_LAYER = ("layer", "backend", "graph_support", "cache", SOFT_CAP)
"""What an answer has of a layer as `query_layers.layer_descriptions` lists it."""
SECOND_RUNNER = "use_v2_model_runner"
"""The name of the answer, and of the configuration's attribute, that says which runner runs."""
OF_ROCM = ("aiter", "flash_attn")
"""Packages that vLLM's images for ROCm have, and on which a choice depends there."""
LOADERS = ("load_draft_model", "load_model")
"""The methods that load a draft's model: the first one that a class has, with no model of the
target. The last one takes no names of layers."""


def driver_answers(arch: str, name: str, memory_mib: int, num_gpus: int) -> dict[str, Any]:
    """Return what the functions of `amdsmi`, the library of AMD's driver, return on a machine.

    Args:
        arch: the GPU's `gfx` name.
        name: as torch names it.
        memory_mib: of each.
        num_gpus: how many there are.
    """
    asic = {"target_graphics_version": arch, "market_name": name, "device_id": ""}
    return {
        "amdsmi_init": None,
        "amdsmi_shut_down": None,
        "amdsmi_get_processor_handles": [*range(num_gpus)],
        "amdsmi_get_gpu_asic_info": asic,
        "amdsmi_get_gpu_device_uuid": "GPU-0",
        "amdsmi_get_gpu_memory_total": memory_mib << 20,
        "amdsmi_topo_get_link_type": {"hops": 1, "type": 2},
        "amdsmi_topo_get_numa_node_number": 0,
    }


def grouped(layers: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """List the layers that are alike, each kind once with their number."""
    found: dict[str, dict[str, Any]] = {}
    for own in layers:
        alike = found.setdefault(json.dumps(own, sort_keys=True), {**own, "num_layers": 0})
        alike["num_layers"] += 1
    return list(found.values())
