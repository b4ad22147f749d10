"""What vLLM's argument processing asks of the machine, and of the model's configuration."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from copy import deepcopy
from functools import partial

from packaging.version import Version

from backend_caps.capability.gpu import Gpu
from backend_caps.engines.model import IS_COMPLETE, OWN_KEYS
from backend_caps.engines.model_config import ModelConfig, constructed_config, is_base_config
from backend_caps.engines.model_defaults import completed, version_of_table
from backend_caps.engines.source.index import Index
from backend_caps.engines.source.objects import Objects
from backend_caps.engines.source.values import (
    ABSENT,
    ClassValue,
    External,
    Hook,
    Lazy,
    Native,
    Unknown,
)
from backend_caps.engines.surroundings import Dtype, Models, Record, answering, files_of, torch_of
from backend_caps.engines.torch_modules import torch_modules
from backend_caps.engines.vllm.query_values import OF_ROCM, driver_answers

_LAYER_TYPES = (
    *("full_attention", "sliding_attention", "chunked_attention", "window_attention"),
    *("indexed_attention", "compressed_sparse_attention", "heavily_compressed_attention"),
    *("minimax_m3_sparse", "conv", "moe", "hybrid", "hybrid_sliding"),
    *("reference_sliding_attention", "linear_attention", "sparse", "dense"),
)
"""`ALLOWED_LAYER_TYPES` of transformers 5.23.0."""


class Configs:
    """What transformers makes of a model's `config.json`, with the classes that vLLM registers."""

    def __init__(self, models: Models) -> None:
        self._models = models
        self._classes: dict[Native, ClassValue] = {}

    @property
    def names(self) -> dict[str, Native]:
        """What names of transformers mean."""
        found: dict[str, Native] = {
            "AutoConfig.register": Hook(self._register),
            "AutoConfig.from_pretrained": Hook(self._loaded),
            "CONFIG_MAPPING": _Types(),
            "utils.CONFIG_NAME": "config.json",
            "configuration_utils.ALLOWED_LAYER_TYPES": _LAYER_TYPES,
            "configuration_utils.ALLOWED_ATTENTION_LAYER_TYPES": ABSENT,  # until 5.0 only
            "GenerationConfig.from_pretrained": Hook(answering(None)),
        }
        homes = ("", "configuration_utils.")
        spelled = ("PreTrainedConfig", "PretrainedConfig")  # the latter until transformers 5
        for name in (f"{home}{each}" for home in homes for each in spelled):
            found[f"{name}.get_config_dict"] = Hook(self._values)
            found[f"{name}()"] = Hook(_made_config)
            found[f"{name}.__init__"] = Hook(_init_config)
        known = {f"transformers.{name}": value for name, value in found.items()}
        return {**known, "transformers.*": self._of_class}

    def _of_class(self, path: str) -> Native:
        """Load a configuration by its own class of transformers as by its type."""
        if path.endswith("Config.from_pretrained"):
            return Hook(self._loaded)
        return (
            Hook(partial(_of_dict, path)) if path.endswith("Config.from_dict") else External(path)
        )

    def _register(self, _run: Objects, args: Sequence[Native], _named: Native) -> Native:
        self._classes[args[0]] = args[1]

    def _found(self, args: Sequence[Native]) -> Mapping[str, object] | None:
        """Return a copy of a configuration, as vLLM changes what it loads."""
        return deepcopy(self._models(str(args[0]))) if isinstance(args[0], str) else None

    def _values(self, _run: Objects, args: Sequence[Native], _named: Native) -> Native:
        found = self._found(args)
        if found is None:
            return Unknown(f"the configuration of {args[0]}")
        return ({key: value for key, value in found.items() if key not in OWN_KEYS}, {})

    def _loaded(self, run: Objects, args: Sequence[Native], named: Mapping[str, Native]) -> Native:
        found = self._found(args)
        if found is None:
            return Unknown(f"the configuration of {args[0]}")
        values = {key: value for key, value in found.items() if key not in OWN_KEYS}
        own = self._classes.get(values.get("model_type"))
        if isinstance(own, ClassValue):  # and not one of transformers' by another name
            is_whole = bool(found.get(IS_COMPLETE)) or all(map(is_base_config, own.externals))
            return _with_dtypes(constructed_config(run, own, values, is_complete=is_whole))
        is_remote = named.get("trust_remote_code") is not False and bool(values.get("auto_map"))
        if found.get(IS_COMPLETE) or is_remote:
            is_complete = bool(found.get(IS_COMPLETE))
            return _with_dtypes(ModelConfig(values, is_complete=is_complete, run=run))
        return _of_values(run, values, None)


