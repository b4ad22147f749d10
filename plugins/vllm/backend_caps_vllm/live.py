"""What a worker of vLLM runs, read off its objects once its KV cache is there.

Nothing of vLLM is imported, and here alone its objects are looked at. The names are those of every
release from 0.11 on, of both model runners, and of platforms that derive from these.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, TypeAlias

from backend_caps import Facts
from backend_caps.capability.gpu import gpu_named
from backend_caps.engines.vllm.query import flags_of
from backend_caps.engines.vllm.query_layers import SIZES
from backend_caps.engines.vllm.query_values import VALUES
from backend_caps.resolution.launch import GraphMode, Launch, LayerGroup
from backend_caps_vllm.engine import ENGINE

_Object: TypeAlias = Any
"""An object of vLLM, whose classes are not known here."""
RESOLVING = frozenset(
    {
        "resolve_cudagraph_mode_and_sizes",
        "_check_and_update_cudagraph_mode",
        "initialize_cudagraph_capture",
    }
)
"""vLLM's functions that lower the mode of graphs, by release; each says so in a warning."""
_KERNEL_BLOCK = "kernel_block_size"
_ALWAYS = "ALWAYS"


class GraphWords(logging.Handler):
    """Keeps the mode of graphs that was asked for, and vLLM's warnings where it is lowered.

    The mode is rewritten in place, so it is read before the model is loaded.
    """

    def __init__(self, config: _Object) -> None:
        """Collect from vLLM's loggers from now on."""
        super().__init__(logging.WARNING)
        self.asked = _graph_mode(config)
        self.found: dict[str, None] = {}
        logging.getLogger(ENGINE).addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a warning of one of these functions; a trial for memory repeats it."""
        if record.funcName in RESOLVING:
            self.found[record.getMessage()] = None

    def close(self) -> None:
        """Collect no more."""
        logging.getLogger(ENGINE).removeHandler(self)
        super().close()


@dataclass(frozen=True, slots=True, kw_only=True)
class TakenBackend:
    """An attention backend that layers of this worker run."""

    path: str
    """`package.module.Class`."""
    kind: type
    builder: type
    facts: Facts
    """What these layers ask of it."""

    @property
    def is_own(self) -> bool:
        """Whether it is one of vLLM's."""
        return self.path.partition(".")[0] == ENGINE


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedBackend:
    """The backend that the arguments name."""

    name: str
    """Of vLLM's enum."""
    path: str
    kind: type | None
    """Its class; None where it is not imported."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveServer:
    """What this worker ended with."""

    launch: Launch
    backends: tuple[TakenBackend, ...]
    asked: AskedBackend | None
    """What the arguments name; None where they name none."""
    is_first: bool
    """Whether it has the first layers; of pipeline stages, a plan without a GPU is of those."""


def is_first_of_stage(wrapper: _Object) -> bool:
    """Tell whether a worker is the first of those that run the same layers."""
    return bool(wrapper.worker.rank % _stage_size(wrapper) == 0)


def _stage_size(wrapper: _Object) -> int:
    parallel = wrapper.vllm_config.parallel_config
    return int(parallel.world_size // parallel.pipeline_parallel_size)


def live_server(wrapper: _Object, version: str, words: GraphWords) -> LiveServer:
    """Read what a worker runs.

    Args:
        wrapper: vLLM's `WorkerWrapperBase`, whose worker has its KV cache.
        version: vLLM's.
        words: vLLM's warnings from before the model was loaded on.

    Raises:
        AttributeError: this vLLM keeps something elsewhere.
    """
    config, worker = wrapper.vllm_config, wrapper.worker
    layers = [*_layers(config, worker)]
    machine = str(_platform().get_device_name())
    gpu = gpu_named(machine)
    values, graphs = _values(config), _graphs(config, layers, words)
    launch = Launch(
        engine=f"vllm-{version}",
        machine=machine if gpu is None else gpu.key,
        model=str(config.model_config.model),
        values=values,
        flags=flags_of(values, graphs.mode),
        layers=tuple(_groups(layers)),
        graphs=graphs,
    )
    return LiveServer(
        launch=launch,
        backends=tuple({repr(each): each for each in _taken(config, layers)}.values()),
        asked=_asked(config),
        is_first=worker.rank < _stage_size(wrapper),
    )


def _platform() -> _Object:
    return sys.modules["vllm.platforms"].current_platform


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layer:
    """One layer that attends, or keeps a state."""

    role: str
    kind: str
    backend: _Object
    spec: _Object | None
    """Of its part of the KV cache; None where it keeps nothing."""
    builder: _Object | None
    support: _Object | None
    """vLLM's level of graphs."""

    @property
    def path(self) -> str:
        return f"{self.backend.__module__}.{self.backend.__qualname__}"

    def sizes(self) -> dict[str, object]:
        """List what is known of its part of the cache; a kernel's blocks where they are others."""
        own = {each: getattr(self.spec, each) for each in SIZES if hasattr(self.spec, each)}
        spec = getattr(self.builder, "kv_cache_spec", None)
        block = getattr(spec, "block_size", None)
        if block not in {None, own.get("block_size")}:
            own[_KERNEL_BLOCK] = block
        return {name: _named(value) for name, value in own.items()}

    def group(self) -> LayerGroup:
        """Make a group of this layer alone."""
        return LayerGroup(
            role=self.role,
            layer=self.kind,
            num_layers=1,
            backend=str(self.backend.get_name()),
            path=self.path,
            graph_support=None if self.support is None else str(self.support.name),
            cache=None if self.spec is None else type(self.spec).__name__,
            sizes=self.sizes(),
        )


