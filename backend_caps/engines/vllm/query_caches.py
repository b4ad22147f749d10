"""The KV cache that vLLM makes of a server's layers: block sizes, groups, layout, kernel blocks.

An installed vLLM's Python runs this module for `query_script`, and the interpreter of vLLM's source
follows it for `layers`. So it imports nothing of this package, and vLLM's modules by their names.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn, TypeAlias

_Value: TypeAlias = Any
"""A value of vLLM, whose classes are not known here."""
_MEMORY_BYTES = 1 << 40
"""As much is left for the cache: what weights and activations take is not known."""
_CORE, _WORKER = "vllm.v1.engine.core", "vllm.v1.worker"
MODULES = (_CORE, f"{_WORKER}.utils")
"""What is imported before a command line is processed, as each is in a process of its own."""


class _PlannedError(Exception):
    """The cache is planned, and nothing is allocated."""


class _Executor:
    """What the engine's core asks of its workers before it plans the cache."""

    def __init__(self, config: _Value, layers: Mapping[str, _Value]) -> None:
        self._config = config
        self._layers = layers
        self.planned: Sequence[_Value] = ()

    def get_kv_cache_specs(self) -> list[Mapping[str, _Value]]:
        """Return what each layer of the one worker keeps of a token."""
        specs = specs_of(self._config)
        return [{name: each for name, each in specs.items() if not self._shares(name)}]

    def _shares(self, name: str) -> bool:
        """Return whether a layer uses the cache of another one, which releases until 0.18 list."""
        return getattr(self._layers[name], "kv_sharing_target_layer_name", None) is not None

    def get_supported_kv_cache_layouts(self) -> list[list[str]]:
        """Return the layouts that all backends of the one worker support."""
        base = importlib.import_module(f"{_WORKER}.worker_base").WorkerBase
        return [base.get_supported_kv_cache_layouts(_Worker(self._config))]

    def set_kv_cache_layout(self, _layout: str, _interleave_size: int) -> None:
        """Leave the layout where the core has recorded it."""

    def determine_available_memory(self) -> list[int]:
        """Return the memory of the one worker."""
        return [_MEMORY_BYTES]

    def initialize_from_config(self, configs: Sequence[_Value]) -> NoReturn:
        """Keep what is planned, and go no further."""
        self.planned = configs
        raise _PlannedError


class _Worker:
    """The part of a worker that says which layouts its backends support."""

    def __init__(self, config: _Value) -> None:
        self.vllm_config = config


class _Core:
    """The part of an engine's core that plans the cache."""

    available_gpu_memory_for_kv_cache = -1

    def __init__(self, config: _Value, executor: _Executor) -> None:
        self.vllm_config = config
        self.model_executor = executor


class _AttentionGroup:
    """Layers of a group that share a backend and what they keep."""

    def __init__(self, backend: _Value, kv_cache_spec: _Value) -> None:
        self.backend = backend
        self.kv_cache_spec = kv_cache_spec


class _Runner:
    """The parts of a runner that older releases have these functions in, and not in modules."""

    def __init__(
        self, config: _Value, attn_groups: Sequence[Sequence[_AttentionGroup]] = ()
    ) -> None:
        self.vllm_config, self.attn_groups = config, attn_groups
        self.speculative_config = config.speculative_config
        self.shared_kv_cache_layers: dict[str, str] = {}
        model, stored = config.model_config, config.cache_config.cache_dtype
        self.attention_chunk_size = getattr(model, "attention_chunk_size", None)
        self.kv_cache_dtype = model.dtype
        if stored != "auto":
            self.kv_cache_dtype = importlib.import_module("vllm.utils").STR_DTYPE_TO_TORCH_DTYPE[
                stored
            ]
        self.select_common_block_size = getattr(_runner_class(), "select_common_block_size", None)


def _runner_class() -> _Value:
    return importlib.import_module(f"{_WORKER}.gpu_model_runner").GPUModelRunner


def specs_of(config: _Value) -> Mapping[str, _Value]:
    """Return what each layer keeps of a token, as the runner does."""
    found: Mapping[str, _Value]
    if has_module(f"{_WORKER}.gpu.attn_utils"):
        found = importlib.import_module(f"{_WORKER}.gpu.attn_utils").get_kv_cache_spec(config)
    else:  # until 0.12
        found = _runner_class().get_kv_cache_spec(_Runner(config))
    return found


def has_module(name: str) -> bool:
    """Return whether a release has a module."""
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # of the package around it
        return False


def settle_block_size(config: _Value) -> None:
    """Let the platform settle the block size once the backends are known, as workers do.

    Until 0.17 it is settled with the arguments.
    """
    platform = importlib.import_module("vllm.platforms").current_platform
    if hasattr(platform, "update_block_size_for_backend"):
        platform.update_block_size_for_backend(config)


def caches_of(config: _Value, layers: Mapping[str, _Value]) -> list[dict[str, _Value]]:
    """List the groups of layers that share blocks, as the engine's core and its runner make them.

    Args:
        config: the server's, with a settled block size.
        layers: the models' layers with attention or state, by name.
    """
    executor = _Executor(config, layers)
    core = importlib.import_module(_CORE).EngineCore
    with contextlib.suppress(_PlannedError):
        core._initialize_kv_caches(_Core(config, executor), config)  # noqa: SLF001
    planned = executor.planned[0]
    attn_groups = [_attn_groups(own, layers) for own in planned.kv_cache_groups]
    sizes = _kernel_block_sizes(config, planned, attn_groups)
    return [
        {
            "cache": type(spec).__name__,
            "num_layers": len(group.layer_names),
            "block_size": group.kv_cache_spec.block_size,
            "kernel_block_size": size,
            "backends": sorted({name_of(own.backend) for own in within}),
        }
        for group, within, size in zip(planned.kv_cache_groups, attn_groups, sizes, strict=True)
        for spec in [_spec_of(group, group.layer_names[0])]
    ]


def name_of(backend: _Value) -> str:
    """Return a backend's name; that of its class where a release leaves it out."""
    try:
        name: str = backend.get_name()
    except NotImplementedError:
        name = backend.__name__
    return name


def _spec_of(group: _Value, layer: str) -> _Value:
    """Return what a layer keeps; some groups have a specification for each."""
    specs = getattr(group.kv_cache_spec, "kv_cache_specs", None)
    return group.kv_cache_spec if specs is None else specs[layer]


def _attn_groups(group: _Value, layers: Mapping[str, _Value]) -> list[_AttentionGroup]:
    """Part a group by backend and specification, as the runner does."""
    found: list[_AttentionGroup] = []
    for name in group.layer_names:
        backend, spec = layers[name].get_attn_backend(), _spec_of(group, name)
        if all((each.backend, each.kv_cache_spec) != (backend, spec) for each in found):
            found.append(_AttentionGroup(backend, spec))
    return found


def _kernel_block_sizes(
    config: _Value, planned: _Value, attn_groups: Sequence[Sequence[_AttentionGroup]]
) -> Sequence[int]:
    utils = importlib.import_module(f"{_WORKER}.utils")
    if hasattr(utils, "prepare_kernel_block_sizes"):
        sizes: Sequence[int] = utils.prepare_kernel_block_sizes(planned, attn_groups)
        return sizes
    cls = _runner_class()
    if not hasattr(cls, "_prepare_kernel_block_sizes"):  # until 0.12
        return [own.kv_cache_spec.block_size for own in planned.kv_cache_groups]
    found: Sequence[int] = cls._prepare_kernel_block_sizes(_Runner(config, attn_groups), planned)
    return found
