"""What vLLM makes of a server's layers: their backends, their KV cache and the graph mode.

An installed vLLM's Python runs this module for `query_script`, and the interpreter of vLLM's source
follows it for `layers`, so that the two differ in nothing but the values that are known. It imports
nothing of this package, and vLLM's modules by their names.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import inspect
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn, TypeAlias

_Value: TypeAlias = Any
"""A value of vLLM, whose classes are not known here."""
_MEMORY_BYTES = 1 << 40
"""As much is left for the cache: what weights and activations take is not known."""
_CORE, _WORKER = "vllm.v1.engine.core", "vllm.v1.worker"
MODULES = (_CORE, f"{_WORKER}.utils")
"""What is imported before a command line is processed, as each is in a process of its own."""
SIZES = ("block_size", "head_size", "dtype", "sliding_window", "num_kv_heads")
"""Those of a layer's part of the KV cache."""
SELECTORS = ("vllm.v1.attention.selector", "vllm.attention.selector")
"""The module in which layers ask for a backend, and where it is up to 0.13."""
SELECT = "_cached_get_attn_backend"
"""Its function that each layer calls, and that asks the platform what it was not asked before."""
QUESTION = ("backend", "attn_selector_config", "num_heads")
"""The arguments of that function; until 0.11 the second one is its fields."""
_SCALES = ("vllm.v1.attention.backend", "vllm.v1.attention.backends.utils")
"""The module of `AttentionCGSupport`, and where it is until 0.13."""
_V1, _V2 = "vllm.v1.spec_decode", "vllm.v1.worker.gpu.spec_decode"
_DRAFTERS = {
    False: {
        "uses_draft_model": f"{_V1}.draft_model.DraftModelProposer",
        "use_gemma4_mtp": f"{_V1}.gemma4.Gemma4Proposer",
        "use_step3p5_mtp": f"{_V1}.step3p5.Step3p5MTPProposer",
        "use_dflash": f"{_V1}.dflash.DFlashProposer",
        "use_eagle": f"{_V1}.eagle.EagleProposer",
    },
    True: {
        "uses_draft_model": f"{_V2}.standalone_ar.speculator.StandaloneARSpeculator",
        "use_gemma4_mtp": f"{_V2}.gemma4.speculator.Gemma4Speculator",
        "use_dflash": f"{_V2}.dflash.speculator.DFlashSpeculator",
        "use_eagle": f"{_V2}.eagle.speculator.EagleSpeculator",
    },
}
"""The classes that load a draft's model, by whether the second model runner runs, and by the method
of the speculative configuration that is true for them; a release may lack some."""


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
        specs = _specs_of(self._config)
        return [{name: each for name, each in specs.items() if not self._shares(name)}]

    def _shares(self, name: str) -> bool:
        """Return whether a layer uses the cache of another one, which releases until 0.18 list."""
        return getattr(self._layers[name], "kv_sharing_target_layer_name", None) is not None

    def get_supported_kv_cache_layouts(self) -> list[list[str]]:
        """Return the layouts that all backends of the one worker support."""
        base = importlib.import_module(f"{_WORKER}.worker_base").WorkerBase
        return [base.get_supported_kv_cache_layouts(_Worker(self._config))]

    def set_kv_cache_layout(self, *_given: object) -> None:
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

    def get_metadata_builder(self) -> _Value:
        """Return a builder that is not initialized: the runner of 0.11 reads what its class has."""
        return object.__new__(self.backend.get_builder_cls())


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
            place = "vllm.utils.torch_utils"
            utils = importlib.import_module(place if has_module(place) else "vllm.utils")
            self.kv_cache_dtype = utils.STR_DTYPE_TO_TORCH_DTYPE[stored]
        self.select_common_block_size = getattr(_runner_class(), "select_common_block_size", None)