def _layers(config: _Object, worker: _Object) -> Iterator[_Layer]:
    """List the layers in the order in which the models made them."""
    groups = {
        name: group
        for part in worker.model_runner.attn_groups
        for group in part
        for name in group.layer_names
    }
    of_target = {id(module) for module in worker.get_model().modules()}
    for name, layer in config.compilation_config.static_forward_context.items():
        role = "target" if id(layer) in of_target else "draft"
        if name in groups:
            yield _layer_of_group(config, name, role, layer, groups[name])
        elif hasattr(layer, "get_attn_backend"):  # experts, which are there too, have none
            yield _Layer(
                role=role,
                kind=type(layer).__name__,
                backend=layer.get_attn_backend(),
                spec=None,
                builder=None,
                support=None,
            )


def _layer_of_group(
    config: _Object, name: str, role: str, layer: _Object, group: _Object
) -> _Layer:
    spec, builder = group.kv_cache_spec, group.metadata_builders[0]
    by_layer = getattr(spec, "kv_cache_specs", None)
    spec = spec if by_layer is None else by_layer[name]
    ask = getattr(builder, "get_cudagraph_support", None)  # of 0.11 it is an attribute
    return _Layer(
        role=role,
        kind=type(layer).__name__,
        backend=group.backend,
        spec=spec,
        builder=builder,
        support=builder.cudagraph_support if ask is None else ask(config, spec),
    )


def _groups(layers: Iterable[_Layer]) -> Iterator[LayerGroup]:
    """Count the layers that are alike."""
    found: dict[str, list[LayerGroup]] = {}
    for group in (own.group() for own in layers):
        found.setdefault(repr(group), []).append(group)
    yield from (replace(alike[0], num_layers=len(alike)) for alike in found.values())


def _graphs(config: _Object, layers: Sequence[_Layer], words: GraphWords) -> GraphMode:
    stated = [own for own in layers if own.support is not None]
    least = min(stated, key=_level, default=None)
    support = _ALWAYS if least is None else _named(least.support)
    return GraphMode(
        asked=words.asked,
        mode=_graph_mode(config),
        support=str(support),
        by=None if least is None or support == _ALWAYS else str(least.backend.__name__),
        words=tuple(words.found),
    )


def _level(layer: _Layer) -> int:
    return int(layer.support.value)  # type: ignore[union-attr] # those without one are left out


def _graph_mode(config: _Object) -> str:
    return str(_named(config.compilation_config.cudagraph_mode) or "NONE")


def _taken(config: _Object, layers: Iterable[_Layer]) -> Iterator[TakenBackend]:
    for own in layers:
        if own.builder is None:
            continue
        sizes = own.sizes()
        known = {
            "device": _platform().device_type,
            "dtype": _named(config.model_config.dtype),
            "head_size": sizes.get("head_size"),
            "page_size": sizes.get(_KERNEL_BLOCK, sizes.get("block_size")),
            "context_length": config.model_config.max_model_len,
        }
        yield TakenBackend(
            path=own.path,
            kind=own.backend,
            builder=type(own.builder),
            facts=Facts.model_validate(known),
        )


def _asked(config: _Object) -> AskedBackend | None:
    """Return the backend that the arguments name; releases before 0.12 name it in a variable."""
    asked = getattr(getattr(config, "attention_config", None), "backend", None)
    try:
        path = "" if asked is None else str(asked.get_path())
    except ValueError:  # no backend is registered for it
        return None
    module, _, name = path.rpartition(".")
    if not module:  # a label, of which only the platform knows the class
        return None
    kind: object = vars(sys.modules[module]).get(name) if module in sys.modules else None
    return AskedBackend(
        name=str(_named(asked)), path=path, kind=kind if isinstance(kind, type) else None
    )


def _values(config: _Object) -> Mapping[str, object]:
    """List the final values of the arguments; a release may lack some."""
    parts = {owner: getattr(config, owner, None) for owner in VALUES}
    found = {
        f"{owner}.{name}": _named(getattr(part, name))
        for owner, part in parts.items()
        for name in VALUES[owner]
        if hasattr(part, name)
    }
    if hasattr(config, "use_v2_model_runner"):
        found["use_v2_model_runner"] = bool(config.use_v2_model_runner)
    return found


def _named(value: _Object) -> object:
    """Write a value as JSON has it: an enumeration's member by its name, a dtype by torch's."""
    match value:
        case Enum():
            return value.name
        case None | bool() | int() | float() | str():
            return value
        case list() | tuple() | set() | frozenset():
            return [_named(each) for each in value]
        case dict():
            return {str(key): _named(each) for key, each in value.items()}
    return str(value).removeprefix("torch.")