class _Types:
    """Transformers' classes of configurations, by the type of model."""

    def __getitem__(self, model_type: Native) -> Native:
        """Return what makes a configuration of values."""
        of_dict = Hook(lambda run, args, _named: _of_values(run, args[0], model_type))
        return Hook(
            lambda run, _args, named: _of_values(run, named, model_type), {"from_dict": of_dict}
        )

    def interpreted_attribute(self, name: str, _default: Native) -> Native:
        """Return what else is asked of them, such as to register one."""
        return Unknown(f"CONFIG_MAPPING.{name}")


def _of_dict(
    path: str, run: Objects, args: Sequence[Native], _named: Mapping[str, Native]
) -> Native:
    """Make a configuration of its values, by transformers' class of its type."""
    cls = External(path.removesuffix(".from_dict"))
    made = _of_values(run, args[0], None) if isinstance(args[0], dict) else None
    is_of_type = made is not None and made.interpreted_instance(run, cls)
    return made if is_of_type else Unknown(f"{path}()")


def _of_values(run: Objects, values: Mapping[str, Native], model_type: Native) -> ModelConfig:
    whole = completed(values, model_type)
    is_complete = whole is not None
    return _with_dtypes(ModelConfig(whole or values, is_complete=is_complete, run=run))


def _made_config(run: Objects, _args: Sequence[Native], named: Mapping[str, Native]) -> Native:
    return ModelConfig(named, is_complete=True, run=run)


def _init_config(_run: Objects, args: Sequence[Native], named: Mapping[str, Native]) -> Native:
    """Do what the constructor of transformers' base does: keep what it is given."""
    args[0].values.update(named)


def _with_dtypes(config: ModelConfig) -> ModelConfig:
    """Make torch's dtypes of their names, in a configuration and its parts, as loading does."""
    for name, value in config.values.items():
        if name in {"dtype", "torch_dtype"} and isinstance(value, str):
            config.values[name] = Dtype(value)
        elif isinstance(value, ModelConfig):
            _with_dtypes(value)
    return config


def surroundings(index: Index, gpu: Gpu, num_gpus: int, models: Models) -> dict[str, Native]:
    """Return what names outside of vLLM mean, and what its probes answer."""
    installed = _installed(index, gpu)
    return {
        **_FIXED,
        **_driver_library(gpu, num_gpus),
        **{name: Hook(answering(deepcopy(value))) for name, value in _ANSWERS.items()},
        **torch_of(gpu, num_gpus),
        **torch_modules(),
        **_flashinfer_functions(index),
        **files_of(models, index.tree.files),
        **Configs(models).names,
        **{f"import {name}": is_there for name, is_there in installed.items()},
        "torch.library.custom_op": Hook(_undecorated),
        "importlib.util.find_spec": Hook(partial(_find_spec, index, installed)),
        "importlib.metadata.version": Hook(partial(_version_of, index)),
        "vllm.transformers_utils.repo_utils.get_hf_file_to_dict": Hook(partial(_file_of, models)),
        "vllm.platforms.cuda._cuda_device_count_stateless": Hook(answering(num_gpus)),
        "vllm.platforms.rocm._rocm_device_count_stateless": Hook(answering(num_gpus)),
        "vllm.utils.flashinfer.has_flashinfer_sm90_nope_mla": Hook(
            answering(_has_sm90_nope_mla(index))
        ),
    }