class _GraphRunner:
    """The part of a runner that resolves the mode of graphs, in releases until 0.18."""

    speculative_config = kv_cache_config = None  # graphs are the target's

    def __init__(self, config: _Value, groups: Sequence[_AttentionGroup], query_len: int) -> None:
        self.vllm_config, self._groups = config, groups
        self.compilation_config = config.compilation_config
        self.parallel_config = config.parallel_config
        self.cudagraph_dispatcher = self
        self.cudagraph_batch_sizes: list[int] = []
        self.uniform_decode_query_len = query_len

    def initialize_cudagraph_keys(self, *_args: object, **_named: object) -> None:
        """Keep no graphs."""

    def _attn_group_iterator(self) -> Sequence[_AttentionGroup]:
        return self._groups


def _runner_class() -> _Value:
    return importlib.import_module(f"{_WORKER}.gpu_model_runner").GPUModelRunner


def _specs_of(config: _Value) -> Mapping[str, _Value]:
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


def layers_of(config: _Value) -> Mapping[str, _Value]:
    """Return the layers of the models with attention or state, by name."""
    base = importlib.import_module("vllm.model_executor.layers.attention_layer_base")
    found: Mapping[str, _Value] = importlib.import_module(
        "vllm.config"
    ).get_layers_from_vllm_config(config, base.AttentionLayerBase)
    return found


def drafter_of(config: _Value, *, second: bool) -> _Value:
    """Return the class that loads a draft's model in this server; None where none does.

    Args:
        config: the server's.
        second: whether the second model runner runs.
    """
    speculative = config.speculative_config
    for name, path in () if speculative is None else _DRAFTERS[second].items():
        if hasattr(speculative, name) and getattr(speculative, name)():
            module, _, cls = path.rpartition(".")
            return getattr(importlib.import_module(module), cls)
    return None


def layer_descriptions(config: _Value) -> list[dict[str, _Value]]:
    """List each layer with its backend, what its graphs support, and what it keeps of a token."""
    return [_description(config, name, layer) for name, layer in layers_of(config).items()]


def _description(config: _Value, name: str, layer: _Value) -> dict[str, _Value]:
    backend, spec = layer.get_attn_backend(), _spec_of_layer(config, name, layer)
    return {
        "name": name,
        "layer": type(layer).__name__,
        "backend": _name_of(backend),
        "class": backend,
        "spec": spec,
        "graph_support": None if spec is None else _support(config, backend, spec).name,
        "cache": None if spec is None else type(spec).__name__,
        "logits_soft_cap": _has_soft_cap(layer),
        "sizes": {each: getattr(spec, each) for each in SIZES if hasattr(spec, each)},
    }


def _has_soft_cap(layer: _Value) -> bool | None:
    """Return whether a layer caps its logits; None where its implementation keeps no cap."""
    impl: _Value = getattr(layer, "impl", None)
    return bool(impl.logits_soft_cap) if hasattr(impl, "logits_soft_cap") else None


def _spec_of_layer(config: _Value, name: str, layer: _Value) -> _Value:
    """Return a layer's part of the KV cache, which until 0.11 the runner makes for all."""
    if not hasattr(layer, "get_kv_cache_spec"):
        return _specs_of(config).get(name)
    takes = inspect.signature(layer.get_kv_cache_spec).parameters
    return layer.get_kv_cache_spec(config) if takes else layer.get_kv_cache_spec()


def _support(config: _Value, backend: _Value, spec: _Value) -> _Value:
    """Return for which batches graphs of a backend's builder work."""
    builder = backend.get_builder_cls()
    if hasattr(builder, "get_cudagraph_support"):
        return builder.get_cudagraph_support(config, spec)
    return builder.cudagraph_support  # in 0.11


