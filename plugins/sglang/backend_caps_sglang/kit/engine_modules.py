"""Import SGLang's own modules where there is no accelerator.

They need a configuration that a server publishes, torchvision, which PyPI has for CUDA's torch
alone, and Triton's interpreter. All three are put there before anything of SGLang is imported.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.metadata import version
from importlib.util import find_spec
from types import ModuleType

from backend_caps.kit import KitError
from backend_caps.simulator import register

ENGINE = "sglang"
_ABSENT = "torchvision"


@dataclass(frozen=True, slots=True)
class SGLang:
    """The modules of SGLang that a backend is built and called with."""

    version: str
    batches: ModuleType
    """`ForwardBatch` and `ForwardMode`."""
    layers: ModuleType
    """`RadixAttention`."""
    translating: ModuleType
    """`KVIndexTranslator`."""
    models: ModuleType
    """`AttentionArch`."""
    speculating: ModuleType
    """`EagleVerifyInput`."""
    context: ModuleType
    """What a server publishes."""
    capturing: ModuleType
    """Whether a graph is being captured."""
    linear_layers: ModuleType
    """`RadixLinearAttention`."""
    memory: ModuleType
    """`HybridReqToTokenPool`, whose requests have states."""
    windows: ModuleType
    """`SWAKVPool`, in which layers with a window have memory of their own."""
    states: ModuleType
    """`Mamba2CacheParams`, and what they are made of."""


@cache
def load_sglang() -> SGLang:
    """Import SGLang, and publish the configuration of a plain server.

    Raises:
        KitError: it is not installed, or cannot be imported here.
    """
    if find_spec(ENGINE) is None:
        raise KitError.uncheckable(ENGINE, "sglang is not installed here; make upstream")
    register()  # before SGLang asks Triton which device there is
    stand_in_for_torchvision()
    try:
        found = SGLang(
            version=version(ENGINE),
            batches=_module("srt.model_executor.forward_batch_info"),
            layers=_module("srt.layers.radix_attention"),
            translating=_module("srt.mem_cache.kv_index_translator"),
            models=_module("srt.configs.model_config"),
            speculating=_module("srt.speculative.eagle_info"),
            context=_module("srt.runtime_context"),
            capturing=_module("srt.model_executor.runner_utils.capture_mode"),
            linear_layers=_module("srt.layers.radix_linear_attention"),
            memory=_module("srt.mem_cache.memory_pool"),
            windows=_module("srt.mem_cache.swa_memory_pool"),
            states=_module("srt.configs.mamba_utils"),
        )
        found.context.get_context().override_server_args(device="cpu").install()
        found.context.get_parallel().override_permanently(attn_dcp_rank=0, attn_tp_rank=0)
    except Exception as error:  # an engine raises what it likes
        problem = f"sglang cannot be imported here: {type(error).__name__}: {error}"
        raise KitError.uncheckable(ENGINE, problem) from error
    return found


def _module(name: str) -> ModuleType:
    return importlib.import_module(f"{ENGINE}.{name}")


def stand_in_for_torchvision() -> None:
    """Let `import torchvision` find names without any work behind them."""
    if find_spec(_ABSENT) is not None:
        return
    # Asks once whether torchvision is there, and is to hear that it is not.
    importlib.import_module("transformers.image_utils")
    sys.meta_path.append(_Finder())


class _Inert(ModuleType):
    """A module that has a class of any name."""

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        made = type(name, (), {})
        setattr(self, name, made)
        return made


class _Finder(MetaPathFinder, Loader):
    """Finds torchvision, and nothing else."""

    def find_spec(
        self, fullname: str, _path: Sequence[str] | None, _target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Answer for torchvision and what is in it."""
        is_own = fullname.partition(".")[0] == _ABSENT
        return ModuleSpec(fullname, self, is_package=True) if is_own else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Make an inert module."""
        return _Inert(spec.name)

    def exec_module(self, _module: ModuleType) -> None:
        """Do nothing: it has no code."""