_LAZY_LOADERS = ("vllm.utils.import_utils.LazyLoader", "vllm.utils.LazyLoader")
"""The latter until 0.11."""
_OPTIONAL = (
    *("aiter", "arctic_inference", "conch", "deep_ep", "deep_gemm", "fbgemm_gpu", "flash_attn"),
    *("flashinfer", "flashinfer_cubin", "fmha_sm100", "helion", "hpc", "humming", "lmcache"),
    *("modelscope", "moonep", "mori", "nixl_ep", "quark", "ray", "tilelang", "tokenspeed_mla"),
    *("torchao", "triton_kernels", "vllm_omni", "pytorch-triton-xpu"),
)
"""Packages that vLLM uses where they are installed."""
_NOPE_MLA = Version("0.6.18")
"""By a comment at vLLM 0.33.0's `has_flashinfer_sm90_nope_mla`, which looks at a signature."""
_SPARSE_DECODE = Version("0.6.16.post3")
"""The first release in whose wheel the functions were seen by which vLLM knows sparse decoding."""
_SPARSE_DECODE_NAMES = (
    "flashinfer.autotuner.autotune",
    "flashinfer.decode.trtllm_batch_decode_sparse_mla_dsv4",
    "flashinfer.decode.trtllm_batch_decode_with_kv_cache_mla",
)
_HOST_BYTES = 1 << 40
"""The memory of a server beside its GPUs', of which some releases reserve 4 GiB for swapping."""
_BROUGHT = frozenset({"torch", "triton", "numba", "numpy", "transformers", "xgrammar"})
"""What is there in any case: vLLM requires them, or torch does."""


def _driver_library(gpu: Gpu, num_gpus: int) -> dict[str, Native]:
    """Return what names of the library mean that lists AMD's GPUs."""
    if gpu.rocm_arch is None:
        return {"import amdsmi": False}
    answers = driver_answers(gpu.rocm_arch, gpu.name, gpu.memory_mib, num_gpus)
    hooks = {f"amdsmi.{name}": Hook(answering(each)) for name, each in answers.items()}
    return {"import amdsmi": True, **hooks}


def _installed(index: Index, gpu: Gpu) -> dict[str, Native]:
    """Return which of the optional packages an installation of vLLM has.

    For CUDA that is one of vLLM alone; for ROCm one of its images, whose packages no wheel lists.
    """
    if gpu.rocm_arch is not None:
        return {name: name in OF_ROCM for name in _OPTIONAL}
    stated = index.tree.requires
    if stated is None:
        return {name: Unknown(f"whether {name} is installed") for name in _OPTIONAL}
    own = (re.match(r"[\w.-]+", each) for each in stated if "extra ==" not in each)
    required = {each[0].replace("-", "_").removesuffix("_python") for each in own if each}
    return {name: name in required for name in _OPTIONAL}


def _flashinfer_version(index: Index) -> Version | None:
    """Return the version of FlashInfer that vLLM pins."""
    stated = (
        re.match(r"flashinfer[-_]python==([\w.]+)", each) for each in index.tree.requires or ()
    )
    return next((Version(each[1]) for each in stated if each), None)


def _has_sm90_nope_mla(index: Index) -> Native:
    """Return whether the FlashInfer that vLLM pins has what its version 0.6.18 brought."""
    pinned = _flashinfer_version(index)
    return Unknown("FlashInfer's version") if pinned is None else pinned >= _NOPE_MLA


def _flashinfer_functions(index: Index) -> dict[str, Native]:
    """Return the functions that the FlashInfer that vLLM pins has for certain."""
    pinned = _flashinfer_version(index)
    if pinned is None or pinned < _SPARSE_DECODE:
        return {}
    return {name: Hook(answering(Unknown(f"{name}()"))) for name in _SPARSE_DECODE_NAMES}


def _find_spec(
    index: Index,
    installed: Mapping[str, Native],
    _run: Objects,
    args: Sequence[Native],
    _named: Mapping[str, Native],
) -> Native:
    name = str(args[0])
    if name.startswith("vllm."):
        own = index.module(name)
        return None if own is None else Record(name=name, origin=own.path)
    is_there = True if name in _BROUGHT else installed.get(name)
    if isinstance(is_there, bool):
        return Record(name=name, origin=f"{name}/__init__.py") if is_there else None
    return Unknown(f"whether {name} is installed")


def _in_one_node(run: Objects, args: Sequence[Native], _named: Mapping[str, Native]) -> Native:
    size = run.attribute(args[0], "world_size")
    return [True] * size if isinstance(size, int) else Unknown("the ranks of one machine")