def reasons_against(asked: _Value, num_heads: _Value) -> dict[str, list[str]]:
    """Return the reasons against each backend, those that the platform prefers first.

    Args:
        asked: the `AttentionSelectorConfig` of a layer.
        num_heads: the number of its heads; None in releases until 0.18, which do not ask it.
    """
    platform = importlib.import_module("vllm.platforms").current_platform
    heads = () if num_heads is None else (num_heads,)
    valid, invalid = platform.get_valid_backends(platform.get_device_capability(), asked, *heads)
    pairs = [  # until 0.22
        (each.backend, each.priority) if hasattr(each, "backend") else each for each in valid
    ]
    found: dict[str, tuple[int, list[str]]] = {own.name: (at, []) for own, at in pairs}
    last = len(valid) + len(invalid)  # until 0.15 there is no priority beside reasons
    for own, why in invalid.items():
        priority, reasons = why if isinstance(why, tuple) else (last, why)
        found[own.name] = (priority, list(reasons))
    return {name: reasons for name, (_, reasons) in sorted(found.items(), key=lambda p: p[1][0])}


def graph_mode_of(
    config: _Value, layers: Sequence[Mapping[str, _Value]], *, second: bool
) -> dict[str, _Value]:
    """Resolve the mode of graphs, as the runner does once it has the backends.

    Args:
        config: the server's.
        layers: as `layer_descriptions` lists them.
        second: whether the second model runner runs.
    """
    scale = _scale()
    kept = [own for own in layers if own["graph_support"] is not None]
    supports = [(scale[own["graph_support"]], own["class"].__name__) for own in kept]
    least, by = min(supports, key=lambda own: own[0].value, default=(scale.ALWAYS, None))
    compilation = config.compilation_config
    asked = compilation.cudagraph_mode
    drafts = getattr(config.speculative_config, "num_speculative_tokens", None) or 0
    if hasattr(compilation, "resolve_cudagraph_mode_and_sizes"):
        resolve = compilation.resolve_cudagraph_mode_and_sizes
        sizes = {
            "use_v2_model_runner": second,
            "tensor_parallel_size": config.parallel_config.tensor_parallel_size,
        }
        taken = inspect.signature(resolve).parameters
        own = {name: value for name, value in sizes.items() if name in taken}
        named = None if least is scale.ALWAYS else by
        resolve(least, named, 1 + drafts, **own)
    else:
        _resolve_in_runner(config, kept, 1 + drafts)
    return {
        "asked": asked.name,
        "mode": compilation.cudagraph_mode.name,
        "support": least.name,
        "by": None if least is scale.ALWAYS else by,
    }


def _scale() -> _Value:
    modules = [importlib.import_module(each) for each in _SCALES if has_module(each)]
    return next(each for each in modules if hasattr(each, "AttentionCGSupport")).AttentionCGSupport


def _resolve_in_runner(
    config: _Value, layers: Sequence[Mapping[str, _Value]], query_len: int
) -> None:
    """Let the runner resolve the mode, which until 0.18 is its own."""
    cls = _runner_class()
    groups = [_AttentionGroup(own["class"], own["spec"]) for own in layers]
    runner = _GraphRunner(config, groups, query_len)
    if not hasattr(cls, "_check_and_update_cudagraph_mode"):  # in 0.11
        cls.initialize_cudagraph_capture(runner)
        return
    backends = [[own.backend] for own in groups]
    cls._check_and_update_cudagraph_mode(runner, backends, groups)


def settle_block_size(config: _Value) -> None:
    """Let the platform settle the block size once the backends are known, as workers do.

    Until 0.17 it is settled with the arguments.
    """
    platform = importlib.import_module("vllm.platforms").current_platform
    if hasattr(platform, "update_block_size_for_backend"):
        platform.update_block_size_for_backend(config)


def cache_groups_of(config: _Value) -> list[dict[str, _Value]]:
    """List the groups of layers that share blocks, as the engine's core and its runner make them.

    Args:
        config: the server's, with a settled block size.
    """
    layers = layers_of(config)
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
            "backends": sorted({_name_of(own.backend) for own in within}),
        }
        for group, within, size in zip(planned.kv_cache_groups, attn_groups, sizes, strict=True)
        for spec in [_spec_of(group, group.layer_names[0])]
    ]


def _name_of(backend: _Value) -> str:
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
