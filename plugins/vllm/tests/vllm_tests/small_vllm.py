"""vLLM made small: the objects of one worker, by the names that its releases have.

It stands in for a started server, which the tests of `make upstream` alone have.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from types import SimpleNamespace

_LOG = logging.getLogger("vllm.config.compilation")


class Support(Enum):
    """vLLM's `AttentionCGSupport`."""

    ALWAYS = 3
    UNIFORM_BATCH = 2
    NEVER = 0


class GraphMode(Enum):
    """Two of vLLM's `CUDAGraphMode`."""

    PIECEWISE = 1
    FULL = 2


class Name(Enum):
    """Two of vLLM's `AttentionBackendEnum`."""

    SMALL = "vllm.small.Small"
    CUSTOM = "acme.Acme"
    LABEL = "ASCEND"
    UNSET = ""

    def get_path(self) -> str:
        """Return the class's path.

        Raises:
            ValueError: no backend is registered for it.
        """
        if not self.value:
            raise ValueError(self.name)
        return self.value


class Dtype:
    """A dtype, as torch writes it."""

    def __str__(self) -> str:
        """Write it with its module."""
        return "torch.bfloat16"


DTYPE = Dtype()


@dataclass
class Spec:
    """What a layer keeps in the cache."""

    block_size: int = 16
    head_size: int = 64
    dtype: Dtype = DTYPE


class AttentionMetadataBuilder:
    """vLLM's root of builders, which asks the class."""

    _cudagraph_support = Support.NEVER

    def __init__(self, spec: Spec | None = None) -> None:
        """Take what a kernel's blocks are."""
        self.kv_cache_spec = spec or Spec()

    @classmethod
    def get_cudagraph_support(cls, _config: object, _spec: object) -> Support:
        """Return the level."""
        return cls._cudagraph_support


class SmallBuilder(AttentionMetadataBuilder):
    """The builder of vLLM's own backend."""

    _cudagraph_support = Support.ALWAYS


class UniformBuilder(AttentionMetadataBuilder):
    """Another, whose graphs work for fewer batches."""

    _cudagraph_support = Support.UNIFORM_BATCH


class OldBuilder:
    """The builder of 0.11, which has an attribute."""

    cudagraph_support = Support.NEVER


class Small:
    """A backend whose class takes some head sizes."""

    @staticmethod
    def get_name() -> str:
        """Return the name."""
        return "SMALL"

    @staticmethod
    def supports_head_size(size: int) -> bool:
        """Tell whether a head size is taken."""
        return size in {32, 64}


for own in (Small, SmallBuilder, AttentionMetadataBuilder):
    own.__module__ = "vllm.small"


class Attention:
    """A layer, without a cache unless a group has it."""

    def get_attn_backend(self) -> type:
        """Return its backend."""
        return Small


class Experts:
    """A layer that attends to nothing."""


def group(
    *names: str, backend: type = Small, builder: object = None, spec: object = None
) -> object:
    """Make an `AttentionGroup`."""
    own = Spec() if spec is None else spec
    made = SmallBuilder() if builder is None else builder
    return SimpleNamespace(
        backend=backend, layer_names=[*names], kv_cache_spec=own, metadata_builders=[made]
    )


@dataclass
class Worker:
    """vLLM's `WorkerWrapperBase`, with what is read of it, and its two functions."""

    layers: Mapping[str, object]
    groups: Sequence[object]
    of_target: Sequence[object] | None = None
    rank: int = 0
    stages: int = 1
    asked: Name | None = None
    lowers_to: GraphMode | None = None
    vllm_config: SimpleNamespace = field(init=False)
    worker: SimpleNamespace = field(init=False)
    done: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Make the configuration and the worker."""
        self.vllm_config = SimpleNamespace(
            attention_config=SimpleNamespace(backend=self.asked, flash_attn_version=None),
            cache_config=SimpleNamespace(block_size=16, cache_dtype="auto"),
            compilation_config=SimpleNamespace(
                cudagraph_mode=GraphMode.FULL,
                splitting_ops=["a"],
                static_forward_context=self.layers,
            ),
            model_config=SimpleNamespace(model="tiny", dtype=DTYPE, max_model_len=256),
            parallel_config=SimpleNamespace(world_size=4, pipeline_parallel_size=self.stages),
            scheduler_config=SimpleNamespace(async_scheduling=True),
            speculative_config=SimpleNamespace(method="eagle3", num_speculative_tokens=3),
            use_v2_model_runner=False,
        )
        modules = [*self.layers.values()] if self.of_target is None else [*self.of_target]
        model = SimpleNamespace(modules=lambda: modules)
        self.worker = SimpleNamespace(
            rank=self.rank,
            model_runner=SimpleNamespace(attn_groups=[self.groups]),
            get_model=lambda: model,
        )

    def init_device(self) -> str:
        """Come before the model is loaded."""
        self.done.append("device")
        return "device"

    def initialize_from_config(self, kv_cache_configs: object) -> str:
        """Lower the mode of graphs, as vLLM's runner does, with its warning."""
        self.done.append(str(kv_cache_configs))
        if self.lowers_to is not None:
            resolve_cudagraph_mode_and_sizes(self)
        _LOG.warning("of something else")
        return "cache"

    __hash__ = object.__hash__


def resolve_cudagraph_mode_and_sizes(worker: Worker) -> None:
    """Lower the mode, by the name of vLLM's function."""
    worker.vllm_config.compilation_config.cudagraph_mode = worker.lowers_to
    _LOG.warning("FULL is not supported, %s is taken", worker.lowers_to)


def platform(name: str = "cpu") -> SimpleNamespace:
    """Make the module `vllm.platforms`."""
    found: Callable[[], str] = lambda: name  # noqa: E731 - a method of a namespace
    return SimpleNamespace(
        current_platform=SimpleNamespace(device_type="cpu", get_device_name=found)
    )