def _version_of(
    index: Index, _run: Objects, args: Sequence[Native], _named: Mapping[str, Native]
) -> Native:
    known = {"vllm": index.tree.version or "0", "transformers": version_of_table()}
    name = str(args[0])
    return known.get(name, Unknown(f"the version of {name}"))


def _undecorated(_run: Objects, args: Sequence[Native], _named: Mapping[str, Native]) -> Native:
    """Leave a function or class as it is, with or without arguments of the decorator."""
    return args[0] if args else Hook(lambda _run, own, _named: own[0])


def _file_of(
    models: Models, _run: Objects, args: Sequence[Native], named: Mapping[str, Native]
) -> Native:
    """Read a file of a model's folder, which has its `config.json` alone."""
    given = {**dict(zip(("file_name", "model"), args, strict=False)), **named}
    is_config = given["file_name"] == "config.json"
    return deepcopy(models(str(given["model"]))) if is_config else None


def _lazy_module(_run: Objects, args: Sequence[Native], _named: Mapping[str, Native]) -> Native:
    """Do what vLLM's `LazyLoader` does: import a module when it is used."""
    package, _, name = args[-1].rpartition(".")
    return Lazy(package, name) if package else External(name)


_ANSWERS: Mapping[str, Native] = {
    "huggingface_hub.try_to_load_from_cache": None,
    "importlib.metadata.entry_points": [],
    "psutil.virtual_memory": Record(total=_HOST_BYTES),
    "transformers.models.auto.image_processing_auto.get_image_processor_config": {},
    "vllm.config.compilation.CompilationConfig.custom_op_log_check": None,
    "vllm.model_executor.model_loader.reload.record_metadata_for_reloading": None,
    "vllm.model_executor.models.vision.FusedInputNorm.from_model_config": External("input norm"),
    "vllm.model_executor.utils.set_weight_attrs": None,
    "vllm.ray.lazy_utils.is_in_ray_actor": False,
    "vllm.ray.lazy_utils.is_ray_initialized": False,
    "vllm.third_party.pynvml.nvmlInit": None,
    "vllm.third_party.pynvml.nvmlShutdown": None,
    "vllm.tokenizers.registry.cached_tokenizer_from_config": External("tokenizer"),
    "vllm.transformers_utils.config.get_safetensors_params_metadata": {},
    "vllm.transformers_utils.config.try_get_safetensors_metadata": None,
    "vllm.transformers_utils.repo_utils.list_repo_files": ["config.json"],
    "vllm.v1.worker.workspace.current_workspace_manager": External("workspace"),
}
"""What functions return whatever they are given: a copy, as vLLM may change it."""
_UNDECORATED = (
    "vllm.compilation.decorators.support_torch_compile",
    "vllm.model_executor.models.expert_substitution.as_expert_substitution_model",
    "vllm.tracing.instrument",
)
"""Decorators that leave a function or class as it is."""
_REGISTRY = "vllm.model_executor.models.registry"
_REGISTERED = f"{_REGISTRY}._LazyRegisteredModel"
_FIXED: Mapping[str, Native] = {
    **dict.fromkeys(_UNDECORATED, Hook(_undecorated)),
    **dict.fromkeys(_LAZY_LOADERS, Hook(_lazy_module)),
    "huggingface_hub.constants.HF_HUB_OFFLINE": False,
    "triton.backends.backends": {
        "gpu": Record(driver=Record(is_active=Hook(answering(value=True))))
    },
    "vllm.distributed.parallel_state.in_the_same_node_as": Hook(_in_one_node),
    # vLLM logs why a class cannot be looked at, and refuses in words that do not say it.
    f"{_REGISTRY}._try_inspect_model_cls": Hook(
        lambda run, args, _named: run.call(run.attribute(args[1], "inspect_model_cls"))
    ),
    f"{_REGISTRY}._run_in_subprocess": Hook(lambda run, args, _named: run.call(args[0])),
    f"{_REGISTERED}._get_modelinfo_module_hash": Hook(answering("")),
    f"{_REGISTERED}._load_modelinfo_from_cache": Hook(answering(None)),
    f"{_REGISTERED}._save_modelinfo_to_cache": Hook(answering(None)),
}
"""What else does not depend on engine, machine and model."""
