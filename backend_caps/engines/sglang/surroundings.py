"""What SGLang's argument processing asks of the machine, and of the model's configuration."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from backend_caps.capability.gpu import Gpu
from backend_caps.engines.model import IS_COMPLETE, OWN_KEYS
from backend_caps.engines.model_config import ModelConfig, constructed_config, is_base_config
from backend_caps.engines.model_defaults import completed
from backend_caps.engines.source.index import Index
from backend_caps.engines.source.objects import Objects
from backend_caps.engines.source.values import ClassValue, Hook, Native, Unknown
from backend_caps.engines.surroundings import TORCH, Models, Record, answering, files_of, torch_of

_CONFIGS = "sglang/srt/configs/"
_REGISTRIES = (
    "sglang/srt/utils/hf_transformers/common.py",
    "sglang/srt/utils/hf_transformers_utils.py",
    "sglang/srt/hf_transformers_utils.py",
)
"""Where releases list the classes that they register with transformers."""


def _own_class(run: Objects, index: Index, model_type: object) -> ClassValue | None:
    """Find the class that SGLang registers for a type of model; None where transformers has it."""
    registered = b"".join(index.tree.files.get(path, b"") for path in _REGISTRIES)
    for module in index.modules(
        index.containing(f'model_type = "{model_type}"'.encode(), _CONFIGS)
    ):
        for name in {each.name for each in module.classes if each.name.encode() in registered}:
            cls = run.attribute(run.import_module(module.name), name)
            if isinstance(cls, ClassValue) and cls.lookup("model_type") == model_type:
                return cls
    return None


def surroundings(index: Index, gpu: Gpu, num_gpus: int, models: Models) -> dict[str, Native]:
    """Return what names outside of SGLang mean, and what its probes answer."""

    def config(run: Objects, args: Sequence[Native], named: Mapping[str, Native]) -> Native:
        path = args[0] if args else named["model"]
        found = models(path) if isinstance(path, str) else None
        if found is None:
            return Unknown(f"the configuration of {path}")
        is_complete = bool(found.get(IS_COMPLETE))
        found = {key: value for key, value in found.items() if key not in OWN_KEYS}
        own = _own_class(run, index, found.get("model_type"))
        if own is None:
            trusts = args[1] if len(args) > 1 else named.get("trust_remote_code")
            # Code of the model's own then goes before transformers' class, and is not known.
            is_remote = trusts is not False and bool(found.get("auto_map"))
            whole = None if is_complete or is_remote else completed(found)
            is_complete = is_complete or whole is not None
            made = ModelConfig(whole or found, is_complete=is_complete, run=run)
        else:
            is_whole = is_complete or all(map(is_base_config, own.externals))
            made = constructed_config(run, own, found, is_complete=is_whole)
        for name, value in (named.get("model_override_args") or {}).items():
            made.values[name] = value
        return made

    hf = "sglang.srt.utils.hf_transformers"
    common = "sglang.srt.utils.common"
    return {
        **torch_of(gpu, num_gpus),
        **files_of(models),
        f"{hf}.config.get_config": Hook(config),
        f"{hf}_utils.get_config": Hook(config),
        f"{hf}.processor.get_generation_config": Hook(answering(None)),
        f"{hf}.config.get_generation_config": Hook(answering(None)),
        f"{hf}_utils.get_generation_config": Hook(answering(None)),
        f"{common}.rank0_log": Hook(answering(None)),
        f"{common}.torch_release": TORCH,
        f"{common}.init_cublas": Hook(answering(None)),
        f"{common}.is_habana_available": Hook(lambda *_: False),
        f"{common}.get_nvgpu_memory_capacity": Hook(answering(float(gpu.memory_mib))),
        f"{common}.get_amdgpu_memory_capacity": Hook(answering(float(gpu.memory_mib))),
        "importlib.util.find_spec": Hook(_find_spec(gpu)),
        "importlib.metadata.entry_points": Hook(answering([])),
    }


def _find_spec(gpu: Gpu) -> Callable[..., Native]:
    def find(_run: Objects, args: Sequence[Native], _named: Mapping[str, Native]) -> Native:
        known = {"flashinfer": gpu.rocm_arch is None, "sglang": True}
        name = str(args[0])
        if name in known:
            return Record(name=name) if known[name] else None
        return Unknown(f"whether {name} is installed")

    return find
